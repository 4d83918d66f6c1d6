"""`rope` in Triton: all query and key heads of a token in one program, one launch.

Programs begin with the last tokens, which the product before them has left in the L2 cache.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

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
def _head_places(
    FIRST: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Places of the first halves of heads in a token, mask, and places in a row of the tables.

    All are [HEADS, COLUMNS], so that everything is loaded in the one layout that it is used in.
    """
    heads = tl.arange(0, HEADS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = (heads < NUM_HEADS) & (columns < HALF)
    return (FIRST + heads) * (2 * HALF) + columns, mask, tl.broadcast_to(columns, HEADS, COLUMNS)


@triton.jit
def _normalize(first, second, weight, eps, columns, mask, HALF: tl.constexpr):
    """RMS norm of heads, given as halves; weights of one head."""
    first_scale = tl.load(weight + columns, mask, other=0.0).to(tl.float32)
    second_scale = tl.load(weight + HALF + columns, mask, other=0.0).to(tl.float32)
    squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
    scale = tl.rsqrt(squares / (2 * HALF) + eps)
    return first * scale * first_scale, second * scale * second_scale


@triton.jit
def _store_rotated(qkv, places, first, second, cos, sin, columns, mask, HALF: tl.constexpr):
    c = tl.load(cos + columns, mask, other=0.0)
    s = tl.load(sin + columns, mask, other=0.0)
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
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    qkv += token * ((NUM_HEADS + 2 * NUM_KV_HEADS) * 2 * HALF)
    row = tl.load(positions + token).to(tl.int64) * HALF
    # All loads before the first store, which would hold them up.
    q_places, q_mask, q_columns = _head_places(0, NUM_HEADS, HEADS, HALF, COLUMNS)
    k_places, k_mask, k_columns = _head_places(NUM_HEADS, NUM_KV_HEADS, KV_HEADS, HALF, COLUMNS)
    q1 = tl.load(qkv + q_places, q_mask, other=0.0).to(tl.float32)
    q2 = tl.load(qkv + HALF + q_places, q_mask, other=0.0).to(tl.float32)
    k1 = tl.load(qkv + k_places, k_mask, other=0.0).to(tl.float32)
    k2 = tl.load(qkv + HALF + k_places, k_mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        q1, q2 = _normalize(q1, q2, q_weight, eps, q_columns, q_mask, HALF)
        k1, k2 = _normalize(k1, k2, k_weight, eps, k_columns, k_mask, HALF)
    cos += row
    sin += row
    _store_rotated(qkv, q_places, q1, q2, cos, sin, q_columns, q_mask, HALF)
    _store_rotated(qkv, k_places, k1, k2, cos, sin, k_columns, k_mask, HALF)


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
    half = cos.shape[1]
    heads, columns = power_of_two(num_heads), power_of_two(half)
    # A thread has two vectors of each half of the queries; one where tokens are few.
    vectors = 2 if has_many_rows(qkv) else 1
    num_warps = heads * columns * qkv.element_size() // (vectors * WARP_BYTES)
    q_weight, k_weight = (qkv, qkv) if weights is None else weights
    _rope_kernel[(qkv.shape[0],)](
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
        HEADS=heads,
        KV_HEADS=power_of_two(num_kv_heads),
        COLUMNS=columns,
        num_warps=min(max(1, num_warps), MAX_WARPS),
    )


COMPILE_CASES = {
    "_rope_kernel": [
        CompileCase(
            {
                "qkv": "*x",
                "positions": "*i32",
                "cos": "*fp32",
                "sin": "*fp32",
                "q_weight": "*x",
                "k_weight": "*x",
                "eps": "fp32",
            },
            {
                "HAS_NORM": has_norm,
                "NUM_HEADS": 16,
                "NUM_KV_HEADS": 8,
                "HALF": 64,
                "HEADS": 16,
                "KV_HEADS": 8,
                "COLUMNS": 64,
            },
            {"num_warps": 2},
        )
        for has_norm in (True, False)
    ],
}
