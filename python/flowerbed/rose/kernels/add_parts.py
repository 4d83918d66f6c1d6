"""Norms of small steps, which add up the parts of the product before them, always in the same order.

The sum is in fp32, and rounded before more is done with it. Knows no models. Called by `layers`.
"""

from __future__ import annotations

from torch import Tensor

from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.norm import layer_norm, rms_norm
from flowerbed.rose.kernels.saturation import saturated


def add_parts_rms_norm(parts: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(residual), after the parts' sum was rounded and added to it in place.

    Args:
        parts: [num_parts, num_tokens, hidden] float32.
        residual: [num_tokens, hidden].
        weight: [hidden].
        eps: Added to the mean of squares.

    Returns:
        [num_tokens, hidden], dtype of the residual.
    """
    if use_triton(residual):
        from flowerbed.rose.kernels import triton_add_parts

        return triton_add_parts.add_parts_rms_norm(parts, residual, weight, eps)
    total = residual.float() + parts.sum(0).to(residual.dtype).float()
    return rms_norm(residual.copy_(total), weight, eps)


def add_parts_layer_norm(
    parts: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """layer_norm(residual + the parts' sum, rounded).

    Args:
        parts: [num_parts, num_tokens, hidden] float32.
        residual: [num_tokens, hidden].
        weight: [hidden].
        bias: [hidden].
        eps: Added to the variance.

    Returns:
        [num_tokens, hidden], dtype of the residual.
    """
    if use_triton(residual):
        from flowerbed.rose.kernels import triton_add_parts

        return triton_add_parts.add_parts_layer_norm(parts, residual, weight, bias, eps)
    sums = saturated(parts.sum(0), residual.dtype).to(residual.dtype)
    total = residual.float() + sums.float()
    return layer_norm(total, weight.float(), bias.float(), eps).to(residual.dtype)
