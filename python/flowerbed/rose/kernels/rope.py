"""Rotary position embeddings (Su et al., 2021), with or without a norm of each head before.

Pairs are (i, i + head_dim / 2) of a head, as in GPT-NeoX, Llama and Qwen. Arithmetic is in fp32;
results are rounded once. Knows no models. Called by `layers.rotary`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flowerbed.rose.kernels.backend import use_triton


def rope_tables(
    head_dim: int, theta: float, num_positions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position * theta^(-2i / head_dim), [num_positions, head_dim / 2] float32 each.

    They are computed on the CPU, so that all devices have the same.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return angles.cos().to(device), angles.sin().to(device)


def rope_(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int
) -> None:
    """Rotates queries and keys in place.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], queries, keys, values.
        positions: [num_tokens] int32 or int64, each with a row in the tables.
        cos: [num_positions, head_dim / 2] float32, from `rope_tables`.
        sin: Likewise.
        num_heads: Of queries.
        num_kv_heads: Of keys and of values.
    """
    if use_triton(qkv):
        from flowerbed.rose.kernels import triton_rope

        triton_rope.rope_(qkv, positions, cos, sin, num_heads, num_kv_heads)
        return
    heads = _heads(qkv, cos)[:, : num_heads + num_kv_heads]
    heads.copy_(_rotated(heads.float(), positions, cos, sin))


def qk_norm_rope_(  # noqa: PLR0913 - tensors, not settings
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    """`rope_` of rms_norm(head), in place.

    Args:
        qkv: As in `rope_`, with positions, cos, sin, num_heads and num_kv_heads.
        positions: [num_tokens].
        cos: [num_positions, head_dim / 2].
        sin: Likewise.
        q_weight: [head_dim], of the norm of each query head.
        k_weight: [head_dim], of the norm of each key head.
        eps: Added to the mean of squares.
        num_heads: Of queries.
        num_kv_heads: Of keys and of values.
    """
    if use_triton(qkv):
        from flowerbed.rose.kernels import triton_rope

        triton_rope.qk_norm_rope_(
            qkv, positions, cos, sin, q_weight, k_weight, eps, num_heads, num_kv_heads
        )
        return
    heads = _heads(qkv, cos)[:, : num_heads + num_kv_heads]
    values = heads.float()
    values = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    queries, keys = values.split((num_heads, num_kv_heads), dim=1)
    values = torch.cat((queries * q_weight.float(), keys * k_weight.float()), dim=1)
    heads.copy_(_rotated(values, positions, cos, sin))


def _heads(qkv: Tensor, cos: Tensor) -> Tensor:
    """[num_tokens, num_heads + 2 * num_kv_heads, head_dim]."""
    return qkv.view(qkv.shape[0], -1, 2 * cos.shape[1])


def _rotated(heads: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """heads: [num_tokens, any, head_dim] float32; returns a new tensor of that shape."""
    cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
