"""`positions` in Triton, one launch each: a binary search a token; a count over the tokens before."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase

BLOCK_TOKENS = 128
CHUNK = 1_024
"""Tokens before a block that are counted at once."""


@triton.jit
def find_sequence(cu_seqlens, num_sequences, tokens, NUM_STEPS: tl.constexpr):
    """Index of the sequence that holds each token; num_sequences for padding tokens.

    It is the number of sequences that end at or before the token. NUM_STEPS: bits of num_sequences.
    """
    low = tokens * 0
    high = low + num_sequences
    for _ in tl.static_range(NUM_STEPS):
        middle = (low + high) // 2
        is_open = low < high
        end = tl.load(cu_seqlens + 1 + middle, mask=is_open, other=0)
        is_after = is_open & (end <= tokens)
        low = tl.where(is_after, middle + 1, low)
        high = tl.where(is_open & (end > tokens), middle, high)
    return low


@triton.jit(
    do_not_specialize=["num_sequences", "num_tokens"],
    do_not_specialize_on_alignment=["cu_seqlens", "pair_starts"],
)
def _places_kernel(
    cu_seqlens,
    pair_starts,
    positions,
    types,
    num_sequences,
    num_tokens,
    NUM_STEPS: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sequence = find_sequence(cu_seqlens, num_sequences, tokens, NUM_STEPS)
    is_real = sequence < num_sequences
    start = tl.load(cu_seqlens + sequence, mask=is_real, other=0)
    position = tl.where(is_real, tokens - start, 0)
    tl.store(positions + tokens, position, mask=tokens < num_tokens)
    if HAS_PAIRS:
        second = tl.load(pair_starts + sequence, mask=is_real, other=0)
        is_second = is_real & (position >= second)
        tl.store(types + tokens, is_second.to(tl.int32), mask=tokens < num_tokens)


@triton.jit(do_not_specialize=["num_tokens", "padding_id"])
def _places_after_padding_kernel(
    ids, positions, out, num_tokens, padding_id, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):
    first = tl.program_id(0) * BLOCK
    tokens = first + tl.arange(0, BLOCK)
    mask = tokens < num_tokens
    is_text = (tl.load(ids + tokens, mask, other=padding_id) != padding_id).to(tl.int32)
    start = tokens - tl.load(positions + tokens, mask, other=0)
    is_before = (start[:, None] <= tokens[None, :]) & (tokens[None, :] <= tokens[:, None])
    count = tl.sum(tl.where(is_before, is_text[None, :], 0), axis=1)
    place = first - tl.load(positions + first)  # where the block's first sequence starts
    earlier = 0
    while place < first:
        others = place + tl.arange(0, CHUNK)
        other_ids = tl.load(ids + others, others < first, other=padding_id)
        earlier += tl.sum((other_ids != padding_id).to(tl.int32), axis=0)
        place += CHUNK
    count += tl.where(start < first, earlier, 0)
    tl.store(out + tokens, padding_id + count * is_text, mask)


def search_steps(num_sequences: int) -> int:
    """NUM_STEPS of `find_sequence`, one of few values so that few kernels are compiled."""
    steps = num_sequences.bit_length()
    return steps + steps % 2


def token_places(
    cu_seqlens: Tensor, pair_starts: Tensor | None, num_tokens: int
) -> tuple[Tensor, Tensor | None]:
    """See `positions.token_places`."""
    num_sequences = cu_seqlens.shape[0] - 1
    positions = torch.empty(num_tokens, dtype=torch.int32, device=cu_seqlens.device)
    types = None if pair_starts is None else torch.empty_like(positions)
    _places_kernel[(triton.cdiv(num_tokens, BLOCK_TOKENS),)](
        cu_seqlens,
        pair_starts,
        positions,
        types,
        num_sequences,
        num_tokens,
        NUM_STEPS=search_steps(num_sequences),
        HAS_PAIRS=pair_starts is not None,
        BLOCK=BLOCK_TOKENS,
    )
    return positions, types


def places_after_padding(ids: Tensor, positions: Tensor, padding_id: int) -> Tensor:
    """See `positions.places_after_padding`."""
    num_tokens = ids.shape[0]
    out = torch.empty(num_tokens, dtype=torch.int32, device=ids.device)
    _places_after_padding_kernel[(triton.cdiv(num_tokens, BLOCK_TOKENS),)](
        ids, positions, out, num_tokens, padding_id, BLOCK=BLOCK_TOKENS, CHUNK=CHUNK
    )
    return out


_TYPES = {
    "cu_seqlens": "*i32",
    "positions": "*i32",
    "num_sequences": "i32",
    "num_tokens": "i32",
}
_SIZES = {"NUM_STEPS": 6, "BLOCK": BLOCK_TOKENS}
COMPILE_CASES = {
    "_places_kernel": [
        CompileCase(
            {**_TYPES, "pair_starts": "*i32", "types": "*i32"}, {"HAS_PAIRS": True, **_SIZES}
        ),
        CompileCase(_TYPES, {"HAS_PAIRS": False, "pair_starts": None, "types": None, **_SIZES}),
    ],
    "_places_after_padding_kernel": [
        CompileCase(
            {
                **dict.fromkeys(("ids", "positions", "out"), "*i32"),
                "num_tokens": "i32",
                "padding_id": "i32",
            },
            {"BLOCK": BLOCK_TOKENS, "CHUNK": CHUNK},
        )
    ],
}
