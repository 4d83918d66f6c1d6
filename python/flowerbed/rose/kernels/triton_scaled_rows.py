"""`scaled_rows` in Triton: one pass, a program takes whole rows.

Programs begin with the last rows, which the product before them has left in the L2 cache.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import check_contiguous, row_tile
from flowerbed.rose.kernels.scaled_rows import FLOAT8, LARGEST, LEAST_ROW, ScaledRows
from flowerbed.rose.kernels.triton_activation import gelu
from flowerbed.rose.kernels.triton_norm import layer_rows, rms_rows, row_places

_LARGEST = tl.constexpr(LARGEST)
_LEAST_ROW = tl.constexpr(LEAST_ROW)


@triton.jit
def to_float8(values):
    """Rounded to the nearest. A function of its own, since Triton's interpreter rounds wrongly."""
    return values.to(tl.float8e4nv)


@triton.jit
def _store_rows(
    values, out, scales, num_rows, mask, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Stores a program's rows, [ROWS, COLUMNS] fp32, zero outside the mask."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)[:, None]
    largest = tl.max(tl.abs(values), axis=1, keep_dims=True)
    is_zero = largest < _LEAST_ROW
    scale = tl.where(is_zero, 1.0, tl.div_rn(largest, tl.full(largest.shape, _LARGEST, tl.float32)))
    inverse = tl.div_rn(tl.full(largest.shape, _LARGEST, tl.float32), largest)
    values *= tl.where(is_zero, 1.0, inverse)
    tl.store(out + first * H + rows * H + tl.arange(0, COLUMNS)[None, :], to_float8(values), mask)
    tl.store(scales + first + rows, scale, first + rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def _quantize_kernel(
    x, out, scales, num_rows, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    first, places, mask, _ = row_places(num_rows, H, ROWS, COLUMNS)
    # Read once and then dead: the output should have the cache.
    values = tl.load(x + first + places, mask, other=0.0, eviction_policy="evict_first")
    _store_rows(values.to(tl.float32), out, scales, num_rows, mask, H, ROWS, COLUMNS)


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    scales,
    num_rows,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first, places, mask, columns = row_places(num_rows, H, ROWS, COLUMNS)
    values = rms_rows(x, residual, weight, first, places, mask, columns, eps, HAS_RESIDUAL, H)
    _store_rows(values, out, scales, num_rows, mask, H, ROWS, COLUMNS)


@triton.jit(do_not_specialize=["num_rows"])
def _layer_norm_kernel(
    x,
    residual,
    weight,
    bias,
    out,
    scales,
    num_rows,
    eps,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first, places, mask, columns = row_places(num_rows, H, ROWS, COLUMNS)
    values = layer_rows(x, residual, weight, bias, first, places, mask, columns, eps, True, H)
    tl.store(x + first + places, values.to(x.dtype.element_ty), mask)
    _store_rows(values, out, scales, num_rows, mask, H, ROWS, COLUMNS)


@triton.jit(do_not_specialize=["num_rows"])
def _swiglu_kernel(
    gate_up, out, scales, num_rows, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    first, _, mask, columns = row_places(num_rows, H, ROWS, COLUMNS)
    gates = gate_up + 2 * first + tl.arange(0, ROWS)[:, None] * (2 * H) + columns
    gate = tl.load(gates, mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    up = tl.load(gates + H, mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    values = gate * up / (1.0 + tl.exp(-gate))
    _store_rows(values, out, scales, num_rows, mask, H, ROWS, COLUMNS)


@triton.jit(do_not_specialize=["num_rows"])
def _bias_gelu_kernel(
    x,
    bias,
    out,
    scales,
    num_rows,
    HAS_BIAS: tl.constexpr,
    TANH: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first, places, mask, columns = row_places(num_rows, H, ROWS, COLUMNS)
    values = tl.load(x + first + places, mask, other=0.0, eviction_policy="evict_first")
    values = values.to(tl.float32)
    if HAS_BIAS:
        values += tl.load(bias + columns, columns < H, other=0.0).to(tl.float32)
    values = gelu(values, TANH, x.dtype.element_ty == tl.float32)
    _store_rows(values, out, scales, num_rows, mask, H, ROWS, COLUMNS)


def quantize_rows(x: Tensor) -> ScaledRows:
    """See `scaled_rows.quantize_rows`."""
    check_contiguous("x", x)
    return _launch(_quantize_kernel, x, x.shape[1], x=x)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> ScaledRows:
    """See `scaled_rows.scaled_rms_norm`."""
    check_contiguous("x", x)
    parts = {"x": x, "residual": x, "weight": weight, "eps": eps}
    return _launch(_rms_norm_kernel, x, x.shape[1], **parts, HAS_RESIDUAL=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> ScaledRows:
    """See `scaled_rows.scaled_add_rms_norm`."""
    check_contiguous("x", x)
    check_contiguous("residual", residual)
    parts = {"x": x, "residual": residual, "weight": weight, "eps": eps}
    return _launch(_rms_norm_kernel, x, x.shape[1], **parts, HAS_RESIDUAL=True)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, ScaledRows]:
    """See `scaled_rows.scaled_add_layer_norm`; the norm takes the place of x."""
    check_contiguous("x", x)
    check_contiguous("residual", residual)
    parts = {"x": x, "residual": residual, "weight": weight, "bias": bias, "eps": eps}
    return x, _launch(_layer_norm_kernel, x, x.shape[1], **parts)


def swiglu(gate_up: Tensor) -> ScaledRows:
    """See `scaled_rows.scaled_swiglu`."""
    check_contiguous("gate_up", gate_up)
    return _launch(_swiglu_kernel, gate_up, gate_up.shape[1] // 2, gate_up=gate_up)


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str) -> ScaledRows:
    """See `scaled_rows.scaled_bias_gelu`."""
    check_contiguous("x", x)
    parts = {"x": x, "bias": x if bias is None else bias}
    flags = {"HAS_BIAS": bias is not None, "TANH": approximate == "tanh"}
    return _launch(_bias_gelu_kernel, x, x.shape[1], **parts, **flags)


def _launch(kernel, x: Tensor, width: int, /, **arguments) -> ScaledRows:
    """Runs a kernel on as many rows as x has; `width` columns each come out."""
    num_rows = x.shape[0]
    out = torch.empty((num_rows, width), dtype=FLOAT8, device=x.device)
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device)
    # The least difference can make a value another of the few that 8 bits have.
    rows, columns, num_warps = row_tile(x, width, is_fixed=True)
    kernel[(triton.cdiv(num_rows, rows),)](
        **arguments,
        out=out,
        scales=scales,
        num_rows=num_rows,
        H=width,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps,
    )
    return ScaledRows(out, scales)


_OUTPUT = {"out": "*fp8e4nv", "scales": "*fp32", "num_rows": "i32"}
_NORM = {"x": "*x", "residual": "*x", "weight": "*x", "eps": "fp32", **_OUTPUT}
_NARROW = {"H": 384, "ROWS": 4, "COLUMNS": 512}
_HIDDEN = {"H": 1024, "ROWS": 2, "COLUMNS": 1024}
_WIDE = {"H": 3072, "ROWS": 1, "COLUMNS": 4096}
MIN_CAPABILITY = (8, 9)
"""Where a GPU can convert to float8_e4m3fn."""


def _case(types: dict[str, str], sizes: dict[str, int], **flags: bool) -> CompileCase:
    num_warps = min(8, sizes["COLUMNS"] // 256)
    return CompileCase(types, {**flags, **sizes}, {"num_warps": num_warps}, MIN_CAPABILITY)


COMPILE_CASES = {
    "_quantize_kernel": [_case({"x": "*x", **_OUTPUT}, size) for size in (_HIDDEN, _WIDE)],
    "_rms_norm_kernel": [
        _case(_NORM, size, HAS_RESIDUAL=add) for add in (True, False) for size in (_HIDDEN, _WIDE)
    ],
    "_layer_norm_kernel": [_case({**_NORM, "bias": "*x"}, size) for size in (_HIDDEN, _NARROW)],
    "_swiglu_kernel": [_case({"gate_up": "*x", **_OUTPUT}, _WIDE)],
    "_bias_gelu_kernel": [
        _case({"x": "*x", "bias": "*x", **_OUTPUT}, _WIDE, HAS_BIAS=True, TANH=tanh)
        for tanh in (False, True)
    ],
}
