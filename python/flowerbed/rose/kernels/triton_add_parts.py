"""`add_parts` in Triton: a program takes one token."""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import check_contiguous, power_of_two
from flowerbed.rose.kernels.small_linear import MIN_CAPABILITY, starts_early
from flowerbed.rose.kernels.triton_early_start import wait_for_inputs
from flowerbed.rose.kernels.triton_norm import standardize
from flowerbed.rose.kernels.triton_saturation import saturated

NUM_WARPS = 4


@triton.jit(do_not_specialize=["num_tokens"])
def _add_parts_rms_norm_kernel(
    parts,
    residual,
    weight,
    out,
    num_tokens,
    eps,
    H: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    columns = tl.arange(0, COLUMNS)
    mask = columns < H
    scale = tl.load(weight + columns, mask, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    places = tl.program_id(0) * H + columns
    values = tl.load(residual + places, mask, other=0.0).to(tl.float32)
    total = tl.load(parts + places, mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * num_tokens * H + places, mask, other=0.0)
    total = total.to(residual.dtype.element_ty).to(tl.float32)
    rounded = (values + total).to(residual.dtype.element_ty)
    tl.store(residual + places, rounded, mask)
    values = rounded.to(tl.float32)
    mean_square = tl.sum(values * values, axis=0) / H
    values = values * tl.rsqrt(mean_square + eps) * scale
    tl.store(out + places, values.to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _add_parts_layer_norm_kernel(
    parts,
    residual,
    weight,
    bias,
    out,
    num_tokens,
    eps,
    H: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = columns < H
    scale = tl.load(weight + columns, mask, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    places = tl.program_id(0) * H + columns
    values = tl.load(residual + places, mask, other=0.0).to(tl.float32)
    total = tl.load(parts + places, mask, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * num_tokens * H + places, mask, other=0.0)
    total = saturated(total, residual.dtype.element_ty)
    values += total.to(residual.dtype.element_ty).to(tl.float32)
    values = standardize(values, scale, shift, eps, mask, H)
    tl.store(out + places, values.to(out.dtype.element_ty), mask)


def add_parts_rms_norm(parts: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `add_parts.add_parts_rms_norm`."""
    return _launch(_add_parts_rms_norm_kernel, parts, residual, (weight,), eps)


def add_parts_layer_norm(
    parts: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """See `add_parts.add_parts_layer_norm`."""
    return _launch(_add_parts_layer_norm_kernel, parts, residual, (weight, bias), eps)


def _launch(
    kernel: triton.JITFunction,
    parts: Tensor,
    residual: Tensor,
    weights: tuple[Tensor, ...],
    eps: float,
) -> Tensor:
    check_contiguous("parts", parts)
    check_contiguous("residual", residual)
    num_parts, num_tokens, hidden = parts.shape
    out = torch.empty_like(residual)
    early = starts_early(residual.device)
    kernel[(num_tokens,)](
        parts,
        residual,
        *weights,
        out,
        num_tokens,
        eps,
        H=hidden,
        PARTS=num_parts,
        COLUMNS=power_of_two(hidden),
        EARLY=early,
        num_warps=NUM_WARPS,
        launch_pdl=early,
    )
    return out


_TYPES = {
    **dict.fromkeys(("residual", "weight", "out"), "*x"),
    "parts": "*fp32",
    "num_tokens": "i32",
    "eps": "fp32",
}
_OPTIONS = {"num_warps": NUM_WARPS}
_EARLY = [(False, (8, 0)), (True, MIN_CAPABILITY)]
COMPILE_CASES = {
    "_add_parts_rms_norm_kernel": [
        CompileCase(
            _TYPES,
            {"H": 1024, "PARTS": 4, "COLUMNS": 1024, "EARLY": early},
            _OPTIONS,
            capability,
        )
        for early, capability in _EARLY
    ],
    "_add_parts_layer_norm_kernel": [
        CompileCase(
            {**_TYPES, "bias": "*x"},
            {"H": hidden, "PARTS": 2, "COLUMNS": power_of_two(hidden), "EARLY": early},
            _OPTIONS,
            capability,
        )
        for hidden in (312, 768)
        for early, capability in _EARLY
    ],
}
