//! Why a step raised, and what those are told whose input it was.

use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind};
use tokio::time::Instant;

use crate::metrics::Shed;

/// Memory that leaks, or lies in pieces, comes back with a new process only.
const OUT_OF_MEMORY_SPAN: Duration = Duration::from_secs(60);

/// Why `step` raised. Without a fault of the device its batch is run again in halves, until the
/// culprit is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFault {
    /// A sequence cannot be run.
    Input,
    /// There was not enough memory; halves need less.
    Memory,
    /// The device cannot be used any more.
    Device,
}

impl StepFault {
    /// What a sequence gets that failed alone.
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Input => {
                let message = "the model failed on this input; the server's log says why";
                Error::new(ErrorKind::EngineFailed, message)
            }
            Self::Memory => unavailable(
                "there is not enough memory for this input, even alone; try again later, or send \
                 a shorter one",
            ),
            Self::Device => unavailable("the device failed; this worker restarts"),
        }
    }

    /// What a sequence gets whose worker must restart: `in_flight` is its index if the device was at work
    /// on it, which may be why.
    pub(crate) fn lost(in_flight: Option<usize>) -> Error {
        let Some(index) = in_flight else {
            return Self::Device.error();
        };
        unavailable(
            "the device failed while it worked on this input and others; the worker restarts",
        )
        .at_index(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// What its chunk is counted under.
    pub(crate) fn shed(self) -> Shed {
        match self {
            Self::Input => Shed::EngineFailed,
            Self::Memory => Shed::OutOfMemory,
            Self::Device => Shed::Unavailable,
        }
    }
}

/// The worker cannot now, but may soon.
pub(crate) fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message).after(Duration::from_secs(1))
}

/// Counts the steps that lacked memory and that halves did not mend.
#[derive(Debug, Default)]
pub(crate) struct OutOfMemory {
    last: Option<Instant>,
}

impl OutOfMemory {
    /// One more; whether another was within [`OUT_OF_MEMORY_SPAN`], which is taken for a fault of the device.
    pub(crate) fn is_second(&mut self) -> bool {
        let now = Instant::now();
        let last = self.last.replace(now);
        last.is_some_and(|last| now.duration_since(last) < OUT_OF_MEMORY_SPAN)
    }
}
