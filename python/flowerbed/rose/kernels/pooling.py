"""Pools the tokens of each segment to one row, in fp32.

Knows no models and no files. Called by `layers.pooling`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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
