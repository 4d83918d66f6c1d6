"""A linear layer with an optional activation. Called by models and other layers."""

from __future__ import annotations

from torch import Tensor

from flowerbed.rose.kernels.fused_linear import linear_activation
from flowerbed.rose.kernels.linear import pack_weight


class Linear:
    """activation(x W^T + b)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "identity") -> None:
        """Takes weight [out_features, in_features] and bias [out_features]."""
        self.weight = pack_weight(weight)
        self.bias = bias
        self.activation = activation

    def __call__(self, x: Tensor, *, batch_invariant: bool = False) -> Tensor:
        """x: [num_rows, in_features]; returns [num_rows, out_features]. With `batch_invariant`, see `invariant_linear`."""
        return linear_activation(
            x, self.weight, self.bias, self.activation, batch_invariant=batch_invariant
        )
