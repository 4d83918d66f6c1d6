"""Where each token of a step stands in its sequence.

Knows no models. Called by `inputs` and `models`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flowerbed.rose.kernels.backend import use_triton


def token_places(
    cu_seqlens: Tensor, pair_starts: Tensor | None, num_tokens: int
) -> tuple[Tensor, Tensor | None]:
    """Position and type of each token. Tokens past the last sequence are padding: both are 0.

    Args:
        cu_seqlens: [num_sequences + 1] int32, from 0, not falling; sequences may be empty.
        pair_starts: [num_sequences] int32, first token of each second text, counted from its
            sequence's start; None: no pairs.
        num_tokens: Padding included.

    Returns:
        Positions, counted from each sequence's start, and token types, 1 in a second text, or None;
        [num_tokens] int32 each.
    """
    if use_triton(cu_seqlens):
        from flowerbed.rose.kernels import triton_positions

        return triton_positions.token_places(cu_seqlens, pair_starts, num_tokens)
    tokens = torch.arange(num_tokens, dtype=torch.int32, device=cu_seqlens.device)
    sequences = torch.searchsorted(cu_seqlens[1:].contiguous(), tokens, right=True)
    is_padding = tokens >= cu_seqlens[-1]
    sequences = sequences.masked_fill(is_padding, 0)
    positions = (tokens - cu_seqlens[sequences]).masked_fill(is_padding, 0)
    if pair_starts is None:
        return positions, None
    types = (positions >= pair_starts[sequences]).int().masked_fill(is_padding, 0)
    return positions, types


def places_after_padding(ids: Tensor, positions: Tensor, padding_id: int) -> Tensor:
    """padding_id + how many tokens up to this one, in its sequence, are not padding; padding has padding_id.

    Args:
        ids: [num_tokens] integer, sequences end to end.
        positions: [num_tokens] integer, counted from each sequence's start.
        padding_id: Id of the padding token, which may stand in a caller's own ids.

    Returns:
        [num_tokens] integer.
    """
    if use_triton(ids):
        from flowerbed.rose.kernels import triton_positions

        return triton_positions.places_after_padding(ids, positions, padding_id)
    is_text = (ids != padding_id).long()
    count = is_text.cumsum(0)  # over the whole batch
    starts = torch.arange(len(ids), device=ids.device) - positions
    before = (count - is_text).index_select(0, starts)
    return (count - before) * is_text + padding_id
