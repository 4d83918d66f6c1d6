"""What a step works on: the batch as its maker hands it over, and the same as tensors.

Knows nothing of who makes batches: `Batch` is a protocol, met by the Rust core's batch and by
`PackedBatch`. Called by `engine`; layers take `ForwardContext` from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, groupby
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowerbed.rose.kernels.attention import AttentionPlan, Backend, LengthGroup
from flowerbed.rose.kernels.pack import FORMAT_COLUMNS, RowDtype
from flowerbed.rose.kernels.pooling import SegmentTable

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


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Where each token stands, for the layers of one step."""

    positions: Tensor  # [num_tokens] integer, counted from each sequence's start; 0 for padding
    token_types: Tensor | None  # [num_tokens] integer, 1 in a pair's second text; None: no pairs
    attention: AttentionPlan


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One batch on the device, sequences sorted by length, padding tokens at the end."""

    ids: Tensor  # [num_tokens] int64
    context: ForwardContext
    segments: SegmentTable  # in the batch's own order
    formats: Int32s  # [num_rows, 5], host
    padding_tokens: int


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


def padded_tokens(num_tokens: int, device: torch.device) -> int:
    """Tokens that a step of `num_tokens` runs with.

    oneDNN builds a kernel for each new row count, about 1.3 ms a step for MiniLM; so CPU steps are
    multiples of 8, past 128 of 16, past 512 of 64.
    """
    if device.type != "cpu":
        return num_tokens
    multiple = 8 if num_tokens <= 128 else 16 if num_tokens <= 512 else 64
    return -(-num_tokens // multiple) * multiple


def prepare(batch: Batch, device: torch.device) -> StepInputs:
    """Checks the batch's geometry, sorts its sequences by length, and moves it to the device.

    Raises:
        ValueError: The batch's parts do not fit each other.
    """
    ids, cu_seqlens = _int32s(batch.ids()), _int32s(batch.cu_seqlens())
    spans, pair_starts = _int32s(batch.segments()).reshape(-1, 2), batch.pair_starts()
    formats = _int32s(batch.row_formats()).reshape(-1, 5)
    is_whole = len(ids) > 0 and pair_starts is None and batch.head != "tokens"
    if (
        is_whole
        and np.array_equal(cu_seqlens, [0, len(ids)])
        and np.array_equal(spans, [cu_seqlens])
    ):
        return _one_whole(ids, formats, device)
    cu_seqlens, spans = cu_seqlens.astype(np.int64), spans.astype(np.int64)
    starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
    num_tokens = len(ids)
    if num_tokens == 0 or cu_seqlens[0] != 0 or cu_seqlens[-1] != num_tokens or lengths.min() < 0:
        raise ValueError("cu_seqlens do not divide the batch's tokens into sequences")
    if len(spans) and (
        spans.min() < 0 or spans.max() > num_tokens or (spans[:, 1] < spans[:, 0]).any()
    ):
        raise ValueError("a segment lies outside the batch's tokens")
    if batch.head == "tokens" and (np.diff(spans) != 1).any():
        raise ValueError("a segment of the head tokens is one token")

    order = np.argsort(lengths, kind="stable")
    sorted_lengths = lengths[order]
    sorted_ends = sorted_lengths.cumsum()
    sorted_starts = sorted_ends - sorted_lengths
    shift = np.empty_like(starts)
    shift[order] = sorted_starts - starts[order]  # how far each sequence moves
    padded = padded_tokens(num_tokens, device)
    positions = np.zeros(padded, dtype=np.int64)
    positions[:num_tokens] = np.arange(num_tokens) - sorted_starts.repeat(sorted_lengths)
    sorted_ids = np.zeros(padded, dtype=np.int64)
    if shift.any():
        ids = ids[starts[order].repeat(sorted_lengths) + positions[:num_tokens]]
    sorted_ids[:num_tokens] = ids
    token_types = None
    if pair_starts is not None:
        types = np.zeros(padded, dtype=np.int64)
        second = _int32s(pair_starts)[order].repeat(sorted_lengths)
        types[:num_tokens] = positions[:num_tokens] >= second
        token_types = _tensor(types, device)
    cu_seqlens_sorted = np.zeros(len(lengths) + 1, dtype=np.int32)
    cu_seqlens_sorted[1:] = sorted_ends
    return StepInputs(
        ids=_tensor(sorted_ids, device),
        context=ForwardContext(
            positions=_tensor(positions, device),
            token_types=token_types,
            attention=AttentionPlan(
                Backend.SDPA,
                cu_seqlens=_tensor(cu_seqlens_sorted, device),
                max_seqlen=int(sorted_lengths[-1]),
                groups=_groups(sorted_lengths.tolist()),
            ),
        ),
        segments=_segment_table(spans, shift, cu_seqlens, device),
        formats=formats,
        padding_tokens=padded - num_tokens,
    )


def _one_whole(ids: Int32s, formats: Int32s, device: torch.device) -> StepInputs:
    """One sequence, pooled whole: what a query is. All but its ids is known by its length."""
    context, segments = _of_one(len(ids), device)
    padded = np.zeros(context.positions.shape[0], dtype=np.int64)
    padded[: len(ids)] = ids
    return StepInputs(
        ids=_tensor(padded, device),
        context=context,
        segments=segments,
        formats=formats,
        padding_tokens=len(padded) - len(ids),
    )


@lru_cache(maxsize=64)
def _of_one(num_tokens: int, device: torch.device) -> tuple[ForwardContext, SegmentTable]:
    positions = np.zeros(padded_tokens(num_tokens, device), dtype=np.int64)
    positions[:num_tokens] = np.arange(num_tokens)
    plan = AttentionPlan(
        Backend.SDPA,
        cu_seqlens=_tensor(np.array([0, num_tokens], dtype=np.int32), device),
        max_seqlen=num_tokens,
        groups=(LengthGroup(0, 1, num_tokens),),
    )
    bounds = np.array([0, num_tokens])
    segments = _segment_table(bounds[None], np.zeros(1, dtype=np.int64), bounds, device)
    return ForwardContext(_tensor(positions, device), None, plan), segments


def _groups(lengths: list[int]) -> tuple[LengthGroup, ...]:
    """Of sorted lengths; empty sequences attend to nothing."""
    groups: list[LengthGroup] = []
    start = 0
    for seqlen, equal in groupby(lengths):
        count = len(list(equal))
        if seqlen > 0:
            groups.append(LengthGroup(start, count, seqlen))
        start += count * seqlen
    return tuple(groups)


def _segment_table(
    spans: Int64s, shift: Int64s, cu_seqlens: Int64s, device: torch.device
) -> SegmentTable:
    """Segments in the sorted order of tokens. `shift`: how far each sequence moved, [num_sequences]."""
    firsts = spans[:, 0]
    lengths = spans[:, 1] - firsts
    sequence = cu_seqlens.searchsorted(firsts, side="right") - 1
    starts = firsts + shift[np.minimum(sequence, len(shift) - 1)]
    offsets = lengths.cumsum() - lengths
    return SegmentTable(
        starts=_tensor(starts, device),
        lengths=_tensor(lengths, device),
        offsets=_tensor(offsets, device),
        token_index=_tensor((starts - offsets).repeat(lengths) + np.arange(lengths.sum()), device),
        first_positions=_tensor(firsts - cu_seqlens[sequence], device),
    )


def _int32s(buffer: bytearray) -> Int32s:
    return np.frombuffer(buffer, dtype=np.int32)


def _tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
