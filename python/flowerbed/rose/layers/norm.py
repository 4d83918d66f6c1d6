"""Layer and RMS normalisation with their weights. Called by models."""

from __future__ import annotations

from torch import Tensor

from flowerbed.rose.kernels.add_parts import add_parts_layer_norm, add_parts_rms_norm
from flowerbed.rose.kernels.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from flowerbed.rose.kernels.scaled_rows import (
    ScaledRows,
    scaled_add_layer_norm,
    scaled_add_rms_norm,
    scaled_rms_norm,
)
from flowerbed.rose.weights import Weights


class LayerNorm:
    """layer_norm(x) or layer_norm(x + residual)."""

    def __init__(self, weights: Weights, name: str, hidden: int, eps: float) -> None:
        self.weight = weights.take(f"{name}.weight", hidden)
        self.bias = weights.take(f"{name}.bias", hidden)
        self.eps = eps

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x, residual: [num_tokens, hidden]. With a residual, x is overwritten."""
        if residual is None:
            return layer_norm(x, self.weight, self.bias, self.eps)
        return add_layer_norm(x, residual, self.weight, self.bias, self.eps)

    def add_scaled(self, x: Tensor, residual: Tensor) -> tuple[Tensor, ScaledRows]:
        """layer_norm(x + residual), and the same in 8 bits. x is overwritten."""
        return scaled_add_layer_norm(x, residual, self.weight, self.bias, self.eps)

    def add_parts(self, parts: Tensor, residual: Tensor) -> Tensor:
        """layer_norm(residual + the sum of parts, [num_parts, num_tokens, hidden] float32)."""
        return add_parts_layer_norm(parts, residual, self.weight, self.bias, self.eps)


class RMSNorm:
    """rms_norm(x), or rms_norm(residual + x), which becomes the residual."""

    def __init__(self, weights: Weights, name: str, hidden: int, eps: float) -> None:
        self.weight = weights.take(f"{name}.weight", hidden)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Adds x to the residual, in place. x, residual: [num_tokens, hidden]; returns the norm of the sum."""
        return add_rms_norm(x, residual, self.weight, self.eps)

    def scaled(self, x: Tensor) -> ScaledRows:
        """A call, in 8 bits."""
        return scaled_rms_norm(x, self.weight, self.eps)

    def add_scaled(self, x: Tensor, residual: Tensor) -> ScaledRows:
        """`add`, in 8 bits."""
        return scaled_add_rms_norm(x, residual, self.weight, self.eps)

    def add_parts(self, parts: Tensor, residual: Tensor) -> Tensor:
        """`add` of the sum of parts, [num_parts, num_tokens, hidden] float32."""
        return add_parts_rms_norm(parts, residual, self.weight, self.eps)
