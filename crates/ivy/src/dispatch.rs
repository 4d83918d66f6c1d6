//! Runs the sequences of one request: in chunks, some at once, each on the replica with less in hand.
//!
//! All chunks stay in one space. Futures only: when the caller goes, everything here is dropped.

use std::ops::Range;

use bytes::Bytes;
use flowerbed_protocol::v1::{
    Dtype, Head, Lane, Normalize, Output, OutputSpec, RunRequest, RunResponse, RunStats,
};
use flowerbed_protocol::{Error, ErrorKind, packed};
use flowerbed_text::Sequence;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::error::internal;
use crate::form::Names;
use crate::pool::{Group, Pool};
use crate::replica::CallOptions;
use crate::split::{ChunkLimits, split};

/// Chunks of one request that a replica has at once: enough to be busy, and far less than its queue holds,
/// which would refuse what was admitted as a whole.
const CHUNKS_AT_ONCE: usize = 12;

/// What is asked of every chunk of one request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// `Embed` gives a row for each sequence, `Tokens` one for each token.
    pub(crate) head: Head,
    /// Floats a row.
    pub(crate) dimensions: u32,
    pub(crate) normalize: Normalize,
    /// For errors.
    pub(crate) names: Names,
    pub(crate) lane: Lane,
    pub(crate) options: CallOptions,
}

/// The rows of one chunk.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// float32, little-endian, rows end to end.
    pub(crate) data: Bytes,
    pub(crate) stats: RunStats,
}

/// One request on its way through the workers.
#[derive(Debug)]
pub(crate) struct Dispatch<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) group: &'a Group,
    pub(crate) ask: Ask,
}

impl Dispatch<'_> {
    /// The rows of `sequences`, whose costs are `costs`, chunk by chunk in order.
    pub(crate) async fn run(
        &self,
        sequences: &[Sequence],
        costs: &[u64],
    ) -> Result<Vec<Rows>, Error> {
        let mut limits = ChunkLimits::new(
            costs.iter().sum(),
            self.group.live.len(),
            self.group.step_budget(),
            self.ask.dimensions,
        );
        if self.ask.head == Head::Tokens {
            limits.max_tokens = limits.max_tokens.min(limits.max_rows);
        }
        let sizes: Vec<(u64, usize)> = costs
            .iter()
            .zip(sequences)
            .map(|(&cost, sequence)| (cost, sequence.ids.len()))
            .collect();
        let chunks = split(&sizes, limits).into_iter().map(|range| {
            let cost = costs[range.clone()].iter().sum();
            self.run_chunk(&sequences[range.clone()], range, cost)
        });
        stream::iter(chunks)
            .buffered(CHUNKS_AT_ONCE * self.group.live.len().max(1))
            .try_collect()
            .await
    }

    async fn run_chunk(
        &self,
        sequences: &[Sequence],
        range: Range<usize>,
        cost: u64,
    ) -> Result<Rows, Error> {
        let message = self.message(sequences);
        let response = self
            .run_somewhere(message, cost)
            .await
            .map_err(|error| self.in_the_callers_words(error, range.start))?;
        self.check(response, sequences)
    }

    /// Runs a chunk; once more elsewhere, if one replica cannot and another may. Not where an input is
    /// named: it may have been what hurt the first.
    async fn run_somewhere(&self, message: RunRequest, cost: u64) -> Result<RunResponse, Error> {
        let space = self.group.space();
        let (replica, session) = self
            .pool
            .pick(space, None)
            .ok_or_else(crate::pool::unavailable)?;
        let outstanding = replica.begin(cost);
        let refused = match replica
            .run(&session, message.clone(), &self.ask.options)
            .await
        {
            Err(error) if error.kind.is_retryable() && error.index.is_none() => error,
            result => return result,
        };
        drop(outstanding);
        let Some((other, session)) = self.pool.pick(space, Some(replica.index)) else {
            return Err(refused);
        };
        let _outstanding = other.begin(cost);
        other.run(&session, message, &self.ask.options).await
    }

    fn message(&self, sequences: &[Sequence]) -> RunRequest {
        let num_tokens = sequences.iter().map(|sequence| sequence.ids.len()).sum();
        let mut ids = Vec::with_capacity(num_tokens);
        for sequence in sequences {
            ids.extend_from_slice(&sequence.ids);
        }
        let lengths: Vec<u32> = sequences
            .iter()
            .map(|sequence| to_u32(sequence.ids.len()))
            .collect();
        RunRequest {
            model: self.group.session.info.id.clone(),
            space: self.group.space().to_owned(),
            head: self.ask.head.into(),
            ids: packed::from_u32s(&ids),
            lengths: packed::from_u32s(&lengths),
            pair_start: Bytes::new(),
            segments: match self.ask.head {
                Head::Tokens => Bytes::new(),
                _ => segments(sequences),
            },
            outputs: vec![OutputSpec {
                dtype: Dtype::Float32.into(),
                dimensions: self.ask.dimensions,
                normalize: self.ask.normalize.into(),
            }],
            lane: self.ask.lane.into(),
        }
    }

    /// A worker's answer is believed no more than a caller's request.
    fn check(&self, response: RunResponse, sequences: &[Sequence]) -> Result<Rows, Error> {
        let stats = response.stats.unwrap_or_default();
        let mut outputs = response.outputs.into_iter();
        match (outputs.next(), outputs.next()) {
            (Some(output), None) if self.has_shape(&output, sequences) => Ok(Rows {
                data: output.data,
                stats,
            }),
            _ => Err(internal(
                "a worker answered rows of another shape than asked",
            )),
        }
    }

    fn has_shape(&self, output: &Output, sequences: &[Sequence]) -> bool {
        let lengths = sequences.iter().map(|sequence| sequence.ids.len());
        let (num_rows, row_offsets) = match self.ask.head {
            Head::Tokens => (lengths.clone().sum(), Some(ends(lengths))),
            _ => (sequences.len(), None),
        };
        output.dtype() == Dtype::Float32
            && output.shape == [num_rows as u64, u64::from(self.ask.dimensions)]
            && output.data.len() == 4 * num_rows * self.ask.dimensions as usize
            && row_offsets.is_none_or(|offsets| output.row_offsets == packed::from_u32s(&offsets))
    }

    /// The worker counts inside its chunk and knows ids; the caller has its own names and indices.
    fn in_the_callers_words(&self, error: Error, offset: usize) -> Error {
        if error.kind == ErrorKind::WrongSpace {
            let message = "the workers are being replaced; try again";
            return Error {
                message: message.to_owned(),
                ..error
            };
        }
        let Some(index) = error.index else {
            return error;
        };
        let message = format!("failed: {}", error.message);
        let retry_after = error.retry_after;
        let named = self
            .ask
            .names
            .error(error.kind, offset + index as usize, message);
        Error {
            retry_after,
            ..named
        }
    }
}

/// 0, then the end of each length when they lie end to end.
fn ends(lengths: impl Iterator<Item = usize>) -> Vec<u32> {
    let sums = lengths.scan(0, |sum, length| {
        *sum += length;
        Some(to_u32(*sum))
    });
    std::iter::once(0).chain(sums).collect()
}

/// Empty while every sequence is pooled whole.
fn segments(sequences: &[Sequence]) -> Bytes {
    if sequences.iter().all(|sequence| sequence.segment_start == 0) {
        return Bytes::new();
    }
    let spans = sequences.iter().enumerate().flat_map(|(index, sequence)| {
        [
            to_u32(index),
            to_u32(sequence.segment_start),
            to_u32(sequence.ids.len()),
        ]
    });
    packed::from_u32s(&spans.collect::<Vec<u32>>())
}

/// Counts inside one chunk are far below `u32::MAX`: a message holds 64 MiB.
fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
