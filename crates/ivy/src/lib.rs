//! Ivy, the HTTP gateway: JSON and text in, token ids to the workers, vectors out.
//!
//! [`Gateway::start`] serves on threads of its own until the [`Running`] gateway is drained or
//! stopped. Ivy knows nothing of devices, batches or Python; it meets Tulip only in
//! `flowerbed_protocol`.

mod admission;
mod answers;
mod app;
mod balance;
mod body;
mod call;
mod compute;
mod config;
mod connect;
mod context;
mod dispatch;
mod docs;
mod endpoints;
mod error;
mod exposition;
mod fields;
mod form;
mod gateway;
mod glance;
mod headers;
mod info;
mod input;
mod item;
mod json;
mod metrics;
mod openai;
mod openapi;
mod pipeline;
mod pool;
mod replica;
mod respond;
mod routes;
mod schemas;
mod scrape;
mod serve;
mod shutdown;
mod split;
mod status;
mod tei;
mod tokenize;
mod tokens;
mod value;
mod wire;

pub use config::{GatewayConfig, GatewayModel};
pub use gateway::{Gateway, Running};
