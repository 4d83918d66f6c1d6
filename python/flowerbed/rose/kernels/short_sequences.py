"""Ragged self-attention of steps whose sequences are all short: each is one block of queries and of keys.

Kernels for longer sequences work in tiles of 128 rows, most of which are empty then. Knows no models. Called
by `attention`.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.backend import use_triton

MAX_SHORT_SEQLEN = 64
"""Tokens of a short sequence."""
MAX_BLOCK_SEQLEN = 128
"""Tokens that there is a kernel for; in large steps flash-attn-4 is faster for more than 64."""


def attend_short_sequences(  # noqa: PLR0913 - tensors, not settings
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    *,
    max_seqlen: int,
    causal: bool,
    window: int | None,
) -> Tensor:
    """`attention.attention` of short sequences; same arguments and result.

    Args:
        query: [num_tokens, num_heads, head_dim]; heads of a token are contiguous, tokens need not be.
        key: [num_tokens, num_kv_heads, head_dim], likewise.
        value: [num_tokens, num_kv_heads, head_dim], likewise.
        cu_seqlens: [num_slots + 2] int32. The last sequence is padding, of any length.
        max_seqlen: No other sequence is longer; up to `MAX_BLOCK_SEQLEN`.
        causal: As in `attention.attention`.
        window: Likewise.

    Returns:
        [num_tokens, num_heads * head_dim], dtype of query; finite for padding tokens.
    """
    if use_triton(query):
        from flowerbed.rose.kernels import triton_short_sequences

        return triton_short_sequences.attend_short_sequences(
            query, key, value, cu_seqlens, max_seqlen=max_seqlen, causal=causal, window=window
        )
    out = query.new_zeros(query.shape)
    for start, end in pairwise(cu_seqlens[:-1].tolist()):
        if start == end:
            continue
        places = torch.arange(end - start, device=query.device)
        ahead = places[None, :] - places[:, None]
        reach = end - start if window is None else window
        is_seen = (ahead >= -reach) & (ahead <= (0 if causal else reach))
        q, k, v = (part[start:end].transpose(0, 1) for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_seen, enable_gqa=True)
        out[start:end] = mixed.transpose(0, 1)
    return out.flatten(1)
