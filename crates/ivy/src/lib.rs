//! Ivy, the HTTP gateway: JSON and text in, token ids to the workers, vectors out.
//!
//! [`Gateway::start`] serves on threads of its own until the [`Running`] gateway is drained or
//! stopped. Ivy knows nothing of devices, batches or Python; it meets Tulip only in
//! `flowerbed_protocol`.

mod app;
mod balance;
mod body;
mod compute;
mod config;
mod connect;
mod context;
mod dispatch;
mod embeddings;
mod error;
mod exposition;
mod gateway;
mod headers;
mod input;
mod item;
mod json;
mod metrics;
mod pool;
mod replica;
mod respond;
mod routes;
mod scrape;
mod serve;
mod shutdown;
mod split;
mod status;
mod tokenize;
mod wire;

pub use config::{GatewayConfig, GatewayModel};
pub use gateway::{Gateway, Running};
