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
    token_index: Tensor  # [num_pooled] int64, tokens of the first segment, then of the second, ...
    row_index: Tensor  # [num_pooled] int64, segment of each of them
    positions: Tensor  # [num_pooled] int64, place of each in its sequence, from 0


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
    is_empty = (table.lengths == 0).unsqueeze(1)
    parts = [POOLERS[mode](hidden, table).masked_fill_(is_empty, 0.0) for mode in modes]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _sum(values: Tensor, table: SegmentTable) -> Tensor:
    total = values.new_zeros(table.lengths.shape[0], values.shape[1], dtype=torch.float32)
    return total.index_add_(0, table.row_index, values.float())


def _at(hidden: Tensor, tokens: Tensor) -> Tensor:
    """Rows of the given tokens; the clamp only meets empty segments, whose rows are zeroed."""
    return hidden.index_select(0, tokens.clamp(0, hidden.shape[0] - 1)).float()


def _cls(hidden: Tensor, table: SegmentTable) -> Tensor:
    return _at(hidden, table.starts)


def _last(hidden: Tensor, table: SegmentTable) -> Tensor:
    return _at(hidden, table.starts + table.lengths - 1)


def _max(hidden: Tensor, table: SegmentTable) -> Tensor:
    values = hidden.index_select(0, table.token_index).float()
    return torch.segment_reduce(values, "max", lengths=table.lengths, unsafe=True)


def _mean(hidden: Tensor, table: SegmentTable) -> Tensor:
    total = _sum(hidden.index_select(0, table.token_index), table)
    return total / table.lengths.clamp_min(1).unsqueeze(1)


def _mean_sqrt_length(hidden: Tensor, table: SegmentTable) -> Tensor:
    total = _sum(hidden.index_select(0, table.token_index), table)
    return total / table.lengths.clamp_min(1).sqrt().unsqueeze(1)


def _weighted_mean(hidden: Tensor, table: SegmentTable) -> Tensor:
    weights = (table.positions + 1).float().unsqueeze(1)
    total = _sum(hidden.index_select(0, table.token_index).float() * weights, table)
    return total / _sum(weights, table).clamp_min(1.0)


POOLERS: dict[str, Callable[[Tensor, SegmentTable], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_length,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def pool_segments(
    hidden: Tensor, segments: Tensor, cu_seqlens: Tensor, modes: tuple[str, ...]
) -> Tensor:
    """`pool` by tables on the device, so that a CUDA graph may hold it.

    Args:
        hidden: [num_tokens, hidden], the last axis contiguous.
        segments: [num_segments, 2] int32, first token and the one after the last; an empty segment
            gives a zero row.
        cu_seqlens: [num_sequences + 1] int32, for the positions of weightedmean.
        modes: Keys of `POOLERS`.

    Returns:
        [num_segments, hidden * len(modes)] float32.
    """
    if use_triton(hidden):
        from flowerbed.rose.kernels import triton_pooling

        return triton_pooling.pool_segments(hidden, segments, cu_seqlens, modes)
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
