//! Keeps threads from falling asleep while queries come.
//!
//! A thread that sleeps wakes 20 to 60 µs late in a virtual machine, and a query passes four of them
//! (docs/measured-facts.md). For a while after each query they look for the next one instead, which
//! takes a core each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Whether a query came lately.
#[derive(Debug)]
pub struct Awake {
    period: u64, // microseconds
    origin: Instant,
    until: AtomicU64, // microseconds since the origin
    touched: Notify,
}

// === impl Awake ===

impl Awake {
    /// Awake for `period` after each query; zero: never.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self {
            period: micros(period),
            origin: Instant::now(),
            until: AtomicU64::new(0),
            touched: Notify::new(),
        }
    }

    /// Notes a query.
    pub fn touch(&self) {
        if self.period == 0 {
            return;
        }
        let now = micros(self.origin.elapsed());
        self.until.store(now + self.period, Ordering::Release);
        // Also where it seems awake: it may be falling asleep just now.
        self.touched.notify_one();
    }

    /// Whether a query came within the period.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.period > 0 && micros(self.origin.elapsed()) < self.until.load(Ordering::Acquire)
    }

    /// Keeps the runtime of this task awake; never ends.
    pub async fn keep(&self) {
        loop {
            if self.is_awake() {
                tokio::task::yield_now().await;
            } else {
                self.touched.notified().await;
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_awake_for_the_period_after_a_query() {
        let awake = Awake::new(Duration::from_millis(30));
        assert!(!awake.is_awake());
        awake.touch();
        assert!(awake.is_awake());
        std::thread::sleep(Duration::from_millis(40));
        assert!(!awake.is_awake());
        let never = Awake::new(Duration::ZERO);
        never.touch();
        assert!(!never.is_awake());
    }

    #[tokio::test]
    async fn a_runtime_that_is_kept_awake_still_serves_its_tasks() {
        let awake = std::sync::Arc::new(Awake::new(Duration::from_millis(50)));
        let kept = std::sync::Arc::clone(&awake);
        let keeper = tokio::spawn(async move { kept.keep().await });
        awake.touch();
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(awake.is_awake());
        let asked = tokio::spawn(async { 7 });
        assert_eq!(asked.await.ok(), Some(7));
        keeper.abort();
    }
}
