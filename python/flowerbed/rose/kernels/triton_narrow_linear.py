"""Products of few rows and few columns by programs that wait for nothing but their sums, in Gluon, Triton's lower level.

The tensor cores add up a sum in steps of 16 of the inner axis. Where one sum after another is all that a program has to
do, Triton's own loop takes 33 ns a step on an H200, since a step's operands are read when the one before has ended;
here they are read a turn of the loop ahead, and it takes 19.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false
from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import check_contiguous
from flowerbed.rose.kernels.fused_linear import PROCESSORS
from flowerbed.rose.kernels.small_linear import MIN_CAPABILITY

INNER = 128
"""Columns of a turn of the loop."""


class _Tile(NamedTuple):
    rows: int
    columns: int
    warps: tuple[int, int]  # that share out rows and columns
    stages: int  # turns that are under way, loaded or read


# One H200, bfloat16, µs of 2048 -> 1024 and 3072 -> 1024 in a graph, weights not in the L2 cache, for 16, 32, 64 and 128
# rows: 3.6 4.0 4.5 5.6 and 4.7 5.3 6.2 8.2; by `triton_small_linear` 4.9 5.0 5.8 5.9 and 6.9 7.1 7.8 8.1. 1024 -> 4096, for
# 16 and 32 rows: 3.8 3.7, and 4.1 4.1.
# With fewer stages two programs would fit a processor, and do lie on one while the kernel before holds the others:
# gate and up with the product that follows took 14.3 µs instead of 11.3.
_TILES = (_Tile(16, 16, (1, 2), 15), _Tile(32, 16, (2, 2), 10), _Tile(32, 32, (2, 2), 8))


@gluon.jit
def _fetch(places, BYTES: gl.constexpr):
    """Asks for so many bytes from each place on in the L2 cache; both multiples of 16."""
    starts = places.to(gl.int64)
    sizes = (starts * 0 + BYTES).to(gl.int32)
    gl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [starts, sizes],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit(do_not_specialize=["num_tokens"])
def _narrow_linear_kernel(
    x,
    weight,
    out,
    num_tokens,
    N: gl.constexpr,
    K: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    ROW_WARPS: gl.constexpr,
    COLUMN_WARPS: gl.constexpr,
    INNER: gl.constexpr,
    STAGES: gl.constexpr,
):
    """N and K are multiples of COLUMNS and INNER."""
    warps: gl.constexpr = ROW_WARPS * COLUMN_WARPS
    sums: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [ROW_WARPS, COLUMN_WARPS], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, sums, 2)
    across: gl.constexpr = INNER // 8
    loaded: gl.constexpr = gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    x_tiles = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, ROWS, INNER], shared)
    weight_tiles = gl.allocate_shared_memory(x.dtype.element_ty, [STAGES, COLUMNS, INNER], shared)
    inner = gl.arange(0, INNER, gl.SliceLayout(0, loaded))[None, :]
    rows = gl.program_id(1) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, loaded))
    first_column = gl.program_id(0) * COLUMNS
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(1, loaded))
    x_places = x + rows[:, None] * K + inner
    weight_places = weight + (first_column + columns)[:, None] * K + inner
    is_row = (rows < num_tokens)[:, None] & (inner < INNER)
    is_column = (columns < COLUMNS)[:, None] & (inner < INNER)
    turns: gl.constexpr = K // INNER
    ahead: gl.constexpr = STAGES - 1

    # The weight does not wait for the kernel before.
    for stage in gl.static_range(ahead):
        if stage < turns:
            tile = weight_tiles.index(stage)
            async_copy.async_copy_global_to_shared(tile, weight_places + stage * INNER)
    if turns > ahead:
        lanes: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
        share: gl.constexpr = 32 * warps // COLUMNS  # threads that share a row
        rest: gl.constexpr = (K - ahead * INNER) // share
        thread = gl.arange(0, 32 * warps, lanes)
        start = (first_column + thread // share) * K + ahead * INNER + thread % share * rest
        _fetch(weight + start, rest * 2)
    gdc_wait()
    gdc_launch_dependents()
    for stage in gl.static_range(ahead):
        if stage < turns:
            tile = x_tiles.index(stage)
            async_copy.async_copy_global_to_shared(tile, x_places + stage * INNER, is_row)
        async_copy.commit_group()
    async_copy.wait_group(ahead - 1)
    gl.thread_barrier()
    a = x_tiles.index(0).load(left)
    b = weight_tiles.index(0).permute((1, 0)).load(right)
    total = gl.zeros([ROWS, COLUMNS], gl.float32, sums)
    x_places += ahead * INNER
    weight_places += ahead * INNER
    read = 1
    write = ahead
    for turn in range(turns - 1):
        async_copy.wait_group(ahead - 2)
        gl.thread_barrier()
        next_a = x_tiles.index(read).load(left)
        next_b = weight_tiles.index(read).permute((1, 0)).load(right)
        total = mma_v2(a, b, total)
        is_more = turn < turns - ahead
        async_copy.async_copy_global_to_shared(x_tiles.index(write), x_places, is_row & is_more)
        next_tile = weight_tiles.index(write)
        async_copy.async_copy_global_to_shared(next_tile, weight_places, is_column & is_more)
        async_copy.commit_group()
        x_places += INNER
        weight_places += INNER
        read = gl.where(read == ahead, 0, read + 1)
        write = gl.where(write == ahead, 0, write + 1)
        a = next_a
        b = next_b
    total = mma_v2(a, b, total)
    async_copy.wait_group(0)
    out_rows = gl.program_id(1) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, sums))
    out_columns = first_column + gl.arange(0, COLUMNS, gl.SliceLayout(0, sums))
    places = out_rows[:, None] * N + out_columns[None, :]
    mask = (out_rows < num_tokens)[:, None] & (out_columns < N)[None, :]
    gl.store(out + places, total.to(out.dtype.element_ty), mask)


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether there is a form for the product of x, [num_tokens, in_features], and this weight."""
    return _tile(x.shape[0], *weight.shape, _processors(x.device)) is not None


def narrow_linear(x: Tensor, weight: Tensor) -> Tensor:
    """X W^T, rounded once, in 16 bits. On Hopper a row has the bits of all products that do not split sums."""
    check_contiguous("x", x)
    check_contiguous("weight", weight)
    num_tokens, width = x.shape
    num_columns = weight.shape[0]
    tile = _tile(num_tokens, num_columns, width, _processors(x.device))
    if tile is None:
        raise ValueError(f"no form for {num_tokens} rows of {width} -> {num_columns}")
    out = torch.empty((num_tokens, num_columns), dtype=x.dtype, device=x.device)
    _narrow_linear_kernel[(num_columns // tile.columns, triton.cdiv(num_tokens, tile.rows))](
        x,
        weight,
        out,
        num_tokens,
        N=num_columns,
        K=width,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        ROW_WARPS=tile.warps[0],
        COLUMN_WARPS=tile.warps[1],
        INNER=INNER,
        STAGES=tile.stages,
        num_warps=tile.warps[0] * tile.warps[1],
        launch_pdl=True,
    )
    return out


@cache
def _processors(device: torch.device) -> int:
    is_gpu = device.type == "cuda"
    return torch.cuda.get_device_properties(device).multi_processor_count if is_gpu else PROCESSORS


def _tile(num_tokens: int, num_columns: int, width: int, processors: int) -> _Tile | None:
    """The smallest whose programs all run at once; None: no form is the fastest, or none fits."""
    if width % INNER:
        return None
    for tile in _TILES:
        programs = num_columns // tile.columns * triton.cdiv(num_tokens, tile.rows)
        if num_columns % tile.columns == 0 and programs <= processors:
            return tile
    return None


COMPILE_CASES = {
    "_narrow_linear_kernel": [
        CompileCase(
            {"x": dtype, "weight": dtype, "out": dtype, "num_tokens": "i32"},
            {
                "N": 1024,
                "K": width,
                "ROWS": tile.rows,
                "COLUMNS": tile.columns,
                "ROW_WARPS": tile.warps[0],
                "COLUMN_WARPS": tile.warps[1],
                "INNER": INNER,
                "STAGES": tile.stages,
            },
            {"num_warps": tile.warps[0] * tile.warps[1]},
            MIN_CAPABILITY,
        )
        for tile in _TILES
        for width in (128, 384, 3072)
        for dtype in ("*bf16", "*fp16")
    ],
}
