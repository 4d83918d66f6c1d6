//! Threads for work that would hold up the async runtime: tokenizing, and large JSON.
//!
//! Pools by size, so that a query never waits behind somebody's documents, nor documents behind a
//! whole book in one text; what is only parsed or written waits for no tokenizer. Jobs of callers
//! that hung up are skipped. What waits here is bounded by the memory for request bodies.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use flowerbed_protocol::Error;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::oneshot;

use crate::error::internal;

/// One text of this size, in bytes, is tokenized sooner than a thread of a pool wakes up.
const MAX_INLINE_BYTES: usize = 1_024;
/// Texts of a short request, in bytes, all together. JSON of this size is done on the runtime.
const MAX_SHORT_BYTES: usize = 16 * 1_024;
/// A longer text keeps a thread for longer than others should wait.
const MAX_LONG_TEXT_BYTES: usize = 64 * 1_024;

/// The pools.
#[derive(Debug)]
pub(crate) struct Compute {
    short: ThreadPool,
    long: ThreadPool,
    huge: ThreadPool,
    json: ThreadPool,
}

/// What a job does, and so where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Tokenizes one query, or checks a few ids, where they came in.
    Inline,
    /// Tokenizes queries.
    Short,
    /// Tokenizes documents.
    Long,
    /// Tokenizes at least one very long text.
    Huge,
    /// Parses a request, looks at it, or writes an answer.
    Json,
}

impl Work {
    /// Tokenizing texts of these sizes, in bytes.
    pub(crate) fn tokenizing(sizes: impl IntoIterator<Item = usize>) -> Self {
        let (count, total, largest) = sizes
            .into_iter()
            .fold((0, 0, 0), |(count, sum, max), size| {
                (count + 1, sum + size, max.max(size))
            });
        match (total, largest) {
            (total, _) if count == 1 && total <= MAX_INLINE_BYTES => Self::Inline,
            (total, _) if total <= MAX_SHORT_BYTES => Self::Short,
            (_, largest) if largest <= MAX_LONG_TEXT_BYTES => Self::Long,
            _ => Self::Huge,
        }
    }
}

/// Tells a running job whether somebody still waits for it.
pub(crate) type IsAbandoned<'a> = &'a (dyn Fn() -> bool + Sync);

impl Compute {
    /// `num_threads` for short requests, 0 for one a core; half of them again for long ones, and for
    /// JSON; one for very long texts. The cores are shared by the operating system.
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
            huge: pool("ivy-huge", 1)?,
            json: pool("ivy-json", num_short.div_ceil(2))?,
        })
    }

    /// Threads that tokenize short requests.
    pub(crate) fn num_short_threads(&self) -> usize {
        self.short.current_num_threads()
    }

    /// Whether JSON of so many bytes may be worked on without leaving the async runtime.
    pub(crate) fn is_small(num_bytes: usize) -> bool {
        num_bytes <= MAX_SHORT_BYTES
    }

    /// Runs `job` in the pool for such work. Parallel iterators inside it use the threads of that
    /// pool.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: Work,
        job: impl FnOnce(IsAbandoned<'_>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let pool = match work {
            Work::Inline => {
                return catch_unwind(AssertUnwindSafe(|| job(&|| false)))
                    .map_err(|_| internal("a compute job panicked"));
            }
            Work::Short => &self.short,
            Work::Long => &self.long,
            Work::Huge => &self.huge,
            Work::Json => &self.json,
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
        for work in [Work::Inline, Work::Short] {
            let failed = compute.run(work, |_| -> u32 { panic!("on purpose") }).await;
            assert_eq!(failed.unwrap_err().kind, ErrorKind::Internal);
            assert_eq!(compute.run(work, |_| 7).await, Ok(7));
        }
    }

    #[tokio::test]
    async fn a_job_sees_that_its_caller_is_gone() {
        let compute = Compute::new(1).unwrap();
        let (sender, receiver) = oneshot::channel();
        let job = compute.run(Work::Short, move |is_abandoned| {
            while !is_abandoned() {
                std::thread::yield_now();
            }
            sender.send(()).unwrap();
        });
        drop(tokio::time::timeout(std::time::Duration::from_millis(50), job).await);
        receiver.await.unwrap();
    }
}
