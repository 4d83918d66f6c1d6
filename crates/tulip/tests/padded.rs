//! The one buffer that holds a step: every column in its place, padded to the sizes of a graph.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

use std::cell::Cell;
use std::sync::Arc;

use flowerbed_protocol::v1;
use flowerbed_tulip::batch::Batch;
use flowerbed_tulip::chunk::{Chunk, RowFormat, Sequence};
use flowerbed_tulip::config::Head;
use flowerbed_tulip::padded::{NO_PAIR, StepShape};
use flowerbed_tulip::scheduler::{JobId, Lane, Pick, Plan, Stream};

const UNTOUCHED: i32 = -7;

fn format(dimensions: u32, normalize: bool) -> RowFormat {
    RowFormat {
        dtype: v1::Dtype::Float32,
        dimensions,
        normalize,
        row_bytes: 4 * dimensions as usize,
    }
}

fn sequence(
    start: usize,
    len: u32,
    pair_start: u32,
    first_row: usize,
    num_rows: usize,
) -> Sequence {
    Sequence {
        start,
        len,
        pair_start,
        first_row,
        num_rows,
    }
}

/// Sequences of 3 and 2 tokens, of which the first has two segments, in two formats.
fn chunk(has_pairs: bool) -> Arc<Chunk> {
    let pair_start = if has_pairs { 2 } else { 3 };
    Arc::new(Chunk {
        head: Head::Embed,
        lane: Lane::Bulk,
        ids: vec![11, 12, 13, 21, 22],
        sequences: vec![sequence(0, 3, pair_start, 0, 2), sequence(3, 2, 2, 2, 1)],
        segments: vec![(0, 1), (1, 3), (0, 2)],
        outputs: vec![format(4, true), format(2, false)],
        has_pairs,
    })
}

/// Both sequences of one chunk, then the second one of another.
fn batch(has_pairs: bool) -> Batch {
    let pick = |job, first, count| Pick {
        job: JobId(job),
        first,
        count,
        cost: 0,
    };
    let plan = Plan {
        stream: Stream::Normal,
        head: Head::Embed,
        picks: vec![pick(1, 0, 2), pick(2, 1, 1)],
        cost: 7,
    };
    Batch::pack(1, plan, &[chunk(has_pairs), chunk(false)])
}

fn packed(batch: &Batch, shape: StepShape, num_values: usize) -> Result<Vec<i32>, String> {
    let values = vec![Cell::new(UNTOUCHED); num_values];
    let outcome = batch.pack_into(&values, shape);
    let values: Vec<i32> = values.into_iter().map(Cell::into_inner).collect();
    if outcome.is_err() {
        assert!(values.iter().all(|value| *value == UNTOUCHED));
    }
    outcome.map(|()| values)
}

const SHAPE: StepShape = StepShape {
    num_tokens: 8,
    num_slots: 4,
    num_rows: 9,
};

#[test]
fn every_column_lies_in_its_place_and_the_rest_is_padding() {
    const F32: i32 = v1::Dtype::Float32 as i32;
    let values = packed(&batch(true), SHAPE, SHAPE.num_values() + 2).unwrap();
    let expected = [
        vec![3 * 24 + 24, 7, 0, 0],
        vec![0, 3, 5, 7, 7, 8], // cu_seqlens
        vec![2, NO_PAIR, NO_PAIR, NO_PAIR],
        [0, 1, 1, 3, 3, 5, 5, 7]
            .into_iter()
            .chain([0; 10])
            .collect(), // segments
        vec![0, 0, F32, 4, 1],
        vec![1, 16, F32, 4, 1],
        vec![2, 32, F32, 4, 1],
        vec![0, 48, F32, 2, 0],
        vec![1, 56, F32, 2, 0],
        vec![2, 64, F32, 2, 0],
        vec![3, 72, F32, 4, 1],
        vec![3, 88, F32, 2, 0],
        vec![0; 5],
        vec![11, 12, 13, 21, 22, 21, 22, 0], // ids
        vec![UNTOUCHED; 2],
    ];
    assert_eq!(values, expected.concat());
}

#[test]
fn a_batch_that_fills_its_shape_has_no_padding() {
    let shape = StepShape {
        num_tokens: 7,
        num_slots: 3,
        num_rows: 8,
    };
    let values = packed(&batch(false), shape, shape.num_values()).unwrap();
    assert_eq!(values[4..9], [0, 3, 5, 7, 7]);
    assert_eq!(values[9..12], [NO_PAIR; 3]);
    assert_eq!(values[values.len() - 7..], [11, 12, 13, 21, 22, 21, 22]);
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_writes_nothing() {
    let batch = batch(true);
    let size = SHAPE.num_values();
    for (shape, num_values, message) in [
        (
            StepShape {
                num_tokens: 6,
                ..SHAPE
            },
            size,
            "num_tokens_padded is 6, but the batch has 7 tokens",
        ),
        (
            StepShape {
                num_slots: 2,
                ..SHAPE
            },
            size,
            "num_slots is 2, but the batch has 3 sequences",
        ),
        (
            StepShape {
                num_rows: 7,
                ..SHAPE
            },
            size,
            "num_rows_padded is 7, but the batch has 8 rows",
        ),
        (SHAPE, size - 1, "buffer holds 84 int32, but 85 are needed"),
        (
            StepShape {
                num_tokens: usize::MAX,
                ..SHAPE
            },
            size,
            "buffer holds 85 int32, but 18446744073709551615 are needed",
        ),
    ] {
        assert_eq!(packed(&batch, shape, num_values).unwrap_err(), message);
    }
}
