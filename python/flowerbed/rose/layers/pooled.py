"""From hidden states to rows: pooled vectors, or the tokens' own. Called by `engine`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flowerbed.folder import Dense, ModelFolder, Normalize
from flowerbed.rose.kernels.norm import normalize_rows
from flowerbed.rose.kernels.pooling import SegmentTable, pool
from flowerbed.rose.layers.linear import Linear
from flowerbed.rose.weights import Weights


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

    def __call__(self, hidden: Tensor, segments: SegmentTable) -> Tensor:
        """hidden: [num_tokens, hidden]; returns [num_segments, dimensions] float32."""
        rows = pool(hidden, segments, self.modes)
        for step in self.steps:
            rows = step(rows)
        return rows


def token_rows(hidden: Tensor, segments: SegmentTable) -> Tensor:
    """Hidden states of segments of one token each, as they are.

    Args:
        hidden: [num_tokens, hidden].
        segments: The tokens, as `inputs.prepare` checked them.

    Returns:
        [num_segments, hidden] float32.
    """
    return hidden.index_select(0, segments.starts).float()


def _dense(folder: ModelFolder, dense: Dense, device: torch.device) -> Linear:
    with Weights(folder.files(), dense.prefix, dtype=torch.float32, device=device) as weights:
        weight = weights.take("linear.weight", dense.out_features, dense.in_features)
        bias = weights.take("linear.bias", dense.out_features) if dense.bias else None
        weights.finish()
    return Linear(weight, bias, dense.activation.lower())


def _leading(dimensions: int) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows[:, :dimensions]
