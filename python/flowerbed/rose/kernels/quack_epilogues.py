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
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
import quack.cache
import torch
from cutlass import Float32, const_expr
from quack import layout_utils
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


# A kernel on disk is another one once this folder's code is: of installed functions quack reads the names alone.
quack.cache.EXTRA_SOURCE_DIRS.append(Path(__file__).parent)

NUMBERS = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16}
"""Of products in 16 bits."""
FLOAT16_MAX = 65_504.0


def sum_of_pairs(values):
    """Of a power of two many, neighbours first."""
    while len(values) > 1:
        values = [first + second for first, second in zip(values[::2], values[1::2], strict=True)]
    return values[0]


class PairwiseRstd(HeadRstd):
    """1 / sqrt(mean + eps) of each head of 128 columns; a thread adds up its squares in pairs, not one after another.

    `triton_norm_rope` has the same order of sums: it could not say any other in so few steps.
    """

    @cute.jit
    def stats_begin(self, gemm, smem_tensor, ctx, group_cols):
        """Room for a sum of 32 columns that waits for its neighbour's."""
        state = HeadRstd.stats_begin(self, gemm, smem_tensor, ctx, group_cols)
        return (*state, cute.make_rmem_tensor(state[5].shape, Float32))

    @cute.jit
    def stats_slice(self, state, epi_coord):
        """Which of the 32 columns of a head these are."""
        return (*HeadRstd.stats_slice(self, state, epi_coord), state[9], epi_coord[1])

    @cute.jit
    def fn_sink_flush(self, gemm, state, frag):  # noqa: ARG002
        """Adds a thread's eight squares of each row to its sum of the head."""
        stats = state[0]
        ref_layout, sums, first_row, head, waiting, part = (*stats[2:3], *stats[5:])
        squares = layout_utils.convert_layout_zero_stride(frag, ref_layout)
        num_rows = const_expr(cute.size(squares, mode=[0]))
        num_columns = const_expr(cute.size(squares, mode=[1]))
        for row in cutlass.range_constexpr(num_rows):
            place = (first_row + row, head)
            total = sum_of_pairs([squares[row, column] for column in range(num_columns)])
            if const_expr(part % 4 == 2):
                waiting[place] = total
            elif const_expr(part % 4 == 3):
                sums[place] = sums[place] + (waiting[place] + total)
            else:
                sums[place] = sums[place] + total


def rounded(value, number):
    """As 16 bits hold it, fp32."""
    return value.to(number).to(cutlass.Float32)


def saturated(value, number):
    """See `saturation.saturated`; fp32, and what is no number stays none."""
    if number is not cutlass.Float16:
        return value
    return cute.arch.fmin(cute.arch.fmax(value, -FLOAT16_MAX, nan=True), FLOAT16_MAX, nan=True)


def rotated(pair, position, frequency):
    """The pair turned by the angle of its position.

    What is rounded once is written as one operation, here and in `triton_norm_rope`, which has the same bits.
    """
    first, second = unpack(pair)
    high, low = unpack(frequency)
    turns = cute.math.fma(position, high, 0.0)
    rest = cute.math.fma(position, low, cute.math.fma(position, high, -turns))
    whole = cute.math.fma(turns, 1.0, ROUND) - ROUND
    angle = ((turns - whole) + rest) * TURN
    sin = cute.math.sin(angle, fastmath=True)
    cos = cute.math.cos(angle, fastmath=True)
    return pack(cute.math.fma(first, cos, -(second * sin)), cute.math.fma(first, sin, second * cos))


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
        "head": PairwiseRstd("head", eps=eps),
        "norm": RowVecLoad("norm"),
        "keep": RowVecLoad("keep"),
        "position": ColVecLoad("position"),
        "frequency": RowVecLoad("frequency"),
    }
