//! Runs the sequences of one request: in chunks, at once, each on the replica with less in hand.
//!
//! All chunks stay in one space. Futures only: when the caller goes, everything here is dropped.

use std::ops::Range;

use bytes::Bytes;
use flowerbed_protocol::v1::{Dtype, Head, Lane, OutputSpec, RunRequest, RunResponse, RunStats};
use flowerbed_protocol::{Error, ErrorKind, packed};
use flowerbed_text::Sequence;
use futures::future::try_join_all;

use crate::error::internal;
use crate::pool::{Group, Pool};
use crate::replica::CallOptions;
use crate::split::{ChunkLimits, split};

/// What is asked of every chunk of one request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Floats a row.
    pub(crate) dimensions: u32,
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
        let limits = ChunkLimits::new(
            costs.iter().sum(),
            self.group.live.len(),
            self.group.step_budget(),
            self.ask.dimensions,
        );
        let sizes: Vec<(u64, usize)> = costs
            .iter()
            .zip(sequences)
            .map(|(&cost, sequence)| (cost, sequence.ids.len()))
            .collect();
        let chunks = split(&sizes, limits).into_iter().map(|range| {
            let cost = costs[range.clone()].iter().sum();
            self.run_chunk(&sequences[range.clone()], range, cost)
        });
        try_join_all(chunks).await
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
            .map_err(|error| in_the_callers_words(error, range.start))?;
        self.check(response, sequences.len())
    }

    /// Runs a chunk; once more elsewhere, if one replica cannot and another may.
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
            Err(error) if error.kind.is_retryable() => error,
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
            head: Head::Embed.into(),
            ids: packed::from_u32s(&ids),
            lengths: packed::from_u32s(&lengths),
            pair_start: Bytes::new(),
            segments: segments(sequences),
            outputs: vec![OutputSpec {
                dtype: Dtype::Float32.into(),
                dimensions: self.ask.dimensions,
                ..OutputSpec::default()
            }],
            lane: self.ask.lane.into(),
        }
    }

    /// A worker's answer is believed no more than a caller's request.
    fn check(&self, response: RunResponse, num_rows: usize) -> Result<Rows, Error> {
        let width = u64::from(self.ask.dimensions);
        let stats = response.stats.unwrap_or_default();
        let mut outputs = response.outputs.into_iter();
        match (outputs.next(), outputs.next()) {
            (Some(output), None)
                if output.dtype() == Dtype::Float32
                    && output.shape == [num_rows as u64, width]
                    && output.data.len() == 4 * num_rows * self.ask.dimensions as usize =>
            {
                Ok(Rows {
                    data: output.data,
                    stats,
                })
            }
            _ => Err(internal(
                "a worker answered rows of another shape than asked",
            )),
        }
    }
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

/// The worker counts inside its chunk and knows ids; the caller knows `input` and its own indices.
fn in_the_callers_words(error: Error, offset: usize) -> Error {
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
    let index = to_u32(offset + index as usize);
    let message = format!("input[{index}]: {}", error.message);
    Error { message, ..error }.in_field("input").at_index(index)
}
