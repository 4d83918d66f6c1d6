"""Rows in 8 bits, each with a scale of its own, and the norms and activations that end in them.

A row is divided by its largest magnitude over 448, the largest value of float8_e4m3fn, and rounded to the
nearest; arithmetic before that is in fp32 and is rounded only there. A row with a value that is no number,
or infinite, gives values that are no numbers, so that nothing hides it. Knows no models. Called by `layers`
and `kernels.scaled_linear`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.activation import Approximation
from flowerbed.rose.kernels.backend import use_triton

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
LEAST_ROW = 1e-30
"""A row whose largest magnitude is below it becomes zeros, of scale 1: its reciprocal might be infinite."""


class ScaledRows(NamedTuple):
    """A matrix whose rows are `values * scales`."""

    values: Tensor  # [num_rows, columns] float8_e4m3fn
    scales: Tensor  # [num_rows, 1] float32


def quantize_rows(x: Tensor) -> ScaledRows:
    """x, [num_rows, columns], in 8 bits."""
    if use_triton(x):
        from flowerbed.rose.kernels import triton_scaled_rows

        return triton_scaled_rows.quantize_rows(x)
    values = x.float()
    largest = values.abs().amax(-1, keepdim=True)
    is_zero = largest < LEAST_ROW
    scales = torch.where(is_zero, 1.0, largest / LARGEST)
    inverse = torch.where(is_zero, 1.0, LARGEST / largest)
    return ScaledRows((values * inverse).to(FLOAT8), scales)


def scaled_rms_norm(x: Tensor, weight: Tensor, eps: float) -> ScaledRows:
    """`norm.rms_norm` in 8 bits."""
    if use_triton(x):
        from flowerbed.rose.kernels import triton_scaled_rows

        return triton_scaled_rows.rms_norm(x, weight, eps)
    values = x.float()
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    return quantize_rows(values * scale * weight.float())


def scaled_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> ScaledRows:
    """`norm.add_rms_norm` in 8 bits; the sum takes the place of the residual, rounded to its dtype."""
    if use_triton(x):
        from flowerbed.rose.kernels import triton_scaled_rows

        return triton_scaled_rows.add_rms_norm(x, residual, weight, eps)
    return scaled_rms_norm(residual.add_(x), weight, eps)


def scaled_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, ScaledRows]:
    """`norm.add_layer_norm`, and the same in 8 bits. Overwrites x, which may be the former."""
    if use_triton(x):
        from flowerbed.rose.kernels import triton_scaled_rows

        return triton_scaled_rows.add_layer_norm(x, residual, weight, bias, eps)
    total = x.float() + residual.float()
    normed = functional.layer_norm(total, weight.shape, weight.float(), bias.float(), eps)
    return normed.to(x.dtype), quantize_rows(normed)


def scaled_swiglu(gate_up: Tensor) -> ScaledRows:
    """`activation.swiglu` in 8 bits."""
    if use_triton(gate_up):
        from flowerbed.rose.kernels import triton_scaled_rows

        return triton_scaled_rows.swiglu(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return quantize_rows(functional.silu(gate) * up)


def scaled_bias_gelu(x: Tensor, bias: Tensor | None, approximate: Approximation) -> ScaledRows:
    """`activation.bias_gelu` in 8 bits; leaves x as it is."""
    if use_triton(x):
        from flowerbed.rose.kernels import triton_scaled_rows

        return triton_scaled_rows.bias_gelu(x, bias, approximate)
    values = x.float() if bias is None else x.float() + bias.float()
    return quantize_rows(functional.gelu(values, approximate=approximate))
