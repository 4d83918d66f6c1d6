"""Layer and RMS normalisation, with and without a residual, and rows scaled to length 1.

Sums are in fp32; results are rounded once, to the dtype of x. Layer norms read a product in float16 that
overflowed as the largest value (`saturation`): they divide by the row's spread anyway. Knows no models. Called by `layers` and
`kernels.pack`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.saturation import saturated

MIN_NORM = 1e-12
"""Shorter rows are divided by this instead, so that a zero row stays zero and is no NaN."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis.

    Args:
        x: [num_tokens, hidden].
        weight: [hidden].
        bias: [hidden].
        eps: Added to the variance.

    Returns:
        [num_tokens, hidden], dtype of x.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_norm

        return triton_norm.layer_norm(x, weight, bias, eps)
    return functional.layer_norm(saturated(x, x.dtype), weight.shape, weight, bias, eps)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """layer_norm(x + residual). Overwrites x, which may be what it returns."""
    if use_triton(x):
        from flowerbed.rose.kernels import triton_norm

        return triton_norm.add_layer_norm(x, residual, weight, bias, eps)
    total = saturated(saturated(x, x.dtype).add_(residual), x.dtype)
    return functional.layer_norm(total, weight.shape, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm: weight * x / sqrt(mean(x²) + eps) over the last axis.

    Args:
        x: [num_tokens, hidden].
        weight: [hidden].
        eps: Added to the mean of squares.

    Returns:
        [num_tokens, hidden], dtype of x.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_norm

        return triton_norm.rms_norm(x, weight, eps)
    values = x.float()
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    return (values * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(residual), after x was added to the residual in place and the sum was rounded.

    x, [num_tokens, hidden] as the residual, may be overwritten and be what it returns.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_norm

        return triton_norm.add_rms_norm(x, residual, weight, eps)
    return rms_norm(residual.add_(x), weight, eps)


def normalize_rows(rows: Tensor) -> Tensor:
    """Divides each row by max(|row|, 1e-12), norms in fp32.

    Args:
        rows: [num_rows, dimensions] float32.
    """
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.clamp_min(MIN_NORM)
