//! Waits for the device on an OS thread of its own, so that neither Python's interpreter lock nor
//! a runtime thread is held meanwhile. One waiter a stream: steps of one stream end in order.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::command::{Command, CommandSender};
use crate::scheduler::Stream;

/// The rows of a step that was launched, perhaps still being computed.
pub trait PendingRows: Send {
    /// Waits until the device is done.
    ///
    /// # Errors
    /// The device failed; the text is for the log.
    fn wait(&mut self) -> Result<(), String>;

    /// The packed rows and one status a row; called once, after [`PendingRows::wait`].
    fn take(self: Box<Self>) -> Bytes;
}

/// A step on the device.
pub(crate) struct Launched {
    /// Which batch.
    pub(crate) batch_id: u64,
    /// When Python took the batch.
    pub(crate) started: Instant,
    /// What it will give.
    pub(crate) rows: Box<dyn PendingRows>,
    /// eager, capture or replay.
    pub(crate) mode: String,
    /// Tokens that belong to no sequence.
    pub(crate) padding_tokens: u64,
}

impl std::fmt::Debug for Launched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launched")
            .field("batch_id", &self.batch_id)
            .finish_non_exhaustive()
    }
}

/// A step that is done.
#[derive(Debug)]
pub(crate) struct Completed {
    /// Which batch.
    pub(crate) batch_id: u64,
    /// When Python took the batch.
    pub(crate) started: Instant,
    /// When the device was done.
    pub(crate) finished: Instant,
    /// What it took to bring the rows here.
    pub(crate) copied_in: Duration,
    /// The rows, or why the device failed.
    pub(crate) rows: Result<Bytes, String>,
    /// eager, capture or replay.
    pub(crate) mode: String,
    /// Tokens that belong to no sequence.
    pub(crate) padding_tokens: u64,
}

/// Starts the waiter of one stream. It ends when its sender is dropped.
///
/// # Errors
/// The thread could not be started.
pub(crate) fn spawn(
    stream: Stream,
    steps_in_flight: usize,
    commands: CommandSender,
) -> std::io::Result<mpsc::SyncSender<Launched>> {
    let (sender, receiver) = mpsc::sync_channel::<Launched>(steps_in_flight);
    thread::Builder::new()
        .name(format!("waiter-{}", stream.name()))
        .spawn(move || {
            for mut launched in receiver {
                let outcome = launched.rows.wait();
                let finished = Instant::now();
                let rows = outcome.map(|()| launched.rows.take());
                let completed = Completed {
                    batch_id: launched.batch_id,
                    started: launched.started,
                    finished,
                    copied_in: finished.elapsed(),
                    rows,
                    mode: launched.mode,
                    padding_tokens: launched.padding_tokens,
                };
                if commands
                    .blocking_send(Command::Completed(completed))
                    .is_err()
                {
                    break;
                }
            }
        })?;
    Ok(sender)
}
