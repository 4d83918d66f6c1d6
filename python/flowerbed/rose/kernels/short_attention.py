"""Attention of steps of few tokens, with norm and rotation of queries and keys in the same kernel or without.

All tokens of the step are one block of keys, with a mask for the sequences. Knows no models. Called by
`layers.rotary` and `layers.attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.rope import qk_norm_rope_

MAX_PLAIN_HEAD = 128
"""Columns of a head that `plain_short_attention` serves: registers hold no more beside 128 keys, and half beside 256."""


def short_attention(  # noqa: PLR0913 - tensors, not settings
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    """`attention` of the queries, keys and values that `qk_norm_rope_` leaves in qkv.

    A token's sequence is told by its place less its position. qkv may be overwritten.

    Args:
        qkv: As in `rope.qk_norm_rope_`, with all up to num_kv_heads.
        positions: [num_tokens] integer, counted from each sequence's start.
        cos: [num_positions, head_dim / 2] float32.
        sin: Likewise.
        q_weight: [head_dim].
        k_weight: [head_dim].
        eps: Of the norms.
        num_heads: Of queries.
        num_kv_heads: Of keys and of values.
        causal: As in `attention.attention`.
        window: Likewise.

    Returns:
        [num_tokens, num_heads * head_dim], dtype of qkv; finite for padding tokens, too.
    """
    if use_triton(qkv):
        from flowerbed.rose.kernels import triton_short_attention

        return triton_short_attention.short_attention(
            qkv,
            positions,
            (cos, sin),
            (q_weight, k_weight),
            eps,
            (num_heads, num_kv_heads),
            causal=causal,
            window=window,
        )
    heads = (num_heads, num_kv_heads)
    qk_norm_rope_(qkv, positions, cos, sin, q_weight, k_weight, eps, *heads)
    head_dim = 2 * cos.shape[1]
    return _attend(qkv, positions, heads, head_dim, causal=causal, window=window)


def plain_short_attention(qkv: Tensor, positions: Tensor, num_heads: int) -> Tensor:
    """`attention`, in both directions, of queries, keys and values as they are.

    Args:
        qkv: [num_tokens, 3 * num_heads * head_dim], head_dim up to `MAX_PLAIN_HEAD`.
        positions: As for `short_attention`.
        num_heads: Of queries, of keys and of values.

    Returns:
        As `short_attention`.
    """
    if use_triton(qkv):
        from flowerbed.rose.kernels import triton_short_attention

        return triton_short_attention.plain_short_attention(qkv, positions, num_heads)
    head_dim = qkv.shape[1] // (3 * num_heads)
    heads = (num_heads, num_heads)
    return _attend(qkv, positions, heads, head_dim, causal=False, window=None)


def _attend(
    qkv: Tensor,
    positions: Tensor,
    heads: tuple[int, int],
    head_dim: int,
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    num_tokens = qkv.shape[0]
    query, key, value = (
        part.transpose(0, 1)
        for part in qkv.view(num_tokens, -1, head_dim).split((*heads, heads[1]), dim=1)
    )
    place = torch.arange(num_tokens, device=qkv.device)
    starts = place - positions
    ahead = place[None, :] - place[:, None]
    is_seen = starts[None, :] == starts[:, None]
    if causal:
        is_seen &= ahead <= 0
    if window is not None:
        is_seen &= ahead.abs() <= window
    mixed = functional.scaled_dot_product_attention(query, key, value, is_seen, enable_gqa=True)
    return mixed.transpose(0, 1).reshape(num_tokens, -1)
