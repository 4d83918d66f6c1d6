"""A batch as tensors, for steps that run as plain calls: checked, sorted by length, padded at the end.

Called by `grouped`; steps of a GPU take `staging` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowerbed.rose.inputs import Batch, ForwardContext, Int32s, Int64s, check_tables
from flowerbed.rose.kernels.attention import AttentionPlan, Backend, LengthGroup
from flowerbed.rose.kernels.pooling import SegmentTable


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One batch on the device, sequences sorted by length, padding tokens at the end."""

    ids: Tensor  # [num_tokens] int64
    context: ForwardContext
    segments: SegmentTable  # in the batch's own order
    formats: Int32s  # [num_rows, 5], host
    padding_tokens: int


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
    ids, cu_seqlens, spans, formats = check_tables(batch)
    pair_starts = batch.pair_starts()
    is_whole = pair_starts is None and batch.head != "tokens"
    if (
        is_whole
        and np.array_equal(cu_seqlens, [0, len(ids)])
        and np.array_equal(spans, [cu_seqlens])
    ):
        return _one_whole(ids, formats, device)
    cu_seqlens, spans = cu_seqlens.astype(np.int64), spans.astype(np.int64)
    starts, lengths = cu_seqlens[:-1], np.diff(cu_seqlens)
    num_tokens = len(ids)
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
        second = np.frombuffer(pair_starts, np.int32)[order].repeat(sorted_lengths)
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


def _tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
