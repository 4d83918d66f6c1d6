"""`small_linear` in Triton. Weights are read once, by about as many programs as a Hopper GPU has processors.

Measured on one H200, shapes of Qwen3-0.6B, 32 tokens, weights not in the L2 cache: a step is bound by
what each processor takes in (weights and x) and by the start of kernels, not by memory.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import logging
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import (
    LOAD_ERRORS,
    check_contiguous,
    first_line,
    has_known_sums,
)
from flowerbed.rose.kernels.fused_linear import PROCESSORS
from flowerbed.rose.kernels.small_linear import MIN_CAPABILITY, starts_early
from flowerbed.rose.kernels.triton_activation import gelu
from flowerbed.rose.kernels.triton_early_start import fetch_rows, wait_for_inputs
from flowerbed.rose.kernels.triton_saturation import saturated
from flowerbed.rose.kernels.triton_short_rows import reciprocal

log = logging.getLogger(__name__)

MIN_PART = 256
"""Least inner axis of a part."""
MAX_PARTS = 8
ROWS = 64
"""Tokens of a program: the tensor cores of Hopper take 64 at once, and slower ones would serve fewer. A step of 64
tokens takes 691 µs, one of 32 in programs of 32 took 736 (one H200)."""
MIN_COLUMNS = 32
"""Of a program; by them parts are counted."""
NARROW_COLUMNS = 16
"""Of a program where they would be too few."""
NARROW_ROWS, NARROW_STAGES = 16, 5
"""Of such a program. One H200, µs for 16, 32, 64 and 128 rows of products 2048 -> 1024 and 3072 -> 1024: 16 rows 4.9 5.0 7.0 15.7
and 6.9 7.1 10.1 22.3, 64 rows 5.7 5.8 5.8 5.9 and 7.8 7.8 7.8 8.1. Either way 16 of the inner axis take 33 ns, one after another."""
MIN_INNER = 16
"""What the tensor cores take at once; a product with no more columns has one turn of the loop."""
INNER_BYTES = 256
"""What a program takes of each row at once."""
NUM_STAGES, NUM_WARPS = 4, 4


@triton.jit(do_not_specialize=["num_tokens"])
def _linear_kernel(
    x,
    weight,
    bias,
    out,
    num_tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
    FETCH: tl.constexpr,
):
    part = tl.program_id(2)
    width: tl.constexpr = K // PARTS
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    starts = weight + tl.minimum(columns, N - 1).to(tl.int64) * K + part * width
    if FETCH:
        fetch_rows(starts, COLUMNS, width, 128)
    shift = tl.zeros((COLUMNS,), tl.float32)
    if HAS_BIAS:
        shift = tl.load(bias + columns, (columns < N) & (part == 0), other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    row_mask = (rows < num_tokens)[:, None]
    x_places = x + rows[:, None] * K + part * width + inner[None, :]
    weight_places = starts[None, :] + inner[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in tl.range(0, width, INNER, num_stages=STAGES):
        if width % INNER == 0:
            a = tl.load(x_places + k, row_mask, other=0.0)
            b = tl.load(weight_places + k)
        else:
            is_inner = k + inner < width
            a = tl.load(x_places + k, row_mask & is_inner[None, :], other=0.0)
            b = tl.load(weight_places + k, is_inner[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    if ACTIVATION == "identity":
        total += shift[None, :]
    else:
        dtype: tl.constexpr = out.dtype.element_ty
        total = saturated(total.to(dtype).to(tl.float32) + shift[None, :], dtype)
        total = gelu(total, ACTIVATION == "gelu_tanh", dtype == tl.float32)
    places = (part * num_tokens + rows)[:, None] * N + columns[None, :]
    tl.store(out + places, total.to(out.dtype.element_ty), row_mask & (columns < N)[None, :])


@triton.jit(do_not_specialize=["num_tokens"])
def _swiglu_linear_kernel(
    x,
    weight,
    out,
    num_tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    STAGES: tl.constexpr,
    APPROXIMATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The product's rows are the weight's, COLUMNS of gate and then of up: 64 fill a tensor core."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    both = tl.arange(0, 2 * COLUMNS)
    columns = tl.minimum(tl.program_id(0) * COLUMNS + both % COLUMNS, N - 1)
    inner = tl.arange(0, INNER)
    starts = weight + (both // COLUMNS * N + columns).to(tl.int64) * K
    wait_for_inputs(EARLY)
    row_mask = (rows < num_tokens)[:, None]
    x_places = x + rows[:, None] * K + inner[None, :]
    weight_places = starts[:, None] + inner[None, :]
    total = tl.zeros((2 * COLUMNS, ROWS), tl.float32)
    for k in tl.range(0, K, INNER, num_stages=STAGES):
        if K % INNER == 0:
            a = tl.load(weight_places + k)
            b = tl.load(x_places + k, row_mask, other=0.0)
        else:
            is_inner = (k + inner < K)[None, :]
            a = tl.load(weight_places + k, is_inner, other=0.0)
            b = tl.load(x_places + k, row_mask & is_inner, other=0.0)
        total = tl.dot(a, b.T, total, input_precision="ieee")
    total = total.to(out.dtype.element_ty).to(tl.float32)
    gate, up = tl.split(tl.permute(tl.reshape(total, (2, COLUMNS, ROWS)), (1, 2, 0)))
    # As quack has it, so that the bits are those of a large step.
    values = gate * reciprocal(tl.exp2(gate * -1.4426950408889634) + 1.0, APPROXIMATE) * up
    out_columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    places = rows[None, :] * N + out_columns[:, None]
    mask = (rows < num_tokens)[None, :] & (out_columns < N)[:, None]
    tl.store(out + places, values.to(out.dtype.element_ty), mask)


class _Tile(NamedTuple):
    rows: int
    columns: int
    inner: int


def small_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, is_narrow: bool = False
) -> Tensor:
    """See `small_linear.small_linear`. With `is_narrow`, programs may be narrower; no bit depends on it."""
    if bias is None and (narrow := _narrow_linear(x)) is not None and narrow.serves(x, weight):
        return narrow.narrow_linear(x, weight)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    _linear(x, weight, bias, out, is_narrow=is_narrow)
    return out


def small_linear_parts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `small_linear.small_linear_parts`."""
    num_columns, width = weight.shape
    programs = triton.cdiv(num_columns, MIN_COLUMNS)
    num_parts = 1
    while (
        num_parts < MAX_PARTS
        and 2 * num_parts * programs <= PROCESSORS
        and width % (2 * num_parts) == 0
        and width // (2 * num_parts) >= MIN_PART
    ):
        num_parts *= 2
    shape = (num_parts, x.shape[0], num_columns)
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    _linear(x, weight, bias, out, num_parts=num_parts)
    return out


def small_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """See `small_linear.small_gelu`."""
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    _linear(x, weight, bias, out, activation=activation)
    return out


def small_swiglu(x: Tensor, weight: Tensor) -> Tensor:
    """See `small_linear.small_swiglu`."""
    check_contiguous("x", x)
    check_contiguous("weight", weight)
    num_tokens, width = x.shape
    intermediate = weight.shape[0] // 2
    out = torch.empty((num_tokens, intermediate), dtype=x.dtype, device=x.device)
    tile = _tile(x, num_tokens)
    if num_tokens > ROWS and x.element_size() == 2:
        tile = tile._replace(rows=2 * ROWS)  # half of as many programs, which then all run at once
    early = starts_early(x.device)
    columns = 32
    _swiglu_linear_kernel[(triton.cdiv(intermediate, columns), triton.cdiv(num_tokens, tile.rows))](
        x,
        weight,
        out,
        num_tokens,
        N=intermediate,
        K=width,
        ROWS=tile.rows,
        COLUMNS=columns,
        INNER=tile.inner,
        STAGES=NUM_STAGES,
        APPROXIMATE=x.is_cuda,
        EARLY=early,
        num_warps=NUM_WARPS,
        launch_pdl=early,
    )
    return out


def _narrow_linear(x: Tensor) -> Any:
    """`triton_narrow_linear` where its kernels run, else None."""
    is_known = x.element_size() == 2 and starts_early(x.device) and has_known_sums()
    return _gluon() if is_known else None


@cache
def _gluon() -> Any:
    try:
        from flowerbed.rose.kernels import triton_narrow_linear
    except LOAD_ERRORS as error:
        log.warning("Gluon does not load (%s): small steps are slower", first_line(error))
        return None
    return triton_narrow_linear


def _linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    num_parts: int = 1,
    activation: str = "identity",
    is_narrow: bool = False,
) -> None:
    check_contiguous("x", x)
    check_contiguous("weight", weight)
    num_tokens, width = x.shape
    num_columns = weight.shape[0]
    tile = _tile(x, num_tokens)
    if width // num_parts <= tile.inner:
        # At least two turns of the loop: of one alone Triton would start the sum with the bias.
        tile = tile._replace(inner=max(MIN_INNER, triton.next_power_of_2(width // num_parts) // 2))
    programs = triton.cdiv(num_columns, tile.columns) * triton.cdiv(num_tokens, tile.rows)
    stages = NUM_STAGES
    if is_narrow and 2 * programs < PROCESSORS:
        rows = NARROW_ROWS if num_tokens <= 2 * NARROW_ROWS else tile.rows
        tile = tile._replace(rows=rows, columns=NARROW_COLUMNS)
        stages = NARROW_STAGES
    early = starts_early(x.device)
    # A thread's share of a row of the part should be whole vectors of 16 bytes.
    threads = 32 * NUM_WARPS // tile.columns
    can_fetch = x.element_size() == 2 and width // num_parts % (8 * threads) == 0
    grid = (triton.cdiv(num_columns, tile.columns), triton.cdiv(num_tokens, tile.rows), num_parts)
    _linear_kernel[grid](
        x,
        weight,
        x if bias is None else bias,
        out,
        num_tokens,
        N=num_columns,
        K=width,
        PARTS=num_parts,
        HAS_BIAS=bias is not None,
        ACTIVATION=activation,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        INNER=tile.inner,
        STAGES=stages,
        EARLY=early,
        FETCH=early and can_fetch,
        num_warps=NUM_WARPS,
        launch_pdl=early,
    )


def _tile(x: Tensor, num_tokens: int) -> _Tile:
    """Few tokens: narrow columns, for programs enough. More: wide ones, since each reads all of x."""
    return _Tile(ROWS, MIN_COLUMNS if num_tokens <= ROWS else 64, INNER_BYTES // x.element_size())


_TYPES = {"x": "*x", "weight": "*x", "num_tokens": "i32"}
_OPTIONS = {"num_warps": NUM_WARPS}
_EARLY = [(False, False, (8, 0)), (True, True, MIN_CAPABILITY)]
_FORMS = [  # activation, has a bias, parts, N, K, columns
    ("identity", False, 1, 1024, 2048, MIN_COLUMNS),
    ("identity", False, 4, 1024, 2048, 64),
    ("identity", True, 2, 312, 1200, 64),
    ("gelu", True, 1, 3072, 768, 64),
    ("gelu_tanh", True, 1, 1536, 384, 32),
    ("identity", False, 1, 1024, 3072, NARROW_COLUMNS),
]
COMPILE_CASES = {
    "_linear_kernel": [
        CompileCase(
            {**_TYPES, "bias": "*x", "out": "*fp32" if parts > 1 else "*x"},
            {
                "N": outputs,
                "K": inputs,
                "PARTS": parts,
                "HAS_BIAS": has_bias,
                "ACTIVATION": activation,
                "ROWS": NARROW_ROWS if columns == NARROW_COLUMNS else ROWS,
                "COLUMNS": columns,
                "INNER": INNER_BYTES // 2,
                "STAGES": NARROW_STAGES if columns == NARROW_COLUMNS else NUM_STAGES,
                "EARLY": early,
                "FETCH": fetch and outputs != 312,
            },
            _OPTIONS,
            capability,
        )
        for activation, has_bias, parts, outputs, inputs, columns in _FORMS
        for early, fetch, capability in _EARLY
    ],
    "_swiglu_linear_kernel": [
        CompileCase(
            {**_TYPES, "out": "*x"},
            {
                "N": 3072,
                "K": 1024,
                "ROWS": rows,
                "COLUMNS": 32,
                "INNER": INNER_BYTES // 2,
                "STAGES": NUM_STAGES,
                "APPROXIMATE": True,
                "EARLY": early,
            },
            _OPTIONS,
            capability,
        )
        for early, _, capability in _EARLY
        for rows in (ROWS, 2 * ROWS)
    ],
}
