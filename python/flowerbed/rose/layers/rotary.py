"""Self-attention with rotary positions and shared keys and values, with its weights. Called by models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.attention import attention
from flowerbed.rose.kernels.fused_linear import (
    fuses_norm_rope,
    fuses_products,
    invariant_linear,
    linear_norm_rope,
)
from flowerbed.rose.kernels.norm_rope import HEAD_DIM, norm_rope_, norm_rope_weights
from flowerbed.rose.kernels.rope import qk_norm_rope_
from flowerbed.rose.kernels.short_attention import short_attention
from flowerbed.rose.kernels.short_sequences import MAX_BLOCK_SEQLEN, attend_short_sequences
from flowerbed.rose.kernels.small_linear import small_linear, small_linear_parts
from flowerbed.rose.layers.linear import Linear
from flowerbed.rose.weights import Weights

RopeTables = tuple[Tensor, Tensor]
"""Cosines and sines of `kernels.rope.rope_tables`; all layers of a model share them."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention of one layer is made of."""

    hidden: int
    num_heads: int  # of queries
    num_kv_heads: int  # of keys and of values; each serves num_heads / num_kv_heads queries
    head_dim: int
    eps: float  # of the norms of queries and keys
    theta: float  # base of the rotary angles
    causal: bool  # a token sees what is before it, not what is after
    window: int | None  # tokens that it sees to each side that it sees; None: all


class RotaryAttention:
    """Queries, keys and values in one product; a norm and a rotation of each query and key head."""

    def __init__(
        self, weights: Weights, name: str, shape: AttentionShape, tables: RopeTables
    ) -> None:
        """Takes `name`.{q,k,v,o}_proj and `name`.{q,k}_norm."""
        self.shape = shape
        self.tables = tables
        width, kv_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        rows = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
        parts = [weights.take(f"{name}.{part}.weight", n, shape.hidden) for part, n in rows.items()]
        self.qkv = Linear(torch.cat(parts), None)
        self.query_norm = weights.take(f"{name}.q_norm.weight", shape.head_dim)
        self.key_norm = weights.take(f"{name}.k_norm.weight", shape.head_dim)
        self.fused = None  # a second copy of the weight in another order, for large steps and batch-invariant ones
        if shape.head_dim == HEAD_DIM and fuses_products(
            self.qkv.weight.device, self.qkv.weight.dtype
        ):
            self.fused = norm_rope_weights(
                self.qkv.weight,
                (self.query_norm, self.key_norm),
                (shape.num_heads, shape.num_kv_heads),
                shape.theta,
                shape.eps,
            )
        self.output = Linear(weights.take(f"{name}.o_proj.weight", shape.hidden, width), None)

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        shape = self.shape
        heads = (shape.num_heads, shape.num_kv_heads)
        fixed = context.batch_invariant
        if self.fused is not None and fuses_norm_rope(x, self.fused, batch_invariant=fixed):
            qkv = linear_norm_rope(x, self.fused, context.positions)
        else:
            qkv = self.qkv(x, batch_invariant=fixed)
            qk_norm_rope_(
                qkv,
                context.positions,
                *self.tables,
                self.query_norm,
                self.key_norm,
                shape.eps,
                *heads,
            )
        query, key, value = qkv.view(x.shape[0], -1, shape.head_dim).split(
            (*heads, heads[1]), dim=1
        )
        mixed = attention(
            query, key, value, context.attention, causal=shape.causal, window=shape.window
        )
        return self.output(mixed, batch_invariant=fixed)

    def invariant_step(self, x: Tensor, context: ForwardContext) -> Tensor:
        """As a call with the same bits, for x that `small_linear.is_small_step` accepts."""
        shape, weights = self.shape, self.fused
        fits = shape.window is None and x.shape[0] <= MAX_BLOCK_SEQLEN
        if weights is None or not (fits and fuses_norm_rope(x, weights, batch_invariant=True)):
            return self(x, context)
        heads = (shape.num_heads, shape.num_kv_heads)
        qkv = small_linear(x, weights.rows)
        norm_rope_(qkv, weights, context.positions, heads)
        query, key, value = qkv.view(x.shape[0], -1, HEAD_DIM).split((*heads, heads[1]), dim=1)
        mixed = attend_short_sequences(
            query,
            key,
            value,
            context.attention.cu_seqlens,
            max_seqlen=x.shape[0],
            causal=shape.causal,
            window=None,
        )
        return invariant_linear(mixed, self.output.weight, None)

    def small_step(self, x: Tensor, context: ForwardContext) -> Tensor:
        """As a call, for x that `small_linear.is_small_step` accepts; returns parts to be added up."""
        shape = self.shape
        mixed = short_attention(
            small_linear(x, self.qkv.weight),
            context.positions,
            *self.tables,
            self.query_norm,
            self.key_norm,
            shape.eps,
            shape.num_heads,
            shape.num_kv_heads,
            causal=shape.causal,
            window=shape.window,
        )
        return small_linear_parts(mixed, self.output.weight)
