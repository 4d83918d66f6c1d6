//! A batch as a GPU takes it: every integer of a step in one buffer, padded to the sizes of its graph.
//!
//! The buffer is copied to the device in one piece, so that a step costs one transfer whatever it holds.

use std::cell::Cell;

use crate::batch::Batch;

/// Where no second text begins.
pub const NO_PAIR: i32 = i32::MAX;
/// Values before the first column: the status offset, the tokens, and two that are zero.
const HEADER: usize = 4;
/// Values of a segment and its row: start, end, and the row's format.
const ROW_VALUES: usize = 2 + Batch::FORMAT_COLUMNS;

/// What a step has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens, padding included.
    pub num_tokens: usize,
    /// Places for sequences.
    pub num_slots: usize,
    /// Places for segments, and as many for rows.
    pub num_rows: usize,
}

impl StepShape {
    /// Values of the packed buffer.
    #[must_use]
    pub fn num_values(self) -> usize {
        HEADER
            .saturating_add(self.num_slots.saturating_mul(2).saturating_add(2))
            .saturating_add(self.num_rows.saturating_mul(ROW_VALUES))
            .saturating_add(self.num_tokens)
    }

    fn check(self, batch: &Batch, num_values: usize) -> Result<(), String> {
        let rows = batch.num_rows().max(batch.segments.len() / 2);
        for (name, room, has, what) in [
            (
                "num_tokens_padded",
                self.num_tokens,
                batch.ids.len(),
                "tokens",
            ),
            (
                "num_slots",
                self.num_slots,
                batch.num_sequences(),
                "sequences",
            ),
            ("num_rows_padded", self.num_rows, rows, "rows"),
        ] {
            if has > room {
                return Err(format!("{name} is {room}, but the batch has {has} {what}"));
            }
        }
        let needed = self.num_values();
        if num_values < needed {
            return Err(format!(
                "buffer holds {num_values} int32, but {needed} are needed"
            ));
        }
        Ok(())
    }
}

impl Batch {
    /// Writes everything that a step needs, padded to `shape`, in this order of columns:
    ///
    /// | values | unused |
    /// |---|---|
    /// | bytes of all rows, tokens, 0, 0 | |
    /// | `cu_seqlens [num_slots + 2]`, the last the end of the padding | the number of tokens |
    /// | `pair_starts [num_slots]`, [`NO_PAIR`] where a sequence has no second text | [`NO_PAIR`] |
    /// | `segments [num_rows, 2]` | 0 |
    /// | `row_formats [num_rows, 5]` | 0 |
    /// | `ids [num_tokens]` | 0 |
    ///
    /// What lies behind them is left as it is.
    ///
    /// # Errors
    /// The batch does not fit `shape`, or `shape` does not fit `values`; nothing is written then.
    pub fn pack_into(&self, values: &[Cell<i32>], shape: StepShape) -> Result<(), String> {
        shape.check(self, values.len())?;
        let StepShape {
            num_tokens,
            num_slots,
            num_rows,
        } = shape;
        let real_tokens = self.ids.len() as u32;
        let mut columns = Columns(values);
        columns.put(&[self.num_result_bytes as u32, real_tokens], HEADER, 0);
        columns.put(&self.cu_seqlens, num_slots + 1, real_tokens.cast_signed());
        columns.put(&[num_tokens as u32], 1, 0);
        let pair_starts = columns.put(
            self.pair_starts.as_deref().unwrap_or_default(),
            num_slots,
            NO_PAIR,
        );
        if self.pair_starts.is_some() {
            for (start, bounds) in pair_starts.iter().zip(self.cu_seqlens.windows(2)) {
                if start.get() >= (bounds[1] - bounds[0]).cast_signed() {
                    start.set(NO_PAIR);
                }
            }
        }
        columns.put(&self.segments, 2 * num_rows, 0);
        columns.put(&self.row_formats, Self::FORMAT_COLUMNS * num_rows, 0);
        columns.put(&self.ids, num_tokens, 0);
        Ok(())
    }
}

/// What is left to write.
struct Columns<'a>(&'a [Cell<i32>]);

impl<'a> Columns<'a> {
    /// Writes `values` and fills up to `len`. Sizes within a batch fit 31 bits.
    fn put(&mut self, values: &[u32], len: usize, filler: i32) -> &'a [Cell<i32>] {
        let (column, rest) = self.0.split_at(len);
        self.0 = rest;
        let (used, unused) = column.split_at(values.len());
        for (cell, value) in used.iter().zip(values) {
            cell.set(value.cast_signed());
        }
        for cell in unused {
            cell.set(filler);
        }
        column
    }
}
