"""`rope` in Triton: all query and key heads of a token in one program, one launch.

Programs begin with the last tokens, which the product before them has left in the L2 cache.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import (
    MAX_WARPS,
    WARP_BYTES,
    check_contiguous,
    has_many_rows,
    power_of_two,
)


@triton.jit
def _load_heads(
    qkv, FIRST: tl.constexpr, NUM_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr
):
    """Heads of a token from the FIRST on, [heads, pairs] fp32 each half; their places and columns; mask.

    BLOCK is the powers of two that hold NUM_HEADS and HALF. All have one shape, so that everything is
    loaded in the one layout that it is used in.
    """
    heads = tl.arange(0, BLOCK[0])[:, None]
    columns = tl.arange(0, BLOCK[1])[None, :]
    mask = (heads < NUM_HEADS) & (columns < HALF)
    places = (FIRST + heads) * (2 * HALF) + columns
    first = tl.load(qkv + places, mask, other=0.0).to(tl.float32)
    second = tl.load(qkv + HALF + places, mask, other=0.0).to(tl.float32)
    return first, second, places, tl.broadcast_to(columns, BLOCK[0], BLOCK[1]), mask


@triton.jit
def _turn_heads(
    qkv,
    loaded,
    cos,
    sin,
    weight,
    eps,
    HAS_NORM: tl.constexpr,
    HALF: tl.constexpr,
):
    """Normalises and rotates what `_load_heads` loaded, and stores it. cos, sin: rows of the token."""
    first, second, places, columns, mask = loaded
    c = tl.load(cos + columns, mask, other=0.0)
    s = tl.load(sin + columns, mask, other=0.0)
    if HAS_NORM:
        first_scale = tl.load(weight + columns, mask, other=0.0).to(tl.float32)
        second_scale = tl.load(weight + HALF + columns, mask, other=0.0).to(tl.float32)
        squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)
        first = first * scale * first_scale
        second = second * scale * second_scale
    dtype = qkv.dtype.element_ty
    tl.store(qkv + places, (first * c - second * s).to(dtype), mask)
    tl.store(qkv + HALF + places, (second * c + first * s).to(dtype), mask)


@triton.jit
def _rope_kernel(
    qkv,
    positions,
    cos,
    sin,
    q_weight,
    k_weight,
    eps,
    HAS_NORM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    KV_BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
):
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    token = program // 2 if SPLIT else program
    qkv += token.to(tl.int64) * ((NUM_HEADS + 2 * NUM_KV_HEADS) * 2 * HALF)
    row = tl.load(positions + token).to(tl.int64) * HALF
    cos += row
    sin += row
    if SPLIT:
        if program % 2 == 0:
            queries = _load_heads(qkv, 0, NUM_HEADS, HALF, BLOCK)
            _turn_heads(qkv, queries, cos, sin, q_weight, eps, HAS_NORM, HALF)
        else:
            keys = _load_heads(qkv, NUM_HEADS, NUM_KV_HEADS, HALF, KV_BLOCK)
            _turn_heads(qkv, keys, cos, sin, k_weight, eps, HAS_NORM, HALF)
    else:
        # All loads before the first store, which would hold them up.
        queries = _load_heads(qkv, 0, NUM_HEADS, HALF, BLOCK)
        keys = _load_heads(qkv, NUM_HEADS, NUM_KV_HEADS, HALF, KV_BLOCK)
        _turn_heads(qkv, queries, cos, sin, q_weight, eps, HAS_NORM, HALF)
        _turn_heads(qkv, keys, cos, sin, k_weight, eps, HAS_NORM, HALF)


class _Form(NamedTuple):
    """How a program takes its token."""

    block: tuple[int, int]
    kv_block: tuple[int, int]
    split: bool
    num_warps: int


def rope_(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int
) -> None:
    """See `rope.rope_`."""
    _launch(qkv, positions, cos, sin, None, 0.0, num_heads, num_kv_heads)


def qk_norm_rope_(
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
    """See `rope.qk_norm_rope_`."""
    _launch(qkv, positions, cos, sin, (q_weight, k_weight), eps, num_heads, num_kv_heads)


def _launch(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: tuple[Tensor, Tensor] | None,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
) -> None:
    check_contiguous("qkv", qkv)
    num_tokens, half = qkv.shape[0], cos.shape[1]
    form = _form(qkv, num_heads, num_kv_heads, half)
    q_weight, k_weight = (qkv, qkv) if weights is None else weights
    _rope_kernel[(2 * num_tokens if form.split else num_tokens,)](
        qkv,
        positions,
        cos,
        sin,
        q_weight,
        k_weight,
        eps,
        HAS_NORM=weights is not None,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=half,
        BLOCK=form.block,
        KV_BLOCK=form.kv_block,
        SPLIT=form.split,
        num_warps=form.num_warps,
    )


def _form(qkv: Tensor, num_heads: int, num_kv_heads: int, half: int) -> _Form:
    """Of [num_tokens, any]; half: columns of half a head. A head's sum has one order in both forms."""
    block = (power_of_two(num_heads), power_of_two(half))
    # Tokens enough: two vectors a thread of each half of the queries. Few: one, and programs of their
    # own for queries and keys, since the step waits for a single program's latency.
    split = not has_many_rows(qkv)
    row_bytes = block[1] * qkv.element_size()
    num_warps = block[0] * row_bytes // (WARP_BYTES if split else 2 * WARP_BYTES)
    num_warps = min(max(1, num_warps), MAX_WARPS)
    # With fewer keys than a vector a thread, more threads would share out a key, as they do not in the other form.
    kv_heads = max(power_of_two(num_kv_heads), num_warps * WARP_BYTES // row_bytes)
    return _Form(block, (kv_heads, block[1]), split, num_warps)


_TYPES = {
    "qkv": "*x",
    "positions": "*i32",
    "cos": "*fp32",
    "sin": "*fp32",
    "q_weight": "*x",
    "k_weight": "*x",
    "eps": "fp32",
}
_SIZES = {
    "NUM_HEADS": 16,
    "NUM_KV_HEADS": 8,
    "HALF": 64,
    "BLOCK": (16, 64),
}
COMPILE_CASES = {
    "_rope_kernel": [
        CompileCase(
            _TYPES,
            {"HAS_NORM": has_norm, "SPLIT": split, "KV_BLOCK": (16 if split else 8, 64), **_SIZES},
            {"num_warps": 4 if split else 2},
        )
        for has_norm in (True, False)
        for split in (True, False)
    ],
}
