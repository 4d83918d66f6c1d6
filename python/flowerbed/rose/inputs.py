"""What a step works on: the batch as its maker hands it over, and what its layers need of it.

Knows nothing of who makes batches: `Batch` is a protocol, met by the Rust core's batch and by
`PackedBatch`. Called by `engine`; layers take `ForwardContext` from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flowerbed.rose.kernels.attention import AttentionPlan
from flowerbed.rose.kernels.pack import FORMAT_COLUMNS, RowDtype

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class Batch(Protocol):
    """Sequences that one step runs together, packed end to end. Buffers are native int32."""

    @property
    def id(self) -> int:
        """Name of the batch between its maker and the engine's caller."""
        ...

    @property
    def head(self) -> str:
        """What to compute: embed, or tokens, whose segments are one token each."""
        ...

    @property
    def stream(self) -> str:
        """Where it runs: online or normal."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        ...

    @property
    def num_sequences(self) -> int:
        """Sequences, empty ones included."""
        ...

    @property
    def num_segments(self) -> int:
        """Spans of tokens that are pooled to a row."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of the result: one for each segment and each format asked of it."""
        ...

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence."""
        ...

    @property
    def num_result_bytes(self) -> int:
        """Bytes of all packed rows, statuses excluded."""
        ...

    def ids(self) -> bytearray:
        """[num_tokens]."""
        ...

    def cu_seqlens(self) -> bytearray:
        """[num_sequences + 1]."""
        ...

    def pair_starts(self) -> bytearray | None:
        """[num_sequences], first token of the second text, counted from the sequence's start."""
        ...

    def segments(self) -> bytearray:
        """[num_segments, 2], first token and the one after the last, counted from the batch's start."""
        ...

    def row_formats(self) -> bytearray:
        """[num_rows, 5], see `kernels.pack.pack_rows`."""
        ...


class Tables(NamedTuple):
    """The tables of a batch whose parts fit each other."""

    ids: Int32s  # [num_tokens]
    cu_seqlens: Int32s  # [num_sequences + 1]
    spans: Int32s  # [num_segments, 2]
    formats: Int32s  # [num_rows, 5]


def check_tables(batch: Batch) -> Tables:
    """Reads a batch's tables; ValueError says which do not fit each other."""
    ids, cu_seqlens = (
        np.frombuffer(batch.ids(), np.int32),
        np.frombuffer(batch.cu_seqlens(), np.int32),
    )
    spans = np.frombuffer(batch.segments(), np.int32).reshape(-1, 2)
    formats = np.frombuffer(batch.row_formats(), np.int32).reshape(-1, FORMAT_COLUMNS)
    num_tokens = len(ids)
    if (
        num_tokens == 0
        or cu_seqlens[0] != 0
        or cu_seqlens[-1] != num_tokens
        or (cu_seqlens[1:] < cu_seqlens[:-1]).any()
    ):
        raise ValueError("cu_seqlens do not divide the batch's tokens into sequences")
    if len(spans) and (
        spans.min() < 0 or spans.max() > num_tokens or (spans[:, 1] < spans[:, 0]).any()
    ):
        raise ValueError("a segment lies outside the batch's tokens")
    if batch.head == "tokens" and (spans[:, 1] - spans[:, 0] != 1).any():
        raise ValueError("a segment of the head tokens is one token")
    return Tables(ids, cu_seqlens, spans, formats)


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Where each token stands, for the layers of one step."""

    positions: Tensor  # [num_tokens] integer, counted from each sequence's start; 0 for padding
    token_types: Tensor | None  # [num_tokens] integer, 1 in a pair's second text; None: no pairs
    attention: AttentionPlan

    @property
    def batch_invariant(self) -> bool:
        """Whether rows have the same bits whatever else is in the step."""
        return self.attention.batch_invariant


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How one row is written."""

    dimensions: int
    dtype: RowDtype = RowDtype.FLOAT32
    normalize: bool = True


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch made in this process from lists of ids. Implements `Batch`."""

    token_ids: Int32s  # [num_tokens]
    offsets: Int32s  # [num_sequences + 1]
    spans: Int32s  # [num_segments, 2]
    formats: Int32s  # [num_rows, 5]
    num_result_bytes: int
    second_texts: Int32s | None = None  # [num_sequences]
    id: int = 0
    head: str = "embed"
    stream: str = "normal"

    @classmethod
    def build(
        cls,
        sequences: Sequence[Sequence[int]],
        formats: RowFormat | Sequence[RowFormat],
        *,
        spans: Sequence[tuple[int, int, int]] | None = None,
        pair_starts: Sequence[int] | None = None,
        head: str = "embed",
    ) -> Self:
        """Packs sequences, one row a segment.

        Args:
            sequences: Token ids of each sequence.
            formats: One for all rows, or one for each.
            spans: Sequence, start and end of each segment in its tokens; None: each whole sequence,
                or each token for the head tokens.
            pair_starts: First token of each second text; the sequence's length if there is none.
            head: What to compute.
        """
        lengths = [len(sequence) for sequence in sequences]
        offsets = np.array([0, *accumulate(lengths)], dtype=np.int32)
        if spans is None:
            bounds = np.arange(offsets[-1] + 1, dtype=np.int32) if head == "tokens" else offsets
            table = np.empty((len(bounds) - 1, 2), dtype=np.int32)
            table[:, 0], table[:, 1] = bounds[:-1], bounds[1:]
        else:
            table = np.array(
                [(offsets[s] + a, offsets[s] + b) for s, a, b in spans], dtype=np.int32
            )
        row_table, num_result_bytes = _row_table(formats, len(table))
        return cls(
            token_ids=np.fromiter(chain.from_iterable(sequences), np.int32, offsets[-1]),
            offsets=offsets,
            spans=table.reshape(-1, 2),
            formats=row_table,
            num_result_bytes=num_result_bytes,
            second_texts=None if pair_starts is None else np.array(pair_starts, dtype=np.int32),
            head=head,
        )

    @classmethod
    def blank(cls, num_tokens: int, seqlen: int, row: RowFormat) -> Self:
        """As many tokens, all of id 0, in sequences of `seqlen` and one of the rest."""
        num_whole, rest = divmod(num_tokens, seqlen)
        lengths = [seqlen] * num_whole + [rest] * (rest > 0)
        return cls.build([[0] * length for length in lengths], row)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """Sequences, empty ones included."""
        return len(self.offsets) - 1

    @property
    def num_segments(self) -> int:
        """Spans of tokens that are pooled to a row."""
        return len(self.spans)

    @property
    def num_rows(self) -> int:
        """Rows of the result."""
        return len(self.formats)

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence."""
        return int(np.diff(self.offsets).max(initial=0))

    def ids(self) -> bytearray:
        """[num_tokens]."""
        return bytearray(self.token_ids.tobytes())

    def cu_seqlens(self) -> bytearray:
        """[num_sequences + 1]."""
        return bytearray(self.offsets.tobytes())

    def pair_starts(self) -> bytearray | None:
        """[num_sequences], or None."""
        return None if self.second_texts is None else bytearray(self.second_texts.tobytes())

    def segments(self) -> bytearray:
        """[num_segments, 2]."""
        return bytearray(self.spans.tobytes())

    def row_formats(self) -> bytearray:
        """[num_rows, 5]."""
        return bytearray(self.formats.tobytes())


def _row_table(formats: RowFormat | Sequence[RowFormat], num_segments: int) -> tuple[Int32s, int]:
    """[num_segments, 5], rows one after the other, and their bytes in all."""
    if not isinstance(formats, RowFormat) and len(formats) != num_segments:
        raise ValueError(f"{num_segments} segments want as many formats, not {len(formats)}")
    table = np.empty((num_segments, FORMAT_COLUMNS), dtype=np.int32)
    table[:, 0] = np.arange(num_segments)
    if isinstance(formats, RowFormat):
        width = formats.dtype.row_bytes(formats.dimensions)
        table[:, 1] = table[:, 0] * width
        table[:, 2:] = formats.dtype, formats.dimensions, formats.normalize
        return table, num_segments * width
    num_bytes = 0
    for row, one in zip(table, formats, strict=True):
        row[1:] = num_bytes, one.dtype, one.dimensions, one.normalize
        num_bytes += one.dtype.row_bytes(one.dimensions)
    return table, num_bytes
