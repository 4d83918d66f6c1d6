"""Layers whose products are in 8 bits: each is made of a loaded layer in bfloat16. Called by models."""

from __future__ import annotations

from torch import Tensor

from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.attention import attention
from flowerbed.rose.kernels.rope import qk_norm_rope_
from flowerbed.rose.kernels.scaled_linear import (
    ScaledNormRopeWeights,
    fuses,
    gate_up_weights,
    scaled_linear,
    scaled_linear_activation,
    scaled_linear_norm_rope,
    scaled_linear_swiglu,
    scaled_norm_rope_weights,
    scaled_weight,
)
from flowerbed.rose.kernels.scaled_rows import ScaledRows, quantize_rows
from flowerbed.rose.layers.attention import SelfAttention
from flowerbed.rose.layers.linear import Linear
from flowerbed.rose.layers.mlp import FeedForward, GatedFeedForward
from flowerbed.rose.layers.rotary import RotaryAttention


class ScaledLinear:
    """x W^T + b."""

    def __init__(self, linear: Linear) -> None:
        """ConfigError if its sizes do not fit."""
        self.weight = scaled_weight(linear.weight)
        self.bias = linear.bias
        self.activation = linear.activation

    def __call__(self, x: ScaledRows) -> Tensor:
        """x: [num_rows, in_features]; returns [num_rows, out_features], without the activation."""
        return scaled_linear(x, self.weight, self.bias)

    def activated(self, x: ScaledRows) -> ScaledRows:
        """As a call, with the activation."""
        return scaled_linear_activation(x, self.weight, self.bias, self.activation)


class ScaledSelfAttention:
    """`SelfAttention`."""

    def __init__(self, plain: SelfAttention) -> None:
        self.qkv = ScaledLinear(plain.qkv)
        self.output = ScaledLinear(plain.output)
        self.num_heads = plain.num_heads

    def __call__(self, x: ScaledRows, context: ForwardContext) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        query, key, value = self.qkv(x).unflatten(1, (3, self.num_heads, -1)).unbind(1)
        return self.output(quantize_rows(attention(query, key, value, context.attention)))


class ScaledRotaryAttention:
    """`RotaryAttention`."""

    def __init__(self, plain: RotaryAttention) -> None:
        self.shape = plain.shape
        self.tables = plain.tables
        self.query_norm, self.key_norm = plain.query_norm, plain.key_norm
        self.qkv: ScaledLinear | ScaledNormRopeWeights = ScaledLinear(plain.qkv)
        if plain.fused is not None and fuses(plain.fused.rows):
            self.qkv = scaled_norm_rope_weights(plain.fused)
        self.output = ScaledLinear(plain.output)

    def __call__(self, x: ScaledRows, context: ForwardContext) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        shape = self.shape
        heads = (shape.num_heads, shape.num_kv_heads)
        qkv = self._turned(x, context.positions, heads)
        query, key, value = qkv.unflatten(1, (-1, shape.head_dim)).split((*heads, heads[1]), dim=1)
        mixed = attention(
            query, key, value, context.attention, causal=shape.causal, window=shape.window
        )
        return self.output(quantize_rows(mixed))

    def _turned(self, x: ScaledRows, positions: Tensor, heads: tuple[int, int]) -> Tensor:
        """Queries, keys and values, [num_tokens, width]; the first two normed and rotated."""
        if isinstance(self.qkv, ScaledNormRopeWeights):
            return scaled_linear_norm_rope(x, self.qkv, positions)
        qkv = self.qkv(x)
        norms = (self.query_norm, self.key_norm)
        qk_norm_rope_(qkv, positions, *self.tables, *norms, self.shape.eps, *heads)
        return qkv


class ScaledFeedForward:
    """`FeedForward`."""

    def __init__(self, plain: FeedForward) -> None:
        self.up = ScaledLinear(plain.up)
        self.down = ScaledLinear(plain.down)

    def __call__(self, x: ScaledRows) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        return self.down(self.up.activated(x))


class ScaledGatedFeedForward:
    """`GatedFeedForward`."""

    def __init__(self, plain: GatedFeedForward) -> None:
        self.gate_up = gate_up_weights(plain.gate_up.weight)
        self.down = ScaledLinear(plain.down)

    def __call__(self, x: ScaledRows) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        return self.down(scaled_linear_swiglu(x, self.gate_up))
