"""The feed-forward block of a Transformer layer, plain or gated, with its weights. Called by models."""

from __future__ import annotations

import torch
from torch import Tensor

from flowerbed.rose.kernels.fused_linear import GELUS, fuses_swiglu, invariant_linear, linear_swiglu
from flowerbed.rose.kernels.small_linear import small_gelu, small_linear_parts, small_swiglu
from flowerbed.rose.layers.linear import Linear
from flowerbed.rose.weights import Weights


class FeedForward:
    """down(activation(up(x)))."""

    def __init__(
        self, weights: Weights, up: str, down: str, sizes: tuple[int, int], activation: str
    ) -> None:
        """Takes checkpoint names of both products and their sizes (hidden, intermediate)."""
        hidden, intermediate = sizes
        self.up = Linear(
            weights.take(f"{up}.weight", intermediate, hidden),
            weights.take(f"{up}.bias", intermediate),
            activation,
        )
        self.down = Linear(
            weights.take(f"{down}.weight", hidden, intermediate),
            weights.take(f"{down}.bias", hidden),
        )
        self.has_small_step = activation in GELUS

    def __call__(self, x: Tensor, *, batch_invariant: bool = False) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        inner = self.up(x, batch_invariant=batch_invariant)
        return self.down(inner, batch_invariant=batch_invariant)

    def small_step(self, x: Tensor) -> Tensor:
        """As a call, for x that `small_linear.is_small_step` accepts; returns parts to be added up."""
        inner = small_gelu(x, self.up.weight, self.up.bias, self.up.activation)
        return small_linear_parts(inner, self.down.weight, self.down.bias)


class GatedFeedForward:
    """down(silu(gate(x)) * up(x)), gate and up in one product: SwiGLU (Shazeer, 2020)."""

    def __init__(self, weights: Weights, name: str, sizes: tuple[int, int]) -> None:
        """Takes `name`.{gate,up,down}_proj, of sizes (hidden, intermediate)."""
        hidden, intermediate = sizes
        parts = [
            weights.take(f"{name}.{part}.weight", intermediate, hidden)
            for part in ("gate_proj", "up_proj")
        ]
        self.gate_up = Linear(torch.cat(parts), None)
        self.down = Linear(weights.take(f"{name}.down_proj.weight", hidden, intermediate), None)

    def __call__(self, x: Tensor, *, batch_invariant: bool = False) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        inner = linear_swiglu(x, self.gate_up.weight, batch_invariant=batch_invariant)
        return self.down(inner, batch_invariant=batch_invariant)

    def small_step(self, x: Tensor) -> Tensor:
        """As a call, for x that `small_linear.is_small_step` accepts; returns parts to be added up."""
        return small_linear_parts(small_swiglu(x, self.gate_up.weight), self.down.weight)

    def invariant_step(self, x: Tensor) -> Tensor:
        """As a call with the same bits, for such x."""
        if not fuses_swiglu(x, self.gate_up.weight):
            return self(x, batch_invariant=True)
        return invariant_linear(small_swiglu(x, self.gate_up.weight), self.down.weight, None)
