"""What a model's batches must keep to, checked before anything of them reaches a device.

The Rust core has checked its own; this is for batches made in this process, whoever made them. That
their tables fit each other is checked by `inputs.check_tables`, when they are read. Called by `engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowerbed.rose.inputs import Batch, Int32s
from flowerbed.rose.kernels.pack import FORMAT_COLUMNS, RowDtype


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one model."""

    vocab_rows: int  # ids are below it
    max_positions: int  # tokens of the longest sequence that has positions
    dimensions: Mapping[str, int]  # of a row, by head

    def check(self, batch: Batch) -> None:
        """Looks at what a kernel would take for an address. Takes about 10 µs.

        Raises:
            IndexError: An id or a position has no row in its table.
            ValueError: The rows' formats or the pairs do not fit the batch or the model.
        """
        ids = np.frombuffer(batch.ids(), np.int32)
        # As unsigned numbers, those below zero are large.
        if ids.view(np.uint32).max(initial=0) >= self.vocab_rows:
            at = _first((ids < 0) | (ids >= self.vocab_rows))
            raise IndexError(f"token {at}: id {ids[at]} is not in 0..{self.vocab_rows - 1}")
        if batch.max_seqlen > self.max_positions:
            lengths = np.diff(np.frombuffer(batch.cu_seqlens(), np.int32))
            at = int(lengths.argmax())
            what = f"{lengths[at]} tokens, but the model has {self.max_positions} positions"
            raise IndexError(f"sequence {at}: {what}")
        if (pair_starts := batch.pair_starts()) is not None:
            _check_pairs(np.frombuffer(pair_starts, np.int32), batch.num_sequences)
        _check_rows(batch, self.dimensions[batch.head])


def _check_pairs(starts: Int32s, num_sequences: int) -> None:
    if len(starts) != num_sequences:
        raise ValueError(f"{len(starts)} pair starts for {num_sequences} sequences")
    if starts.min(initial=0) < 0:
        raise ValueError(f"sequence {_first(starts < 0)}: its second text starts before it")


def _check_rows(batch: Batch, most: int) -> None:
    """Rows fill the result: no two share a byte, and no byte belongs to none."""
    table = batch.row_formats()
    formats = np.frombuffer(table, np.int32).reshape(-1, FORMAT_COLUMNS)
    num_segments, num_bytes = batch.num_segments, batch.num_result_bytes
    if len(formats) and formats[0, 3] <= most:
        code, dimensions, normalize = formats[0, 2:].tolist()
        plain = _plain_table(num_segments, code, dimensions, normalize)
        if plain is not None and plain == (table, num_bytes):
            return
    segments, offsets, codes, dimensions, _ = formats.T.astype(np.int64)
    _refuse(
        (segments < 0) | (segments >= num_segments),
        lambda at: f"row {at}: segment {segments[at]} of {num_segments}",
    )
    _refuse(
        (codes < min(_CODES)) | (codes > max(_CODES)),
        lambda at: f"row {at}: {codes[at]} is no dtype",
    )
    _refuse(
        (dimensions < 1) | (dimensions > most),
        lambda at: f"row {at}: {dimensions[at]} dimensions were asked for, of 1 to {most}",
    )
    widths = (dimensions * _VALUE_BITS[codes] + 7) // 8
    order = offsets.argsort(kind="stable")
    ends = widths[order].cumsum()
    _refuse(
        offsets[order] != ends - widths[order],
        lambda at: f"row {order[at]}: it overlaps another one, or leaves a gap before it",
    )
    if widths.sum() != num_bytes:
        raise ValueError(f"the rows take {widths.sum()} bytes, not {num_bytes}")


@lru_cache(maxsize=256)
def _plain_table(
    num_rows: int, code: int, dimensions: int, normalize: int
) -> tuple[bytes, int] | None:
    """Bytes of the formats of rows that are all alike, each of its own segment, and of the rows."""
    if code not in _CODES or dimensions < 1:
        return None
    table = np.empty((num_rows, FORMAT_COLUMNS), dtype=np.int32)
    width = RowDtype(code).row_bytes(dimensions)
    table[:, 0] = np.arange(num_rows)
    table[:, 1] = table[:, 0] * width
    table[:, 2:] = code, dimensions, normalize
    return table.tobytes(), num_rows * width


_CODES = tuple(map(int, RowDtype))
_VALUE_BITS: NDArray[np.int64] = np.array([0, *(dtype.value_bits for dtype in RowDtype)])
"""By code."""


def _refuse(is_bad: NDArray[np.bool_], message: Callable[[int], str]) -> None:
    if is_bad.any():
        raise ValueError(message(_first(is_bad)))


def _first(is_bad: NDArray[np.bool_]) -> int:
    return int(is_bad.argmax())
