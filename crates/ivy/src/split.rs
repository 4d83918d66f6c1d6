//! Splits a request into chunks, each for one call to one replica.

use std::ops::Range;

use flowerbed_protocol::limits;

/// Left for what a message holds beside ids or rows.
const MESSAGE_SLACK_BYTES: usize = 64 * 1_024;

/// What one chunk may hold; a single sequence over a limit is a chunk of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLimits {
    pub(crate) max_cost: u64,
    pub(crate) max_tokens: usize,
    pub(crate) max_rows: usize,
}

impl ChunkLimits {
    /// Limits for a request of `request_cost` whose rows have `dimensions` floats.
    ///
    /// With one replica nothing is won by splitting. With more, a chunk is a fair share, but not so
    /// large that it fills a step, nor so small that calls cost more than they spread.
    pub(crate) fn new(
        request_cost: u64,
        num_replicas: usize,
        step_budget: u64,
        dimensions: u32,
    ) -> Self {
        let max_cost = if num_replicas <= 1 {
            u64::MAX
        } else {
            let share = request_cost.div_ceil(num_replicas as u64);
            share.min(step_budget).max(limits::MIN_CHUNK_COST)
        };
        let message_bytes = limits::MAX_MESSAGE_BYTES - MESSAGE_SLACK_BYTES;
        let row_bytes = 4 * (dimensions as usize).max(1);
        // Beside its ids a sequence carries its length and, in the worst case, a segment.
        let rows_by_request = message_bytes / 2 / (4 * 4);
        Self {
            max_cost,
            max_tokens: message_bytes / 2 / 4,
            max_rows: (message_bytes / row_bytes)
                .min(rows_by_request)
                .clamp(1, limits::MAX_ROWS),
        }
    }
}

/// Cuts sequences, given as (cost, tokens), into runs within the limits.
pub(crate) fn split(sequences: &[(u64, usize)], limits: ChunkLimits) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, mut cost, mut tokens) = (0, 0_u64, 0_usize);
    for (index, &(next_cost, next_tokens)) in sequences.iter().enumerate() {
        let is_full = cost.saturating_add(next_cost) > limits.max_cost
            || tokens + next_tokens > limits.max_tokens
            || index - start == limits.max_rows;
        if is_full && index > start {
            chunks.push(start..index);
            (start, cost, tokens) = (index, 0, 0);
        }
        cost = cost.saturating_add(next_cost);
        tokens += next_tokens;
    }
    if start < sequences.len() {
        chunks.push(start..sequences.len());
    }
    chunks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_replica_gets_the_whole_request() {
        let limits = ChunkLimits::new(100_000, 1, 512, 384);
        let chunks = split(&[(1_000, 900); 100], limits);
        assert_eq!((chunks.len(), chunks[0].clone()), (1, 0..100));
    }

    #[test]
    fn a_chunk_is_a_fair_share_within_one_step_and_never_tiny() {
        assert_eq!(ChunkLimits::new(3_000, 2, 2_048, 384).max_cost, 1_500);
        assert_eq!(ChunkLimits::new(30_000, 2, 2_048, 384).max_cost, 2_048);
        assert_eq!(ChunkLimits::new(600, 4, 2_048, 384).max_cost, 512);
    }

    proptest! {
        #[test]
        fn chunks_cover_every_sequence_once_and_keep_their_limits(
            sequences in prop::collection::vec((1_u64..900, 1_usize..900), 0..200),
            max_cost in 1_u64..3_000, max_tokens in 1_usize..3_000, max_rows in 1_usize..50,
        ) {
            let chunks = split(&sequences, ChunkLimits { max_cost, max_tokens, max_rows });
            let covered: Vec<usize> = chunks.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..sequences.len()).collect::<Vec<_>>());
            for chunk in chunks {
                let part = &sequences[chunk];
                let cost: u64 = part.iter().map(|s| s.0).sum();
                let tokens: usize = part.iter().map(|s| s.1).sum();
                prop_assert!(part.len() <= max_rows);
                prop_assert!(part.len() == 1 || (cost <= max_cost && tokens <= max_tokens));
            }
        }
    }
}
