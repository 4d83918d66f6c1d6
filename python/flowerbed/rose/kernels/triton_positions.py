"""`positions` in Triton: one binary search a token, one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase

BLOCK_TOKENS = 128


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
    ]
}
