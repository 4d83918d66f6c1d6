//! The packed layout of one step: sequences end to end, no padding, and a table of output rows.
//!
//! Result rows lie in the order pick by pick, format by format, row by row, so that what belongs
//! to one chunk and one format is one run of bytes.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::config::Head;
use crate::scheduler::{Pick, Plan};

/// What one step runs. Immutable once handed out.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Never reused.
    pub id: u64,
    /// Of all its sequences.
    pub head: Head,
    /// What the scheduler decided.
    pub plan: Plan,
    /// `[num_tokens]`
    pub ids: Vec<u32>,
    /// `[num_sequences + 1]`
    pub cu_seqlens: Vec<u32>,
    /// `[num_sequences]` first token of the second text, counted in the sequence.
    pub pair_starts: Option<Vec<u32>>,
    /// `[num_segments, 2]` start and end, counted from the batch's start.
    pub segments: Vec<u32>,
    /// `[num_rows, 5]` segment, byte offset, dtype code, dimensions, normalize.
    pub row_formats: Vec<u32>,
    /// Longest sequence, tokens.
    pub max_seqlen: u32,
    /// Bytes of all packed rows.
    pub num_result_bytes: usize,
    /// Where the rows go.
    pub runs: Vec<RowRun>,
}

/// Consecutive result rows of one pick in one format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRun {
    /// Index into the plan's picks.
    pub pick: usize,
    /// Index into the chunk's formats.
    pub output: usize,
    /// First row, counted in the chunk.
    pub first_row: usize,
    /// Rows.
    pub num_rows: usize,
    /// First byte in the result.
    pub offset: usize,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// First row, counted in the batch: where its status stands.
    pub first_status: usize,
}

impl Batch {
    /// Values in one row of [`Batch::row_formats`].
    pub const FORMAT_COLUMNS: usize = 5;

    /// Packs the picks of a plan; `chunks` holds the chunk of each pick.
    #[must_use]
    pub fn pack(id: u64, plan: Plan, chunks: &[Arc<Chunk>]) -> Self {
        let mut batch = Self {
            id,
            head: plan.head,
            plan,
            ids: Vec::new(),
            cu_seqlens: vec![0],
            pair_starts: chunks.iter().any(|chunk| chunk.has_pairs).then(Vec::new),
            segments: Vec::new(),
            row_formats: Vec::new(),
            max_seqlen: 0,
            num_result_bytes: 0,
            runs: Vec::new(),
        };
        for (index, chunk) in chunks.iter().enumerate() {
            let pick = batch.plan.picks[index].clone();
            batch.push_pick(index, &pick, chunk);
        }
        batch
    }

    /// Sequences in the batch.
    #[must_use]
    pub fn num_sequences(&self) -> usize {
        self.cu_seqlens.len() - 1
    }

    /// Output rows: one for each segment and each format asked of it.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.row_formats.len() / Self::FORMAT_COLUMNS
    }

    fn push_pick(&mut self, index: usize, pick: &Pick, chunk: &Chunk) {
        let first_segment = self.segments.len() / 2;
        let sequences = &chunk.sequences[pick.first..pick.first + pick.count];
        let first_row = sequences[0].first_row;
        let num_rows: usize = sequences.iter().map(|sequence| sequence.num_rows).sum();
        for sequence in sequences {
            let start = to_u32(self.ids.len());
            self.ids.extend_from_slice(chunk.ids_of(sequence));
            self.cu_seqlens.push(to_u32(self.ids.len()));
            self.max_seqlen = self.max_seqlen.max(sequence.len);
            if let Some(pair_starts) = &mut self.pair_starts {
                pair_starts.push(sequence.pair_start);
            }
            let rows = sequence.first_row..sequence.first_row + sequence.num_rows;
            for &(from, to) in &chunk.segments[rows] {
                self.segments.extend([start + from, start + to]);
            }
        }
        for (output, format) in chunk.outputs.iter().enumerate() {
            self.runs.push(RowRun {
                pick: index,
                output,
                first_row,
                num_rows,
                offset: self.num_result_bytes,
                row_bytes: format.row_bytes,
                first_status: self.num_rows(),
            });
            for row in 0..num_rows {
                self.row_formats.extend([
                    to_u32(first_segment + row),
                    to_u32(self.num_result_bytes),
                    format.dtype as u32,
                    format.dimensions,
                    u32::from(format.normalize),
                ]);
                self.num_result_bytes += format.row_bytes;
            }
        }
    }
}

/// Sizes within a batch fit 31 bits: ids come in messages of 64 MiB, and a step's rows have as much.
fn to_u32(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
