"""`norm_rope_` in Triton, with the bits of a product that does the same before it writes (`quack_epilogues`).

What that rounds once is one operation here, too, and the squares of a head are added up in its order.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import check_contiguous
from flowerbed.rose.kernels.norm_rope import HEAD_DIM, NormRopeWeights
from flowerbed.rose.kernels.small_linear import MIN_CAPABILITY, starts_early
from flowerbed.rose.kernels.triton_early_start import wait_for_inputs

PAIRS = tl.constexpr(HEAD_DIM // 2)
HEADS, NUM_WARPS = 8, 2
"""Heads of a token that a program takes, and its warps."""
TURN = tl.constexpr(6.283185307179586)
ROUND = tl.constexpr(12_582_912.0)
"""1.5 * 2^23: a smaller float added to it loses its fraction."""


@triton.jit
def _cos_and_sin(position, frequency, APPROXIMATE: tl.constexpr):
    """Of the angles of a position, fp32, [1, PAIRS]. frequency: turns of each pair, and what fp32 lacks of them."""
    pairs = tl.arange(0, PAIRS)[None, :]
    high = tl.load(frequency + 2 * pairs)
    low = tl.load(frequency + 2 * pairs + 1)
    turns = tl.fma(position, high, tl.zeros_like(high))
    rest = tl.fma(position, low, tl.fma(position, high, -turns))
    whole = (turns + ROUND) - ROUND
    angle = ((turns - whole) + rest) * TURN
    if APPROXIMATE:
        cos, sin = tl.inline_asm_elementwise(
            "cos.approx.ftz.f32 $0, $2; sin.approx.ftz.f32 $1, $2;",
            "=&f,=&f,f",
            [angle],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        cos, sin = tl.cos(angle), tl.sin(angle)
    return cos, sin


@triton.jit
def _pairs(rows, ROWS: tl.constexpr):
    """First and second of neighbouring columns, [ROWS, PAIRS] fp32."""
    return tl.split(tl.reshape(rows.to(tl.float32), (ROWS, PAIRS, 2)))


@triton.jit(do_not_specialize=["eps"])
def _norm_rope_kernel(
    qkv,
    positions,
    norm,
    frequency,
    eps,
    NUM_TURNED: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    APPROXIMATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program takes some heads of a token. NUM_TURNED: heads of queries and of keys; WIDTH: columns of qkv."""
    token = tl.program_id(0)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    places = heads * (2 * PAIRS) + tl.arange(0, 2 * PAIRS)[None, :]
    mask = (heads < NUM_TURNED) & (places >= 0)
    first_scale, second_scale = _pairs(tl.load(norm + places, mask, other=0.0), HEADS)
    wait_for_inputs(EARLY)
    position = tl.load(positions + token).to(tl.float32)
    places += token * WIDTH
    rows = tl.load(qkv + places, mask, other=0.0)
    cos, sin = _cos_and_sin(position, frequency, APPROXIMATE)
    first, second = _pairs(rows, HEADS)
    # Squares of 16 bits are exact. A thread of the product's adds up 16 pairs, neighbours first; then four threads do.
    sums = tl.reshape(first * first + second * second, (HEADS, 2, 2, 2, 2, 2, 2))
    sums = tl.sum(tl.sum(tl.sum(tl.sum(sums, axis=4), axis=3), axis=2), axis=1)
    square = tl.sum(tl.sum(sums, axis=1), axis=1)
    factor = tl.rsqrt(square / (2 * PAIRS) + eps)[:, None]
    first = first * (factor * first_scale)
    second = second * (factor * second_scale)
    turned = tl.join(
        tl.fma(first, cos, -(second * sin)),
        tl.fma(first, sin, second * cos),
    )
    tl.store(qkv + places, tl.reshape(turned, (HEADS, 2 * PAIRS)).to(rows.dtype), mask)


def norm_rope_(
    qkv: Tensor, weights: NormRopeWeights, positions: Tensor, heads: tuple[int, int]
) -> None:
    """See `norm_rope.norm_rope_`."""
    check_contiguous("qkv", qkv)
    early = starts_early(qkv.device)
    num_turned = sum(heads)
    _norm_rope_kernel[(qkv.shape[0], triton.cdiv(num_turned, HEADS))](
        qkv,
        positions,
        weights.norm,
        weights.frequency,
        weights.eps,
        NUM_TURNED=num_turned,
        WIDTH=qkv.shape[1],
        HEADS=HEADS,
        APPROXIMATE=qkv.is_cuda,
        EARLY=early,
        num_warps=NUM_WARPS,
        launch_pdl=early,
    )


COMPILE_CASES = {
    "_norm_rope_kernel": [
        CompileCase(
            {
                "qkv": "*x",
                "positions": "*i32",
                "norm": "*fp32",
                "frequency": "*fp32",
                "eps": "fp32",
            },
            {
                "NUM_TURNED": num_turned,
                "WIDTH": 4096,
                "HEADS": HEADS,
                "APPROXIMATE": True,
                "EARLY": early,
            },
            {"num_warps": NUM_WARPS},
            MIN_CAPABILITY if early else (8, 0),
        )
        for num_turned in (24, 20)
        for early in (False, True)
    ],
}
