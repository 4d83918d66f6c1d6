"""`norm` in Triton: one pass over whole rows. With a residual, results take the place of x.

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


@triton.jit
def row_places(num_rows, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """First element of a program's rows; places from there, [ROWS, COLUMNS]; mask; columns [1, COLUMNS]."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    return first * H, rows * H + columns, (first + rows < num_rows) & (columns < H), columns


@triton.jit
def standardize(values, weight, bias, eps, mask, H: tl.constexpr):
    """Layer norm of rows, [ROWS, COLUMNS] fp32, zero outside the mask."""
    mean = tl.sum(values, axis=1, keep_dims=True) / H
    values = tl.where(mask, values - mean, 0.0)
    variance = tl.sum(values * values, axis=1, keep_dims=True) / H
    return values * tl.rsqrt(variance + eps) * weight + bias


@triton.jit
def layer_rows(
    x, residual, weight, bias, first, places, mask, columns, eps,
    HAS_RESIDUAL: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Layer norm of a program's rows of x, or of their sum with the residual's: [ROWS, COLUMNS] fp32."""
    values = tl.load(x + first + places, mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + first + places, mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, columns < H, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, columns < H, other=0.0).to(tl.float32)
    return standardize(values, scale, shift, eps, mask, H)


@triton.jit
def rms_rows(
    x, residual, weight, first, places, mask, columns, eps,
    HAS_RESIDUAL: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """RMS norm of the same; the sum takes the place of the residual, rounded to its dtype."""
    values = tl.load(x + first + places, mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + first + places, mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, columns < H, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total = values.to(residual.dtype.element_ty)
        tl.store(residual + first + places, total, mask)
        values = total.to(tl.float32)
    mean_square = tl.sum(values * values, axis=1, keep_dims=True) / H
    return values * tl.rsqrt(mean_square + eps) * scale


@triton.jit(do_not_specialize=["num_rows"])
def _layer_norm_kernel(
    x,
    residual,
    weight,
    bias,
    out,
    num_rows,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first, places, mask, columns = row_places(num_rows, H, ROWS, COLUMNS)
    values = layer_rows(
        x, residual, weight, bias, first, places, mask, columns, eps, HAS_RESIDUAL, H
    )
    tl.store(out + first + places, values.to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    num_rows,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first, places, mask, columns = row_places(num_rows, H, ROWS, COLUMNS)
    values = rms_rows(x, residual, weight, first, places, mask, columns, eps, HAS_RESIDUAL, H)
    tl.store(out + first + places, values.to(out.dtype.element_ty), mask)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `norm.layer_norm`."""
    return _layer_norm(x, None, weight, bias, eps)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `norm.add_layer_norm`."""
    return _layer_norm(x, residual, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `norm.rms_norm`."""
    return _rms_norm(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `norm.add_rms_norm`."""
    return _rms_norm(x, residual, weight, eps)


def _layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    out = _output(x, residual)
    num_rows, hidden = x.shape
    rows, columns, num_warps = row_tile(x, hidden)
    _layer_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x,
        x if residual is None else residual,
        weight,
        bias,
        out,
        num_rows,
        eps,
        HAS_RESIDUAL=residual is not None,
        H=hidden,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps,
    )
    return out


def _rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    out = _output(x, residual)
    num_rows, hidden = x.shape
    rows, columns, num_warps = row_tile(x, hidden)
    _rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x,
        x if residual is None else residual,
        weight,
        out,
        num_rows,
        eps,
        HAS_RESIDUAL=residual is not None,
        H=hidden,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps,
    )
    return out


def _output(x: Tensor, residual: Tensor | None) -> Tensor:
    check_contiguous("x", x)
    if residual is None:
        return torch.empty_like(x)
    check_contiguous("residual", residual)
    return x


_TYPES = {
    "x": "*x",
    "residual": "*x",
    "weight": "*x",
    "out": "*x",
    "num_rows": "i32",
    "eps": "fp32",
}
_SIZES = [
    {"H": 1024, "ROWS": 2, "COLUMNS": 1024},
    {"H": 384, "ROWS": 1, "COLUMNS": 512},
]
COMPILE_CASES = {
    "_layer_norm_kernel": [
        CompileCase({**_TYPES, "bias": "*x"}, {"HAS_RESIDUAL": add, **size}, {"num_warps": 4})
        for add in (True, False)
        for size in _SIZES
    ],
    "_rms_norm_kernel": [
        CompileCase(_TYPES, {"HAS_RESIDUAL": add, **size}, {"num_warps": 4})
        for add in (True, False)
        for size in _SIZES
    ],
}
