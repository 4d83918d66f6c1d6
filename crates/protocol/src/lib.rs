//! Words that Ivy and Tulip share: the wire messages, packed columns, limits and error kinds.
//!
//! No I/O. Everything that crosses a process is defined here or in
//! `proto/flowerbed/v1/inference.proto`.

pub mod awake;
pub mod cost;
pub mod error;
pub mod limits;
pub mod packed;
pub mod settings;
pub mod trace;

/// Messages and services generated from `proto/flowerbed/v1/inference.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::restriction,
    clippy::pedantic,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("flowerbed.v1");
}

pub use awake::Awake;
pub use cost::CostModel;
pub use error::{Error, ErrorKind, Fault};

/// Version of the wire format; a gateway refuses a worker that answers another one.
pub const PROTOCOL_VERSION: u32 = 1;

impl v1::Dtype {
    /// Bytes of one row of `dimensions` values, or `None` where the count does not fit the dtype.
    ///
    /// Bit packs hold eight values a byte, so they need a multiple of eight.
    #[must_use]
    pub fn row_bytes(self, dimensions: u32) -> Option<usize> {
        let n = dimensions as usize;
        match self {
            Self::Unspecified => None,
            Self::Float32 => Some(4 * n),
            Self::Float16 | Self::Bfloat16 => Some(2 * n),
            Self::Int8 | Self::Uint8 => Some(n),
            Self::Binary | Self::Ubinary => n.is_multiple_of(8).then_some(n / 8),
        }
    }
}
