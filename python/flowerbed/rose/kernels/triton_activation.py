"""`activation` in Triton. Programs begin with the last rows, which the product before has left in the L2 cache."""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import block_tile, check_contiguous
from flowerbed.rose.kernels.triton_saturation import saturated


@triton.jit
def _places(num_rows, F: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """First row of a program; its rows from there, [ROWS, 1]; columns, [1, COLUMNS]; mask."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    num_blocks: tl.constexpr = (F + COLUMNS - 1) // COLUMNS
    first = (program // num_blocks).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)[:, None]
    columns = program % num_blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return first, rows, columns, (first + rows < num_rows) & (columns < F)


@triton.jit
def _gelu_tail(u):
    """Φ(-u) for u ≥ 0, with an error below 2e-5 of it up to u = 6, where it is 1e-9.

    2 to a polynomial, which was fitted to log2 Φ(-u) on [0, 5.5]: a third of erf's instructions, so
    that reading and writing stays the limit.
    """
    power = -1.92123457e-06 * u + 6.32884985e-05
    power = power * u - 9.43420862e-04
    power = power * u + 8.5562719e-03
    power = power * u - 5.40522821e-02
    power = power * u - 4.58381772e-01
    power = power * u - 1.15127838
    power = power * u - 9.99993861e-01
    return tl.exp2(power)


@triton.jit
def gelu(values, TANH: tl.constexpr, EXACT: tl.constexpr):
    """Of fp32; with EXACT by erf, else good enough for 16 bits."""
    if TANH:
        # x/2 (1 + tanh(z)) = x / (1 + exp(-2z)), with z = √(2/π) (x + 0.044715 x³)
        power = values * (-2.302208198 - 0.1029432397 * values * values)
        values = values / (1.0 + tl.exp2(power))
    elif EXACT:
        values = values * (0.5 + 0.5 * tl.math.erf(values * 0.7071067811865476))
    else:
        u = tl.abs(values)
        values = tl.maximum(values, 0.0) - u * _gelu_tail(u)
    return values


@triton.jit(do_not_specialize=["num_rows"])
def _swiglu_kernel(
    gate_up, out, num_rows, F: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    first, rows, columns, mask = _places(num_rows, F, ROWS, COLUMNS)
    gate_up += first * (2 * F)
    places = rows * (2 * F) + columns
    # Read once and then dead: the output should have the cache.
    gate = tl.load(gate_up + places, mask, eviction_policy="evict_first").to(tl.float32)
    up = tl.load(gate_up + F + places, mask, eviction_policy="evict_first").to(tl.float32)
    values = gate * up / (1.0 + tl.exp(-gate))
    tl.store(out + first * F + rows * F + columns, values.to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["num_rows"])
def _bias_gelu_kernel(
    x,
    bias,
    num_rows,
    HAS_BIAS: tl.constexpr,
    TANH: tl.constexpr,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first, rows, columns, mask = _places(num_rows, F, ROWS, COLUMNS)
    x += first * F
    places = rows * F + columns
    values = tl.load(x + places, mask).to(tl.float32)
    if HAS_BIAS:
        values += tl.load(bias + columns, columns < F).to(tl.float32)
    values = saturated(values, x.dtype.element_ty)
    values = gelu(values, TANH, x.dtype.element_ty == tl.float32)
    tl.store(x + places, values.to(x.dtype.element_ty), mask)


def swiglu(gate_up: Tensor) -> Tensor:
    """See `activation.swiglu`."""
    check_contiguous("gate_up", gate_up)
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, width), dtype=gate_up.dtype, device=gate_up.device)
    rows, columns, num_warps = block_tile(gate_up, width)
    _swiglu_kernel[(triton.cdiv(num_rows, rows) * triton.cdiv(width, columns),)](
        gate_up, out, num_rows, F=width, ROWS=rows, COLUMNS=columns, num_warps=num_warps
    )
    return out


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    """See `activation.bias_gelu`; the result takes the place of x."""
    check_contiguous("x", x)
    num_rows, width = x.shape
    rows, columns, num_warps = block_tile(x, width)
    _bias_gelu_kernel[(triton.cdiv(num_rows, rows) * triton.cdiv(width, columns),)](
        x,
        x if bias is None else bias,
        num_rows,
        HAS_BIAS=bias is not None,
        TANH=approximate == "tanh",
        F=width,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps,
    )
    return x


_SIZES = {"F": 3072, "ROWS": 2, "COLUMNS": 1024}
COMPILE_CASES = {
    "_swiglu_kernel": [
        CompileCase({"gate_up": "*x", "out": "*x", "num_rows": "i32"}, _SIZES, {"num_warps": 4})
    ],
    "_bias_gelu_kernel": [
        CompileCase(
            {"x": "*x", "bias": "*x", "num_rows": "i32"},
            {"HAS_BIAS": True, "TANH": tanh, **_SIZES},
            {"num_warps": 4},
        )
        for tanh in (False, True)
    ],
}
