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
from flowerbed.rose.kernels.backend import (
    MAX_CHUNK,
    Tile,
    check_contiguous,
    chunk_tile,
    row_tile,
)
from flowerbed.rose.kernels.small_linear import (
    MIN_CAPABILITY,
    SMALL_STEP_TOKENS,
    starts_early,
)
from flowerbed.rose.kernels.triton_early_start import wait_for_inputs
from flowerbed.rose.kernels.triton_row_chunks import (
    add_chunks,
    load_chunks,
    load_vector,
    store_layer_norm,
)
from flowerbed.rose.kernels.triton_saturation import saturated

NUM_PROGRAMS = 8 * 132
"""Of a loop: eight for each processor of an H100 or H200."""


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


@triton.jit
def _saturated_chunks(chunks):
    """Of float16, in fp32."""
    values = ()
    for i in tl.static_range(len(chunks)):
        values += (saturated(chunks[i].to(tl.float32), tl.float16),)
    return values


@triton.jit
def _load_tile(
    x, residual, start, rows, is_row, columns,
    HAS_RESIDUAL: tl.constexpr, H: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rows of x, or of its sum with the residual, in chunks of fp32. start: of the first, int64."""
    chunks = load_chunks(x + start, rows * H, is_row, columns, H, COLUMNS, "")
    if x.dtype.element_ty == tl.float16:
        chunks = _saturated_chunks(chunks)
    if HAS_RESIDUAL:
        # Read once and then dead: x, which takes the result, should have the cache.
        policy: tl.constexpr = "evict_first" if COLUMNS < H else ""
        added = load_chunks(residual + start, rows * H, is_row, columns, H, COLUMNS, policy)
        sums = add_chunks(chunks, added)
    else:
        sums = ()
        for i in tl.static_range(len(chunks)):
            sums += (chunks[i].to(tl.float32),)
    return sums


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
    LOOP: tl.constexpr,
):
    """A program takes one tile, [ROWS, H], or with LOOP every so many-th, for which it keeps weight and bias."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    tile = tl.cdiv(num_rows, ROWS) - 1 - tl.program_id(0)
    if LOOP:
        scale = load_vector(weight, rows, columns, H, COLUMNS)
        shift = load_vector(bias, rows, columns, H, COLUMNS)
        while tile >= 0:
            start = tile.to(tl.int64) * (ROWS * H)
            is_row = tile * ROWS + rows < num_rows
            sums = _load_tile(x, residual, start, rows, is_row, columns, HAS_RESIDUAL, H, COLUMNS)
            store_layer_norm(
                out + start, sums, scale, shift, rows * H, is_row, columns, eps, H, COLUMNS
            )
            tile -= tl.num_programs(0)
    else:
        start = tile.to(tl.int64) * (ROWS * H)
        is_row = tile * ROWS + rows < num_rows
        sums = _load_tile(x, residual, start, rows, is_row, columns, HAS_RESIDUAL, H, COLUMNS)
        scale = load_vector(weight, rows, columns, H, COLUMNS)
        shift = load_vector(bias, rows, columns, H, COLUMNS)
        store_layer_norm(
            out + start, sums, scale, shift, rows * H, is_row, columns, eps, H, COLUMNS
        )


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
    EARLY: tl.constexpr,
):
    first, places, mask, columns = row_places(num_rows, H, ROWS, COLUMNS)
    wait_for_inputs(EARLY)
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
    tile, num_programs, loop = _layer_norm_tile(x, residual is not None)
    _layer_norm_kernel[(num_programs,)](
        x,
        x if residual is None else residual,
        weight,
        bias,
        out,
        num_rows,
        eps,
        HAS_RESIDUAL=residual is not None,
        H=hidden,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        LOOP=loop,
        num_warps=tile.num_warps,
    )
    return out


def _layer_norm_tile(x: Tensor, has_residual: bool) -> tuple[Tile, int, bool]:
    """Tile of a program, number of programs, whether they take several tiles each."""
    num_rows, hidden = x.shape
    tile = chunk_tile(x, hidden, num_warps=4)
    if tile is None:
        tile = row_tile(x, hidden)
    elif hidden == 3 * MAX_CHUNK:
        # With a residual, fewer rows under way at once are faster; else more and smaller programs.
        if has_residual and num_rows > tile.rows * NUM_PROGRAMS:
            return tile, NUM_PROGRAMS, True
        tile = chunk_tile(x, hidden, num_warps=1) or tile
    return tile, -(-num_rows // tile.rows), False


def _rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    out = _output(x, residual)
    num_rows, hidden = x.shape
    rows, columns, num_warps = row_tile(x, hidden)
    early = num_rows <= SMALL_STEP_TOKENS and starts_early(x.device)
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
        EARLY=early,
        num_warps=num_warps,
        launch_pdl=early,
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
_CHUNKED = [
    ({"H": 384, "ROWS": 8, "COLUMNS": 128, "LOOP": False}, 4),
    ({"H": 768, "ROWS": 1, "COLUMNS": 256, "LOOP": False}, 1),
    ({"H": 768, "ROWS": 4, "COLUMNS": 256, "LOOP": True}, 4),
]
COMPILE_CASES = {
    "_layer_norm_kernel": [
        CompileCase(
            {**_TYPES, "bias": "*x"}, {"HAS_RESIDUAL": add, **size}, {"num_warps": num_warps}
        )
        for add in (True, False)
        for size, num_warps in [({**size, "LOOP": False}, 4) for size in _SIZES] + _CHUNKED
    ],
    "_rms_norm_kernel": [
        CompileCase(
            _TYPES, {"HAS_RESIDUAL": add, "EARLY": early, **size}, {"num_warps": 4}, capability
        )
        for add in (True, False)
        for size in _SIZES
        for early, capability in [(False, (8, 0)), (True, MIN_CAPABILITY)]
    ],
}
