"""`pack.pack_rows_into` in Triton: one program a row, all formats in one launch.

Arithmetic is compiled without fused multiply-adds and divides exactly, so that each value is rounded
where torch rounds it.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.norm import MIN_NORM
from flowerbed.rose.kernels.pack import (
    FORMAT_COLUMNS,
    STATUS_ALL_ZERO,
    STATUS_NOT_FINITE,
    STATUS_OK,
    RowDtype,
)

COLUMNS = tl.constexpr(FORMAT_COLUMNS)
FLOAT32 = tl.constexpr(int(RowDtype.FLOAT32))
FLOAT16 = tl.constexpr(int(RowDtype.FLOAT16))
BFLOAT16 = tl.constexpr(int(RowDtype.BFLOAT16))
INT8 = tl.constexpr(int(RowDtype.INT8))
UINT8 = tl.constexpr(int(RowDtype.UINT8))
BINARY = tl.constexpr(int(RowDtype.BINARY))
OK = tl.constexpr(STATUS_OK)
NOT_FINITE = tl.constexpr(STATUS_NOT_FINITE)
ALL_ZERO = tl.constexpr(STATUS_ALL_ZERO)
SHORTEST = tl.constexpr(MIN_NORM)
ROUNDER = tl.constexpr(12582912.0)
WIDE_ROUNDER = tl.constexpr(6755399441055744.0)
"""1.5 * 2^23 and 1.5 * 2^52: added to float32 and float64 and subtracted, they round half to even."""


@triton.jit
def _round(x):
    return (x + ROUNDER) - ROUNDER


@triton.jit
def _tanh_levels(x):
    """round(127 tanh(x)), half to even. In float64, so that levels next to a tie are those of the CPU.

    tanh(x) is (1 - e) / (1 + e) with e = exp(-2|x|).
    """
    power = tl.exp(-2.0 * tl.abs(x.to(tl.float64)))
    size = ((1.0 - power) / (1.0 + power) * 127.0 + WIDE_ROUNDER) - WIDE_ROUNDER
    return tl.where(x < 0, 0.0 - size, size).to(tl.float32)


@triton.jit
def _norm(x):
    """Length of a vector, at least MIN_NORM. Summed in float64, so that no order shows."""
    wide = x.to(tl.float64)
    return tl.maximum(tl.sqrt(tl.sum(wide * wide, axis=0)).to(tl.float32), SHORTEST)


@triton.jit
def _bfloat16_bits(x):
    """Bits of the nearest bfloat16, half to even; x is no NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@triton.jit
def _store_words(out, words, columns, dimensions, NUM_BYTES: tl.constexpr):
    """Stores little-endian words of NUM_BYTES at an address that may be unaligned."""
    mask = columns < dimensions
    if out.to(tl.int64) % NUM_BYTES == 0:
        if NUM_BYTES == 4:
            tl.store(out.to(tl.pointer_type(tl.uint32)) + columns, words, mask=mask)
        else:
            tl.store(out.to(tl.pointer_type(tl.uint16)) + columns, words.to(tl.uint16), mask=mask)
    else:
        for byte in tl.static_range(NUM_BYTES):
            part = (words >> (8 * byte)).to(tl.uint8)
            tl.store(out + columns * NUM_BYTES + byte, part, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["formats", "status_offset", "out"])
def _pack_kernel(
    pooled,
    formats,
    status_offset,
    out,
    row_stride,
    num_columns,
    IS_TANH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    entry = formats + row * COLUMNS
    segment = tl.load(entry)
    place = out + tl.load(entry + 1)
    code = tl.load(entry + 2)
    dimensions = tl.load(entry + 3)
    is_normalized = tl.load(entry + 4) != 0
    status_place = out + tl.load(status_offset) + row
    if dimensions == 0:
        return

    columns = tl.arange(0, BLOCK)
    values = pooled + segment.to(tl.int64) * row_stride + columns
    x = tl.load(values, mask=columns < num_columns, other=0.0)
    exponent = x.to(tl.uint32, bitcast=True) & 0x7F800000
    num_bad = tl.sum((exponent == 0x7F800000).to(tl.int32), axis=0)
    kept = columns < dimensions
    x = tl.where(kept, x, 0.0)
    if IS_TANH:
        is_positive = kept & (x >= 0)
        if code < BINARY:
            x = _tanh_levels(x)
        is_normalized = is_normalized & (code < INT8)
    x = tl.div_rn(x, tl.where(is_normalized, _norm(x), 1.0))
    if not IS_TANH:
        is_positive = x > 0

    if code == FLOAT32:
        _store_words(place, x.to(tl.uint32, bitcast=True), columns, dimensions, 4)
    elif code < INT8:
        float16_bits = x.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32)
        is_float16 = code == FLOAT16
        bits = tl.where(is_float16, float16_bits, _bfloat16_bits(x))
        infinite = tl.where(is_float16, 0x7C00, 0x7F80)
        num_bad += tl.sum(((bits & infinite) == infinite).to(tl.int32), axis=0)
        _store_words(place, bits, columns, dimensions, 2)
    elif code < BINARY:
        levels = tl.where(x == x, x, 0.0)
        if not IS_TANH:
            levels = _round(tl.minimum(tl.maximum(levels, -1.0), 1.0) * 127.0)
        shift = tl.where(code == UINT8, 128, 0)
        tl.store(place + columns, (levels.to(tl.int32) + shift).to(tl.uint8), mask=kept)
    else:
        weights = 0x80 >> tl.arange(0, 8)
        ones = tl.reshape(is_positive.to(tl.int32), (BLOCK // 8, 8))
        packed = tl.sum(ones * weights[None, :], axis=1) ^ tl.where(code == BINARY, 0x80, 0)
        numbers = tl.arange(0, BLOCK // 8)
        tl.store(place + numbers, packed.to(tl.uint8), mask=numbers < (dimensions + 7) // 8)

    num_nonzero = tl.sum((x != 0).to(tl.int32), axis=0)
    status = tl.where(num_bad > 0, NOT_FINITE, tl.where(num_nonzero == 0, ALL_ZERO, OK))
    tl.store(status_place, status.to(tl.uint8))


def pack_rows_into(
    pooled: Tensor, formats: Tensor, status_offset: Tensor, out: Tensor, quantizer: str | None
) -> None:
    """See `pack.pack_rows_into`."""
    num_columns = pooled.shape[1]
    block = max(triton.next_power_of_2(num_columns), 32)
    _pack_kernel[(formats.shape[0],)](
        pooled,
        formats,
        status_offset,
        out,
        pooled.stride(0),
        num_columns,
        IS_TANH=quantizer == "tanh",
        BLOCK=block,
        num_warps=min(max(block // 256, 1), 8),
        enable_fp_fusion=False,
    )


COMPILE_CASES = {
    "_pack_kernel": [
        CompileCase(
            {
                "pooled": "*fp32",
                "formats": "*i32",
                "status_offset": "*i32",
                "out": "*u8",
                "row_stride": "i32",
                "num_columns": "i32",
            },
            {"IS_TANH": is_tanh, "BLOCK": block},
            {"num_warps": 4, "enable_fp_fusion": False},
        )
        for is_tanh, block in ((False, 1024), (True, 4096))
    ]
}
