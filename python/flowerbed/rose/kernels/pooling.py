"""Pools the tokens of each segment to one row, in fp32.

Knows no models and no files. Called by `layers.pooled`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flowerbed.rose.kernels.backend import use_triton


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Which tokens make which row. All tensors lie on the device of the hidden states."""

    starts: Tensor  # [num_segments] int64, first token
    lengths: Tensor  # [num_segments] int64, tokens; an empty segment gives a zero row
    offsets: Tensor  # [num_segments] int64, where its tokens begin in token_index
    token_index: Tensor  # [num_pooled] int64, tokens of the first segment, then of the second, ...
    first_positions: (
        Tensor  # [num_segments] int64, place of its first token in its sequence, from 0
    )


def pool(hidden: Tensor, table: SegmentTable, modes: tuple[str, ...]) -> Tensor:
    """Pools each segment in each of `modes` and joins the results.

    With tokens t of a segment, n of them, each at position p_t (from 0) of its sequence:
    cls = first t; lasttoken = last t; max = max t; mean = sum t / n;
    mean_sqrt_len_tokens = sum t / sqrt(n); weightedmean = sum (p_t + 1) t / sum (p_t + 1).

    Args:
        hidden: [num_tokens, hidden].
        table: The segments.
        modes: Keys of `POOLERS`.

    Returns:
        [num_segments, hidden * len(modes)] float32.
    """
    parts = [POOLERS[mode](hidden, table) for mode in modes]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _sum(hidden: Tensor, table: SegmentTable, weights: Tensor | None = None) -> Tensor:
    """Sum of each segment's tokens, by weights of [num_pooled] float32 if given; 0 for an empty one."""
    if table.token_index.shape[0] == 0:
        return hidden.new_zeros(table.lengths.shape[0], hidden.shape[1], dtype=torch.float32)
    sums, *_ = torch.embedding_bag(
        hidden.float(), table.token_index, table.offsets, per_sample_weights=weights
    )
    return sums


def _at(hidden: Tensor, tokens: Tensor) -> Tensor:
    """Rows of the given tokens; the clamp only meets empty segments, whose rows are zeroed."""
    return hidden.index_select(0, tokens.clamp(0, hidden.shape[0] - 1)).float()


def _zero_empty(rows: Tensor, table: SegmentTable) -> Tensor:
    return rows.masked_fill_((table.lengths == 0).unsqueeze(1), 0.0)


def _cls(hidden: Tensor, table: SegmentTable) -> Tensor:
    return _zero_empty(_at(hidden, table.starts), table)


def _last(hidden: Tensor, table: SegmentTable) -> Tensor:
    return _zero_empty(_at(hidden, table.starts + table.lengths - 1), table)


def _max(hidden: Tensor, table: SegmentTable) -> Tensor:
    values = hidden.index_select(0, table.token_index).float()
    rows = torch.segment_reduce(values, "max", lengths=table.lengths, unsafe=True)
    return _zero_empty(rows, table)


def _mean(hidden: Tensor, table: SegmentTable) -> Tensor:
    return _sum(hidden, table) / table.lengths.clamp_min(1).unsqueeze(1)


def _mean_sqrt_length(hidden: Tensor, table: SegmentTable) -> Tensor:
    return _sum(hidden, table) / table.lengths.clamp_min(1).sqrt().unsqueeze(1)


def _weighted_mean(hidden: Tensor, table: SegmentTable) -> Tensor:
    first, length = table.first_positions, table.lengths
    # Token t has place first + t - start; its weight is one more.
    ahead = (first + 1 - table.starts).repeat_interleave(length)
    total = _sum(hidden, table, (ahead + table.token_index).float())
    weight_sum = length * (2 * first + length + 1) // 2
    return total / weight_sum.clamp_min(1).unsqueeze(1)


POOLERS: dict[str, Callable[[Tensor, SegmentTable], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_length,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def pool_segments(
    hidden: Tensor,
    segments: Tensor,
    cu_seqlens: Tensor,
    modes: tuple[str, ...],
    max_length: int | None = None,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """`pool` by tables on the device, so that a CUDA graph may hold it.

    Args:
        hidden: [num_tokens, hidden], the last axis contiguous.
        segments: [num_segments, 2] int32, first token and the one after the last; an empty segment
            gives a zero row.
        cu_seqlens: [num_sequences + 1] int32, for the positions of weightedmean.
        modes: Keys of `POOLERS`.
        max_length: What kernels are chosen for, tokens of the longest segment; None: all of the step.
        batch_invariant: Sums are added up in an order that is the segment's alone.

    Returns:
        [num_segments, hidden * len(modes)] float32.
    """
    if use_triton(hidden):
        from flowerbed.rose.kernels import triton_pooling

        return triton_pooling.pool_segments(
            hidden, segments, cu_seqlens, modes, max_length, batch_invariant=batch_invariant
        )
    starts, ends = segments.long().unbind(1)
    tokens = torch.arange(hidden.shape[0], device=hidden.device)
    is_inside = (tokens >= starts.unsqueeze(1)) & (tokens < ends.unsqueeze(1))
    counts = (ends - starts).clamp_min(1).unsqueeze(1)
    parts: list[Tensor] = []
    for mode in modes:
        match mode:
            case "cls":
                part = _at(hidden, starts)
            case "lasttoken":
                part = _at(hidden, ends - 1)
            case "max":
                outside = ~is_inside.unsqueeze(2)
                part = torch.stack(
                    [
                        hidden.float().masked_fill(mask, float("-inf")).amax(dim=0)
                        for mask in outside
                    ]
                )
            case "weightedmean":
                sequences = torch.searchsorted(
                    cu_seqlens[1:].contiguous(), tokens.int(), right=True
                )
                weights = is_inside * (tokens + 1 - cu_seqlens[sequences]).float()
                total = _weighted_sum(hidden, weights)
                part = total / weights.sum(dim=1, keepdim=True).clamp_min(1.0)
            case _:
                total = _weighted_sum(hidden, is_inside.float())
                part = total / (counts if mode == "mean" else counts.sqrt())
        parts.append(part.masked_fill((starts == ends).unsqueeze(1), 0.0))
    return torch.cat(parts, dim=1)


def _weighted_sum(hidden: Tensor, weights: Tensor) -> Tensor:
    """Sum of the tokens by [num_segments, num_tokens] weights; NaN if one of them is not finite.

    Tokens of weight 0 add nothing, whatever they are.
    """
    is_finite = torch.isfinite(hidden).all(dim=1)
    clean = hidden.float().masked_fill(~is_finite.unsqueeze(1), 0.0)
    is_bad = ((weights != 0) & ~is_finite).any(dim=1, keepdim=True)
    return (weights @ clean).masked_fill(is_bad, float("nan"))
