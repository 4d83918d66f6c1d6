//! Threads for work that would hold up the async runtime: tokenizing, and large JSON.
//!
//! Two pools, so that a query never waits behind somebody's long documents. Jobs of callers that
//! hung up are skipped. What waits here is bounded by the memory for request bodies.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flowerbed_protocol::Error;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::oneshot;

use crate::error::internal;

/// A request with more text than this works in the second pool.
const MAX_SHORT_BYTES: usize = 16 * 1_024;

/// The two pools.
#[derive(Debug)]
pub(crate) struct Compute {
    short: ThreadPool,
    long: ThreadPool,
}

/// Tells a running job whether somebody still waits for it.
pub(crate) type IsAbandoned<'a> = &'a (dyn Fn() -> bool + Sync);

impl Compute {
    /// `num_threads` for short requests, 0 for one a core; half of them again for long ones.
    pub(crate) fn new(num_threads: usize) -> io::Result<Self> {
        let num_cores = std::thread::available_parallelism()?.get();
        let num_short = if num_threads == 0 {
            num_cores
        } else {
            num_threads
        };
        let pool = |name: &'static str, num_threads: usize| {
            ThreadPoolBuilder::new()
                .num_threads(num_threads)
                .thread_name(move |index| format!("{name}-{index}"))
                .build()
                .map_err(io::Error::other)
        };
        Ok(Self {
            short: pool("ivy-short", num_short)?,
            long: pool("ivy-long", num_short.div_ceil(2))?,
        })
    }

    /// Whether so many bytes may be worked on without leaving the async runtime.
    pub(crate) fn is_small(num_bytes: usize) -> bool {
        num_bytes <= MAX_SHORT_BYTES
    }

    /// Runs `job` in the pool for requests of so many bytes. Parallel iterators inside it use the
    /// threads of that pool.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        num_bytes: usize,
        job: impl FnOnce(IsAbandoned<'_>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let pool = if Self::is_small(num_bytes) {
            &self.short
        } else {
            &self.long
        };
        let (sender, receiver) = oneshot::channel();
        pool.spawn_fifo(move || {
            if sender.is_closed() {
                return;
            }
            // A panic that leaves a rayon job ends the process.
            let result = catch_unwind(AssertUnwindSafe(|| job(&|| sender.is_closed())));
            if let Ok(value) = result {
                // The caller may be gone by now.
                drop(sender.send(value));
            }
        });
        receiver
            .await
            .map_err(|_| internal("a compute job panicked"))
    }
}

#[cfg(test)]
mod tests {
    use flowerbed_protocol::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn a_job_that_panics_fails_its_request_only() {
        let compute = Compute::new(1).unwrap();
        let failed = compute.run(1, |_| -> u32 { panic!("on purpose") }).await;
        assert_eq!(failed.unwrap_err().kind, ErrorKind::Internal);
        assert_eq!(compute.run(1, |_| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_job_sees_that_its_caller_is_gone() {
        let compute = Compute::new(1).unwrap();
        let (sender, receiver) = oneshot::channel();
        let job = compute.run(1, move |is_abandoned| {
            while !is_abandoned() {
                std::thread::yield_now();
            }
            sender.send(()).unwrap();
        });
        drop(tokio::time::timeout(std::time::Duration::from_millis(50), job).await);
        receiver.await.unwrap();
    }
}
