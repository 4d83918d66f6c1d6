//! Every limit of the wire, once. Limits that an operator may change live in
//! `python/flowerbed/config.py` and start from these values.

use std::time::Duration;

/// Inputs of one HTTP request.
pub const MAX_INPUTS: usize = 2_048;
/// Body of one HTTP request.
pub const MAX_BODY_BYTES: usize = 32 * 1024 * 1024;
/// One gRPC message, either way (tonic's own default is 4 MiB: 1,024 vectors of 1,024 floats).
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// Rows of one chunk in all their formats, and of one step: a message, less its envelope.
pub const MAX_RESULT_BYTES: usize = MAX_MESSAGE_BYTES / 16 * 15;
/// Rows of one chunk.
pub const MAX_ROWS: usize = 65_536;
/// Tokens that the segments of a sequence may hold, in multiples of its own: pooling them costs memory
/// that no token count shows.
pub const MAX_POOLED_SHARE: u64 = 2;
/// Output formats of one chunk.
pub const MAX_OUTPUTS: usize = 8;
/// Tokens that one answer may list with their texts, and ids that it may turn into text.
pub const MAX_LISTED_TOKENS: usize = 1 << 20;
/// Values of one answer that holds a vector for each token: JSON makes some 12 bytes of each.
pub const MAX_TOKEN_VALUES: usize = MAX_RESULT_BYTES / 4;
/// Time a request may take, queueing included.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// A queue holds this much work at the measured rate.
pub const QUEUE_SECONDS: f64 = 10.0;
/// Cost of the smallest chunk worth a call of its own.
pub const MIN_CHUNK_COST: u64 = 512;
/// HTTP/2 flow-control window of one stream.
pub const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// HTTP/2 flow-control window of one connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// An embedding request up to this cost is online work, a larger one is bulk.
pub const MAX_ONLINE_COST: u64 = 512;
