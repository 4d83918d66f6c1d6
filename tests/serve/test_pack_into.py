"""`Batch.pack_into` against the batch's own columns, and the same in Python for batches made there, on
batches that Tulip forms from real requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flowerbed.rose.inputs import PackedBatch
from flowerbed.rose.staging import StagingLayout
from serve.joint import WIDTH, joint

NO_PAIR = 2**31 - 1
INPUTS = [[5], [6, 7, 8], [9] * 300, list(range(1, 40)), [10, 11]]


class Rows:
    """Each row is its first token's id, WIDTH times; the engine of these tests gives it."""

    mode = "eager"
    padding_tokens = 0

    def __init__(self, batch: Any) -> None:
        starts = column(batch.segments()).reshape(-1, 2)[:, 0]
        first = column(batch.ids())[starts].astype(np.float32)
        rows = np.repeat(first, WIDTH).view(np.uint8)
        self._bytes = np.concatenate([rows, np.zeros(batch.num_rows, np.uint8)])

    def device_rows(self) -> None:
        return None

    def host(self) -> memoryview:
        return self._bytes.data


class Engine:
    """Packs every batch in many shapes before it runs it."""

    streams = ("normal",)
    steps_in_flight = 1

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.most_sequences = 0

    def step(self, batch: Any) -> Rows:
        self.most_sequences = max(self.most_sequences, batch.num_sequences)
        try:
            for padding in (0, 1, 64):
                check(batch, padding)
            check_refusals(batch)
        except AssertionError as failure:
            self.failures.append(failure)
        return Rows(batch)


def column(buffer: bytearray) -> NDArray[np.int32]:
    return np.frombuffer(buffer, np.int32)


def packed(batch: Any, tokens: int, slots: int, rows: int) -> NDArray[np.int32]:
    """The layout that `_core.pyi` describes, by numpy."""

    def padded(values: NDArray[np.int32], size: int, filler: int = 0) -> NDArray[np.int32]:
        return np.pad(values, (0, size - len(values)), constant_values=filler)

    cu_seqlens = column(batch.cu_seqlens())
    pairs = batch.pair_starts()
    seconds = np.full(0, 0, np.int32) if pairs is None else column(pairs)
    return np.concatenate(
        [
            np.array([batch.num_result_bytes, batch.num_tokens, 0, 0], np.int32),
            padded(cu_seqlens, slots + 1, batch.num_tokens),
            np.array([tokens], np.int32),
            padded(seconds, slots, NO_PAIR),
            padded(column(batch.segments()), 2 * rows),
            padded(column(batch.row_formats()), 5 * rows),
            padded(column(batch.ids()), tokens),
        ]
    )


def check(batch: Any, padding: int) -> None:
    shape = (batch.num_tokens + padding, batch.num_sequences + padding, batch.num_rows + padding)
    expected = packed(batch, *shape)
    buffer = np.full(len(expected) + 3, -1, np.int32)
    batch.pack_into(buffer, *shape)
    np.testing.assert_array_equal(buffer[:-3], expected)
    np.testing.assert_array_equal(buffer[-3:], -1)
    twin = np.full(len(expected), -1, np.int32)
    StagingLayout(*shape).pack(in_python(batch), twin)
    np.testing.assert_array_equal(twin, expected)
    again = bytearray(expected.nbytes)
    batch.pack_into(memoryview(again).cast("i"), *shape)
    assert again == expected.tobytes()


def in_python(batch: Any) -> PackedBatch:
    pairs = batch.pair_starts()
    return PackedBatch(
        token_ids=column(batch.ids()),
        offsets=column(batch.cu_seqlens()),
        spans=column(batch.segments()).reshape(-1, 2),
        formats=column(batch.row_formats()).reshape(-1, 5),
        num_result_bytes=batch.num_result_bytes,
        second_texts=None if pairs is None else column(pairs),
    )


def check_refusals(batch: Any) -> None:
    tokens, slots, rows = batch.num_tokens, batch.num_sequences, batch.num_rows
    size = len(packed(batch, tokens, slots, rows))
    buffer = np.full(size, -1, np.int32)
    read_only = np.frombuffer(bytes(4 * size), np.int32)
    for target, shape, error, message in [
        (buffer[:-1], (tokens, slots, rows), ValueError, f"{size} are needed"),
        (buffer, (tokens - 1, slots, rows), ValueError, "num_tokens_padded"),
        (buffer, (tokens, slots - 1, rows), ValueError, "num_slots"),
        (buffer, (tokens, slots, rows - 1), ValueError, "num_rows_padded"),
        (read_only, (tokens, slots, rows), ValueError, "read-only"),
        (buffer[::2], (tokens, slots, rows), ValueError, "not contiguous"),
        (buffer.astype(np.int64), (tokens, slots, rows), BufferError, "i32"),
    ]:
        with pytest.raises(error, match=message):
            batch.pack_into(target, *shape)
    assert (buffer == -1).all()


def test_a_batch_packs_as_its_columns_say_and_refuses_what_it_does_not_fit(tmp_path) -> None:
    engine = Engine()
    with joint(tmp_path, engine) as running:
        rows = running.embed(INPUTS)
        np.testing.assert_array_equal(rows[:, 0], [ids[0] for ids in INPUTS])
    assert engine.most_sequences > 1
    assert not engine.failures, engine.failures[0]
