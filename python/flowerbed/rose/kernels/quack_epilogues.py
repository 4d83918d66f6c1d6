"""What quack's products do with their sums before they write them.

Each function is traced once for each kernel; it works on one sum in fp32, or on those of a pair of
neighbouring columns. Sums in 16 bits are rounded first, as where the product is a kernel of its own: a vector
must not depend on the size of its step. Those in 8 bits are not, since one kernel serves steps of all sizes.
Imports quack, so that only `quack_linear` imports it.
"""
# pyright: reportMissingImports=false
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913 - quack reads the parameters' names, and gives them values of its own

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from quack.activation import silu
from quack.epilogue import pack, unpack
from quack.epilogue.frontend import gemm_epilogue
from quack.epilogue.head_rmsnorm import HeadRstd
from quack.epilogue.ops import ColVecLoad, RowVecLoad

LOG2_TAIL = (-0.0004731947, 0.007083835, -0.05182577, -0.459994, -1.1507872, -1.0000377)
"""Polynomial in z ≥ 0, highest power first: log2 of the share of a normal distribution beyond z.
gelu is then 6e-7 off at most, in one power of two and nine instructions; the erf of CUDA takes 18."""
LONG_LOG2_TAIL = (
    *(-1.92123457e-06, 6.32884985e-05, -9.43420862e-04, 8.5562719e-03),
    *(-5.40522821e-02, -4.58381772e-01, -1.15127838, -9.99993861e-01),
)
"""That of `triton_activation`: in float16 the shorter one could be told from it."""
TURN = 6.283185307179586
ROUND = 12_582_912.0
"""1.5 * 2^23: a smaller float added to it loses its fraction."""


NUMBERS = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16}
"""Of products in 16 bits."""
FLOAT16_MAX = 65_504.0


def rounded(value, number):
    """As 16 bits hold it, fp32."""
    return value.to(number).to(cutlass.Float32)


def saturated(value, number):
    """See `saturation.saturated`; fp32, and what is no number stays none."""
    if number is not cutlass.Float16:
        return value
    return cute.arch.fmin(cute.arch.fmax(value, -FLOAT16_MAX, nan=True), FLOAT16_MAX, nan=True)


def rotated(pair, position, frequency):
    """The pair turned by the angle of its position."""
    first, second = unpack(pair)
    high, low = unpack(frequency)
    turns = position * high
    rest = cute.math.fma(position, low, cute.math.fma(position, high, -turns))
    whole = cute.math.fma(turns, 1.0, ROUND) - ROUND
    angle = ((turns - whole) + rest) * TURN
    sin = cute.math.sin(angle, fastmath=True)
    cos = cute.math.cos(angle, fastmath=True)
    return pack(first * cos - second * sin, first * sin + second * cos)


@cache
def swiglu(dtype: torch.dtype) -> Any:
    """silu(gate) * up, of columns that were brought together."""
    number = NUMBERS[dtype]

    @gemm_epilogue(outputs=("out",), mode="acc_pair")
    def epilogue(acc):
        gate, up = (rounded(value, number) for value in unpack(acc))
        return {"out": silu(gate) * up}

    return epilogue


@cache
def bias_gelu(dtype: torch.dtype) -> Any:
    """gelu(x + bias): x where it is positive, less |x| times the tail beyond |x|."""
    number = NUMBERS[dtype]

    @gemm_epilogue(ops={"bias": RowVecLoad("bias")})
    def epilogue(acc, bias):
        x = saturated(rounded(acc, number) + bias, number)
        size = cute.arch.fmax(x, -x)
        first, *others = LONG_LOG2_TAIL if number is cutlass.Float16 else LOG2_TAIL
        tail = first
        for coefficient in others:
            tail = cute.math.fma(tail, size, coefficient)
        tail = cute.math.exp2(tail, fastmath=True)
        return {"D": cute.math.fma(-size, tail, cute.arch.fmax(x, 0.0))}

    return epilogue


@gemm_epilogue()
def plain(acc):
    """The product itself."""
    return {"D": acc}


@gemm_epilogue(ops={"bias": RowVecLoad("bias")})
def biased(acc, bias):
    """The product and a bias, rounded once."""
    return {"D": acc + bias}


SCALES = {"rows": ColVecLoad("rows"), "columns": RowVecLoad("columns")}
"""Of 8-bit products: a scale for each row of x, and one for each row of the weight."""


@gemm_epilogue(ops=SCALES)
def scaled(acc, rows, columns):
    """The product itself."""
    return {"D": acc * (rows * columns)}


@gemm_epilogue(outputs=("out",), ops=SCALES, mode="acc_pair")
def scaled_swiglu(acc, rows, columns):
    """silu(gate) * up, of columns that were brought together."""
    gate, up = unpack(acc * (columns * rows))
    return {"out": silu(gate) * up}


@cache
def norm_rope(eps: float, dtype: torch.dtype) -> Any:
    """Norm of each head, then the rotation of its neighbouring columns; see `fused_linear`."""
    number = NUMBERS[dtype]

    def square(acc):  # of one sum, not of a pair
        value = rounded(acc, number)
        return {"head": value * value}

    @gemm_epilogue(
        ops=_norm_rope_operands(eps), prepass=square, prepass_outs=("head",), mode="acc_pair"
    )
    def epilogue(acc, head, norm, keep, position, frequency):
        acc = pack(*(rounded(value, number) for value in unpack(acc)))
        return {"D": rotated(acc * (head * norm + keep), position, frequency)}

    return epilogue


@cache
def scaled_norm_rope(eps: float) -> Any:
    """`norm_rope` of an 8-bit product."""

    def square(acc, rows, columns):
        value = acc * (columns * rows)
        return {"head": value * value}

    @gemm_epilogue(
        ops=_norm_rope_operands(eps) | SCALES,
        prepass=square,
        prepass_outs=("head",),
        mode="acc_pair",
    )
    def epilogue(acc, head, norm, keep, position, frequency, rows, columns):
        value = acc * (columns * rows)
        return {"D": rotated(value * (head * norm + keep), position, frequency)}

    return epilogue


def _norm_rope_operands(eps: float) -> dict[str, Any]:
    return {
        "head": HeadRstd("head", eps=eps),
        "norm": RowVecLoad("norm"),
        "keep": RowVecLoad("keep"),
        "position": ColVecLoad("position"),
        "frequency": RowVecLoad("frequency"),
    }
