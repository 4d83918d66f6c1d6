//! Tulip: the gRPC inference server.
//!
//! It queues sequences, forms batches under a token budget, hands them to whoever owns the device
//! (a thread that calls [`Tulip::next_batch`]) and answers when the device is done. It knows nothing
//! of text, of models' insides, or of Python.
//!
//! [`scheduler`] decides, [`dispatcher`] owns it, [`waiter`] waits for the device, [`service`]
//! talks gRPC.

pub mod batch;
pub mod chunk;
mod command;
pub mod config;
pub mod cuda;
mod deadline;
mod dispatcher;
mod fault;
mod health;
mod job;
mod listener;
mod metrics;
pub mod padded;
pub mod scheduler;
mod scrape;
mod server;
mod service;
mod share;
mod state;
mod timeline;
mod waiter;

pub use config::WorkerConfig;
pub use fault::StepFault;
pub use health::SERVICE_NAME;
pub use server::{Pull, Tulip};
pub use waiter::PendingRows;
