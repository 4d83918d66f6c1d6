//! What is open on one connection: requests that run, and answers that its client has not taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// The slowest rate at which an answer may be read.
const MIN_BYTES_PER_SECOND: u64 = 128 * 1_024;
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// What is flushed last, a small answer or its end, has this long to leave.
const QUIET_TIME: Duration = Duration::from_secs(1);
const QUIET_POLL: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub(crate) struct Traffic {
    unread: Duration,
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    /// Until when an answer must be taken; `None` while there is none.
    open: BTreeMap<u64, Option<Instant>>,
}

/// A request, until its answer has left.
#[derive(Debug)]
pub(crate) struct Open {
    traffic: Arc<Traffic>,
    id: u64,
}

// === impl Traffic ===

impl Traffic {
    /// An answer may stay unread for `unread` and the time of its bytes at the slowest rate.
    pub(crate) fn new(unread: Duration) -> Arc<Self> {
        Arc::new(Self {
            unread,
            state: Mutex::default(),
            answered: Notify::new(),
        })
    }

    /// A request began.
    pub(crate) fn begin(self: &Arc<Self>) -> Open {
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.open.insert(id, None);
        Open {
            traffic: Arc::clone(self),
            id,
        }
    }

    /// Waits until an answer has been left unread for too long.
    pub(crate) async fn overdue(&self) {
        loop {
            let first = self.state.lock().open.values().flatten().min().copied();
            let pause = CHECK_INTERVAL.min(self.unread);
            let Some(at) = first else {
                self.answered.notified().await;
                // Most answers have left by then: one look serves many of them.
                sleep(pause).await;
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // A smaller answer may come and be due earlier.
            sleep(left.min(pause)).await;
        }
    }

    /// Waits until nothing is open but overdue answers, for a connection that is told to end: what
    /// begins a moment later or more does not count.
    pub(crate) async fn quiet(&self) {
        for _ in 0..2 {
            let num_begun = self.state.lock().next_id;
            while self.is_open(num_begun) {
                sleep(QUIET_POLL).await;
            }
            sleep(QUIET_TIME).await;
            if self.state.lock().next_id == num_begun {
                return;
            }
        }
    }

    /// Whether any of the first requests is open, other than by an overdue answer.
    fn is_open(&self, num_begun: u64) -> bool {
        let now = Instant::now();
        let state = self.state.lock();
        let mut first = state.open.range(..num_begun);
        first.any(|(_, until)| until.is_none_or(|until| until > now))
    }
}

// === impl Open ===

impl Open {
    /// The answer is there, with so many bytes.
    pub(crate) fn answered(&self, num_bytes: u64) {
        let time = self.traffic.unread + Duration::from_secs(num_bytes / MIN_BYTES_PER_SECOND);
        let mut state = self.traffic.state.lock();
        state.open.insert(self.id, Some(Instant::now() + time));
        drop(state);
        self.traffic.answered.notify_one();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.traffic.state.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_overdue_when_its_bytes_could_have_been_read_slowly() {
        let traffic = Traffic::new(60 * SECOND);
        let overdue = |within| timeout(within, traffic.overdue());
        let running = traffic.begin();
        overdue(3_600 * SECOND).await.unwrap_err();
        running.answered(100 * MIN_BYTES_PER_SECOND);
        overdue(159 * SECOND).await.unwrap_err();
        overdue(2 * SECOND).await.unwrap();
        drop(running);
        overdue(3_600 * SECOND).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_quiet_when_nothing_was_open_for_a_moment() {
        let traffic = Traffic::new(60 * SECOND);
        let quiet = |within| timeout(within, traffic.quiet());
        quiet(2 * QUIET_TIME).await.unwrap();
        let open = traffic.begin();
        quiet(60 * SECOND).await.unwrap_err();
        let ends_late = tokio::spawn(async move {
            sleep(5 * SECOND).await;
            drop(open);
        });
        quiet(4 * SECOND).await.unwrap_err();
        quiet(3 * SECOND).await.unwrap();
        ends_late.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn overdue_answers_and_what_begins_for_ever_anew_hold_no_end_up() {
        let traffic = Traffic::new(2 * SECOND);
        let unread = traffic.begin();
        unread.answered(0);
        let begins = tokio::spawn({
            let traffic = Arc::clone(&traffic);
            async move {
                loop {
                    let open = traffic.begin();
                    sleep(QUIET_TIME / 2).await;
                    drop(open);
                }
            }
        });
        timeout(9 * SECOND, traffic.quiet()).await.unwrap();
        begins.abort();
    }
}
