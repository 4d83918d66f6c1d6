//! What others ask of the dispatcher.

use std::sync::mpsc::SyncSender;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::chunk::Chunk;
use crate::fault::StepFault;
use crate::job::Reply;
use crate::waiter::Completed;

/// The way to the dispatcher.
pub(crate) type CommandSender = mpsc::Sender<Command>;

/// What others ask of the dispatcher.
#[derive(Debug)]
pub(crate) enum Command {
    /// Queue a chunk, or refuse it.
    Submit(Submission),
    /// Python wants a batch; the sender is dropped when there will be none any more.
    NextBatch(SyncSender<Batch>),
    /// The device is done with a step.
    Completed(Completed),
    /// `step` raised.
    Failed {
        batch_id: u64,
        reason: String,
        fault: StepFault,
    },
    /// The device or what drives it is beyond repair: nobody who waits here will be served.
    GiveUp(String),
    /// Time has passed.
    Wake,
    /// Take no more work, finish what is queued.
    Drain,
    /// The time for that is over: whoever still waits is refused.
    Cut,
}

/// A chunk and who waits for it.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) chunk: Chunk,
    pub(crate) deadline: Instant,
    pub(crate) reply: Reply,
    /// A probe goes before all others and is never refused.
    pub(crate) is_probe: bool,
}

/// The next command, [`Command::Wake`] if none comes before `wake_at`; `None` once every sender is gone.
pub(crate) async fn next(
    commands: &mut mpsc::Receiver<Command>,
    wake_at: Option<Instant>,
) -> Option<Command> {
    let Some(at) = wake_at else {
        return commands.recv().await;
    };
    let received = timeout_at(at, commands.recv()).await;
    received.unwrap_or(Some(Command::Wake))
}
