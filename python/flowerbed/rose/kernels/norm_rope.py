"""The norm of query and key heads and their rotation, as products do both before they write: weights and reference.

Neighbouring columns rotate, heads have 128 of them. Knows no models. Called by `layers.rotary` and `fused_linear`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from flowerbed.rose.kernels.backend import use_triton

HEAD_DIM = 128
"""The head size that the kernel with norm and rotation serves: columns of its tile."""


class NormRopeWeights(NamedTuple):
    """Weights of queries, keys and values for `fused_linear.linear_norm_rope`.

    Pairs that rotate are neighbours: row 2i of a query or key head was row i, row 2i + 1 row i + 64. Both
    have the same order, so that their products are as before.
    """

    rows: Tensor  # [(num_heads + 2 * num_kv_heads) * 128, in_features]
    norm: Tensor  # [rows] float32: weight of the head's norm; 0 for values
    keep: Tensor  # [rows] float32: 1 for values, else 0
    frequency: Tensor  # [rows] float32: turns per position of a pair, and what fp32 lacks of it
    eps: float


def norm_rope(sums: Tensor, weights: NormRopeWeights, positions: Tensor) -> Tensor:
    """What `fused_linear.linear_norm_rope` does with its sums, [num_rows, rows of the weight]; by torch.

    positions: [num_rows] integer.
    """
    heads = sums.float().view(len(sums), -1, HEAD_DIM)
    scale = torch.rsqrt(heads.square().mean(-1, keepdim=True) + weights.eps)
    factors = scale * weights.norm.view(-1, HEAD_DIM) + weights.keep.view(-1, HEAD_DIM)
    first, second = (heads * factors).view(len(sums), -1, 2).unbind(-1)
    frequency = weights.frequency.double().view(-1, 2).sum(-1)
    angles = positions.double()[:, None] * frequency * (2 * math.pi)
    cos, sin = angles.cos().float(), angles.sin().float()
    pairs = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return pairs.view_as(sums).to(sums.dtype)


def norm_rope_(
    qkv: Tensor, weights: NormRopeWeights, positions: Tensor, heads: tuple[int, int]
) -> None:
    """`norm_rope` of 16-bit sums, in place, with the bits of `fused_linear.linear_norm_rope`.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * 128], the product of `weights.rows`.
        weights: Of that product.
        positions: [num_tokens] int32.
        heads: num_heads and num_kv_heads.
    """
    if use_triton(qkv):
        from flowerbed.rose.kernels import triton_norm_rope

        triton_norm_rope.norm_rope_(qkv, weights, positions, heads)
        return
    qkv.copy_(norm_rope(qkv, weights, positions))


def norm_rope_weights(
    weight: Tensor,
    norms: tuple[Tensor, Tensor],
    heads: tuple[int, int],
    theta: float,
    eps: float,
) -> NormRopeWeights:
    """Arranges weights for `fused_linear.linear_norm_rope`. The rows are a copy.

    Args:
        weight: [(num_heads + 2 * num_kv_heads) * 128, in_features]: queries, keys, values; as loaded.
        norms: Weights [128] of the norms of queries and of keys.
        heads: num_heads and num_kv_heads.
        theta: Base of the rotary angles, as in `rope_tables`.
        eps: Of the norms.
    """
    num_heads, num_kv_heads = heads
    order, keep, frequency = _columns(num_heads, num_kv_heads, theta, weight.device)
    parts = [
        norm.float().view(2, -1).T.reshape(-1).repeat(count)
        for norm, count in zip(norms, heads, strict=True)
    ]
    norm = torch.cat([*parts, torch.zeros(num_kv_heads * HEAD_DIM, device=weight.device)])
    return NormRopeWeights(weight[order], norm, keep, frequency, eps)


@cache
def _columns(
    num_heads: int, num_kv_heads: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Order of rows, and `keep` and `frequency` of `NormRopeWeights`; layers share them."""
    turned, values = (num_heads + num_kv_heads) * HEAD_DIM, num_kv_heads * HEAD_DIM
    pairs = torch.arange(turned).view(-1, 2, HEAD_DIM // 2).transpose(1, 2).reshape(-1)
    order = torch.cat([pairs, torch.arange(turned, turned + values)])
    exponents = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
    turns = (1.0 / theta**exponents).double() / (2 * math.pi)
    high = turns.float()
    low = (turns - high.double()).float()
    head = torch.stack((high, low), dim=-1).reshape(-1)
    frequency = torch.cat([head.repeat(num_heads + num_kv_heads), torch.zeros(values)])
    keep = torch.cat([torch.zeros(turned), torch.ones(values)])
    return order.to(device), keep.to(device), frequency.to(device)
