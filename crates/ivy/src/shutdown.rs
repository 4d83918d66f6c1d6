//! The phases of a gateway's life, and the signal that it has ended.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// Where a gateway stands; it only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Not ready; open requests finish.
    Draining,
}

/// Told to drain from any thread, seen by all tasks.
#[derive(Clone, Debug)]
pub(crate) struct Phases(Arc<watch::Sender<Phase>>);

impl Phases {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Serving)))
    }

    pub(crate) fn drain(&self) {
        self.0.send_replace(Phase::Draining);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.0.borrow() == Phase::Draining
    }

    /// Waits until draining begins.
    pub(crate) async fn draining(&self) {
        // Cannot fail: this value holds a sender.
        drop(
            self.0
                .subscribe()
                .wait_for(|phase| *phase == Phase::Draining)
                .await,
        );
    }
}

/// Set once, when nothing is served any more.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    how: Mutex<Option<End>>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct End {
    was_cut: bool,
}

impl Ended {
    /// The first call counts.
    pub(crate) fn set(&self, was_cut: bool) {
        self.how.lock().get_or_insert(End { was_cut });
        self.changed.notify_all();
    }

    /// Whether requests were open at the end.
    pub(crate) fn was_cut(&self) -> bool {
        self.how.lock().is_some_and(|end| end.was_cut)
    }

    /// Blocks for `timeout` at most; whether it has ended.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut how = self.how.lock();
        if how.is_none() {
            self.changed.wait_for(&mut how, timeout);
        }
        how.is_some()
    }
}
