"""Self-attention over packed sequences, with its weights. Called by models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.attention import attention
from flowerbed.rose.kernels.short_attention import MAX_PLAIN_HEAD, plain_short_attention
from flowerbed.rose.kernels.small_linear import small_linear, small_linear_parts
from flowerbed.rose.layers.linear import Linear
from flowerbed.rose.weights import Weights


@dataclass(frozen=True, slots=True)
class AttentionNames:
    """Checkpoint names of the four products."""

    query: str
    key: str
    value: str
    output: str


class SelfAttention:
    """Queries, keys and values in one product, attention in both directions, output product."""

    def __init__(
        self, weights: Weights, names: AttentionNames, hidden: int, num_heads: int
    ) -> None:
        inputs = (names.query, names.key, names.value)
        self.qkv = Linear(
            torch.cat([weights.take(f"{name}.weight", hidden, hidden) for name in inputs]),
            torch.cat([weights.take(f"{name}.bias", hidden) for name in inputs]),
        )
        self.output = Linear(
            weights.take(f"{names.output}.weight", hidden, hidden),
            weights.take(f"{names.output}.bias", hidden),
        )
        self.num_heads = num_heads
        self.has_small_step = hidden // num_heads <= MAX_PLAIN_HEAD

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        fixed = context.batch_invariant
        qkv = self.qkv(x, batch_invariant=fixed)
        query, key, value = qkv.view(x.shape[0], 3, self.num_heads, -1).unbind(1)
        mixed = attention(query, key, value, context.attention)
        return self.output(mixed, batch_invariant=fixed)

    def small_step(self, x: Tensor, context: ForwardContext) -> Tensor:
        """As a call, for x that `small_linear.is_small_step` accepts; returns parts to be added up."""
        qkv = small_linear(x, self.qkv.weight, self.qkv.bias)
        mixed = plain_short_attention(qkv, context.positions, self.num_heads)
        return small_linear_parts(mixed, self.output.weight, self.output.bias)
