"""Attention of a block of queries and keys of one sequence, with the bits of flash-attn-4 on Hopper.

There a row lies in four threads of one warp if a block has 64 queries for each four warps, and Triton multiplies
by `wgmma`, as flash-attn-4 does. A sequence of one block of keys has no more than one maximum; what is left is
the order of a row's sum, and which operations are rounded at once. Called by the other Triton files.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import math

import numpy as np
import triton
import triton.language as tl

COMPILE_CASES: dict[str, list[object]] = {}


def score_scale(head_dim: int) -> float:
    """What scores are multiplied by before they are powers of 2, rounded as flash-attn-4 rounds it."""
    return float(np.float32(head_dim**-0.5) * np.float32(math.log2(math.e)))


@triton.jit
def reciprocal(x, APPROXIMATE: tl.constexpr):
    """1 / x of a block of fp32, by the GPU's own approximation: at most one unit of the last place off."""
    if APPROXIMATE:
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = 1.0 / x
    return y


@triton.jit
def quad_sums(rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums of rows, [ROWS, COLUMNS] fp32, as the four threads do that hold one: [ROWS].

    Of each eight columns a thread holds two neighbours. It adds up its own in order; then threads do.
    """
    parts = tl.permute(tl.reshape(rows, (ROWS, COLUMNS // 8, 4, 2)), (0, 2, 1, 3))
    sums = tl.sum(tl.reshape(parts, (ROWS, 4, COLUMNS // 4)), axis=2)
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, 2)), axis=2)
    return tl.sum(sums, axis=1)


@triton.jit
def mixed_values(
    queries, keys, values, scale, length, BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    """softmax(queries keys^T) values of a sequence's first `length` rows, [BLOCK, any]; fp32."""
    places = tl.arange(0, BLOCK)
    scores = tl.dot(queries, keys.T, input_precision="ieee")
    is_seen = (places < length)[None, :]
    ahead = places[None, :] - places[:, None]
    if CAUSAL:
        is_seen = is_seen & (ahead <= 0)
    if WINDOW >= 0:
        is_seen = is_seen & (ahead >= -WINDOW) & (ahead <= WINDOW)
    scores = tl.where(is_seen, scores, -1e30)
    highest = tl.max(scores, axis=1, keep_dims=True)
    shares = tl.exp2(tl.fma(scores, scale, -(highest * scale)))
    factor = reciprocal(quad_sums(shares, BLOCK, BLOCK), APPROXIMATE)
    return tl.dot(shares.to(values.dtype), values, input_precision="ieee") * factor[:, None]
