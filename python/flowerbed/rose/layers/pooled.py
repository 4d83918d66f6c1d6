"""From hidden states to rows: pooled vectors, or the tokens' own. Called by `engine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flowerbed.folder import Dense, ModelFolder, Normalize
from flowerbed.rose.kernels.norm import normalize_rows
from flowerbed.rose.kernels.pooling import SegmentTable, pool, pool_segments
from flowerbed.rose.layers.linear import Linear
from flowerbed.rose.weights import Weights

EMBED_HEAD = "embed"
"""The head whose rows a model's own quantizer is meant for."""


@dataclass(frozen=True, slots=True)
class SegmentSpans:
    """Which tokens make which row, on a device that reads it there. Unused rows are empty."""

    table: Tensor  # [num_rows, 2] int32, first token and the one after the last
    cu_seqlens: Tensor  # [num_slots + 1] int32
    max_seqlen: int  # no sequence is longer
    batch_invariant: bool = False  # rows have the same bits whatever else is in the step


Segments = SegmentTable | SegmentSpans
Head = Callable[[Tensor, Segments], Tensor]
"""Hidden states and segments to rows, [num_segments, width] float32."""


class EmbedHead:
    """Pools each segment, then applies Dense, Normalize and Truncate in the folder's order, in fp32.

    A Normalize at the folder's end is not applied here: rows are normalised when they are packed,
    so that a request may turn it off.
    """

    def __init__(self, folder: ModelFolder, device: torch.device) -> None:
        """Loads the Dense modules' weights; ModelError if they do not fit."""
        self.modes = folder.pooling
        self.steps: list[Callable[[Tensor], Tensor]] = []
        for module in folder.after_pooling:
            if isinstance(module, Dense):
                self.steps.append(_dense(folder, module, device))
            elif isinstance(module, Normalize):
                self.steps.append(normalize_rows)
            else:
                self.steps.append(_leading(module.dimensions))

    def __call__(self, hidden: Tensor, segments: Segments) -> Tensor:
        """hidden: [num_tokens, hidden]; returns [num_segments, dimensions] float32."""
        if isinstance(segments, SegmentTable):
            rows = pool(hidden, segments, self.modes)
            fixed = False
        else:
            fixed = segments.batch_invariant
            rows = pool_segments(
                hidden,
                segments.table,
                segments.cu_seqlens,
                self.modes,
                segments.max_seqlen,
                batch_invariant=fixed,
            )
        for step in self.steps:
            rows = step(rows, batch_invariant=fixed) if isinstance(step, Linear) else step(rows)
        return rows


def token_rows(hidden: Tensor, segments: Segments) -> Tensor:
    """Hidden states of segments of one token each, as they are.

    Args:
        hidden: [num_tokens, hidden].
        segments: The tokens, as `prepare.prepare` checked them.

    Returns:
        [num_segments, hidden] float32.
    """
    starts = segments.starts if isinstance(segments, SegmentTable) else segments.table[:, 0]
    return hidden.index_select(0, starts).float()


def _dense(folder: ModelFolder, dense: Dense, device: torch.device) -> Linear:
    with Weights(folder.files(), dense.prefix, dtype=torch.float32, device=device) as weights:
        weight = weights.take("linear.weight", dense.out_features, dense.in_features)
        bias = weights.take("linear.bias", dense.out_features) if dense.bias else None
        weights.finish()
    return Linear(weight, bias, dense.activation.lower())


def _leading(dimensions: int) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows[:, :dimensions]
