//! A queued chunk and what has come back for it so far.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flowerbed_protocol::{Error, ErrorKind, packed, v1};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::batch::RowRun;
use crate::chunk::Chunk;
use crate::config::Head;
use crate::metrics::Shed;
use crate::scheduler::Pick;

/// What the handler of a call waits for.
pub(crate) type Reply = oneshot::Sender<Result<v1::RunResponse, Error>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct JobState {
    pub(crate) chunk: Arc<Chunk>,
    costs: Arc<[u64]>, // of each sequence
    deadline: Instant,
    reply: Reply,
    enqueued: Instant,
    rows: Vec<Vec<u8>>, // one buffer for each format of the chunk
    num_left: usize,    // sequences whose rows are not here yet
    stats: v1::RunStats,
}

/// Times of one step, as they go into the answers of its jobs.
#[derive(Clone, Debug)]
pub(crate) struct StepTimes {
    pub(crate) started: Instant,
    pub(crate) ran_for: Duration,
    pub(crate) copied_in: Duration,
    pub(crate) mode: String,
    pub(crate) padding_tokens: u64,
}

/// Status bytes that follow the rows of a step.
const STATUS_GOOD: u8 = 0;
pub(crate) const STATUS_NOT_FINITE: u8 = 1;
/// The number format of a model whose range is narrow.
const FLOAT16: &str = "float16";

// === impl JobState ===

impl JobState {
    /// A job that came in now.
    pub(crate) fn new(
        chunk: Arc<Chunk>,
        costs: Arc<[u64]>,
        deadline: Instant,
        reply: Reply,
    ) -> Self {
        Self {
            rows: vec![Vec::new(); chunk.outputs.len()],
            num_left: chunk.sequences.len(),
            chunk,
            costs,
            deadline,
            reply,
            enqueued: Instant::now(),
            stats: v1::RunStats::default(),
        }
    }

    /// Whether somebody still waits for the answer, and in time.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        !self.has_hung_up() && now < self.deadline
    }

    /// Whether the caller is gone.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.reply.is_closed()
    }

    /// Cost of the sequences of a pick.
    pub(crate) fn cost_of(&self, pick: &Pick) -> u64 {
        self.costs[pick.first..pick.first + pick.count].iter().sum()
    }

    /// How long its sequences waited for the step that began at `started`.
    pub(crate) fn waited(&self, started: Instant) -> Duration {
        started.saturating_duration_since(self.enqueued)
    }

    /// Stores one run of rows of a model in the number format `dtype`.
    ///
    /// # Errors
    /// A row that must not be answered: not finite, or all zero.
    pub(crate) fn store(
        &mut self,
        run: &RowRun,
        rows: &[u8],
        statuses: &[u8],
        dtype: &str,
    ) -> Result<(), Error> {
        if let Some(bad) = statuses.iter().position(|status| *status != STATUS_GOOD) {
            let row = run.first_row + bad;
            let index = self.chunk.sequences.partition_point(|s| s.first_row <= row) - 1;
            let (what, advice) = match statuses[bad] {
                STATUS_NOT_FINITE if dtype == FLOAT16 => (
                    "not finite in float16",
                    "; start the server with --dtype bfloat16 or float32, whose range is wider",
                ),
                STATUS_NOT_FINITE => ("not finite", ""),
                _ => ("all zero", ""),
            };
            let message =
                format!("the model's vector for this input is {what}; it was not returned{advice}");
            return Err(Error::new(ErrorKind::EngineFailed, message)
                .at_index(u32::try_from(index).unwrap_or(u32::MAX)));
        }
        let buffer = &mut self.rows[run.output];
        if buffer.is_empty() {
            buffer.resize(self.chunk.segments.len() * run.row_bytes, 0);
        }
        let start = run.first_row * run.row_bytes;
        buffer[start..start + rows.len()].copy_from_slice(rows);
        Ok(())
    }

    /// Notes that a step ran `num_sequences` of this job; true when that were the last ones.
    pub(crate) fn count_step(&mut self, num_sequences: usize, times: &StepTimes) -> bool {
        let stats = &mut self.stats;
        let waited = times.started.saturating_duration_since(self.enqueued);
        if stats.num_steps == 0 {
            stats.queue_us = as_micros(waited);
        }
        stats.step_us += as_micros(times.ran_for);
        stats.copy_us += as_micros(times.copied_in);
        stats.mode.clone_from(&times.mode);
        stats.num_steps += 1;
        stats.padding_tokens += times.padding_tokens;
        self.num_left -= num_sequences;
        self.num_left == 0
    }

    /// Answers with the rows. The caller may have hung up meanwhile, which is no error.
    pub(crate) fn answer(self, load: v1::Load) {
        let num_rows = self.chunk.segments.len() as u64;
        let row_offsets = self.row_offsets();
        let outputs = self
            .chunk
            .outputs
            .iter()
            .zip(self.rows)
            .map(|(format, rows)| v1::Output {
                head: self.chunk.head.to_wire().into(),
                dtype: format.dtype.into(),
                shape: vec![num_rows, u64::from(format.dimensions)],
                row_offsets: row_offsets.clone(),
                data: rows.into(),
            });
        let response = v1::RunResponse {
            outputs: outputs.collect(),
            stats: Some(self.stats),
            load: Some(load),
        };
        let _ = self.reply.send(Ok(response));
    }

    /// Where each sequence's rows begin, and where the last one's end, if it has one a token.
    fn row_offsets(&self) -> Bytes {
        if self.chunk.head != Head::Tokens {
            return Bytes::new();
        }
        let starts = self.chunk.sequences.iter().map(|s| s.first_row);
        let offsets: Vec<u32> = starts
            .chain([self.chunk.segments.len()])
            .map(|row| u32::try_from(row).unwrap_or(u32::MAX))
            .collect();
        packed::from_u32s(&offsets)
    }

    /// Answers a job that is not wanted any more: its caller hung up, or its deadline passed.
    pub(crate) fn expire(self) -> Shed {
        let shed = if self.has_hung_up() {
            Shed::Cancelled
        } else {
            Shed::DeadlineExceeded
        };
        let message = "the deadline passed while the request was queued";
        self.fail(Error::new(ErrorKind::DeadlineExceeded, message));
        shed
    }

    /// Answers with an error.
    pub(crate) fn fail(self, error: Error) {
        let _ = self.reply.send(Err(error));
    }
}

fn as_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
