//! Open-loop load for tests and benchmarks: requests from a plan, at their times whatever the
//! server does.
//!
//! A latency counts from the moment at which its request was meant to be sent, so that a slow
//! server cannot hide its slowness by holding the schedule up. Only loopback targets are accepted.
//! It knows `/v1/embeddings` and a worker's `Run` well enough to check an answer, and nothing of the
//! server's inside.

pub mod arrivals;
pub mod check;
pub mod client;
pub mod connection;
pub mod options;
pub mod plan;
pub mod report;
pub mod spread;
pub mod stream;
pub mod worker;
