"""Ragged self-attention: sequences packed end to end, none sees another.

Knows no models. Called by `layers.attention`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class LengthGroup(NamedTuple):
    """Neighbouring sequences of one length, which one call can attend together."""

    start: int  # first token
    num_sequences: int
    seqlen: int  # tokens of each


def attention(qkv: Tensor, groups: tuple[LengthGroup, ...]) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v for each sequence and head, in both directions.

    Args:
        qkv: [num_tokens, 3, num_heads, head_dim], queries, keys and values.
        groups: Cover the real tokens from the first on, without gaps; later ones are padding.

    Returns:
        [num_tokens, num_heads * head_dim], dtype of qkv; rows of padding tokens are zero.
    """
    num_tokens, _, num_heads, head_dim = qkv.shape
    parts: list[Tensor] = []
    end = 0
    for start, num_sequences, seqlen in groups:
        end = start + num_sequences * seqlen
        heads = qkv[start:end].view(num_sequences, seqlen, 3, num_heads, head_dim)
        query, key, value = heads.permute(
            2, 0, 3, 1, 4
        )  # each [sequences, heads, seqlen, head_dim]
        mixed = functional.scaled_dot_product_attention(query, key, value)
        parts.append(mixed.transpose(1, 2).reshape(end - start, num_heads * head_dim))
    if end < num_tokens:
        parts.append(qkv.new_zeros(num_tokens - end, num_heads * head_dim))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
