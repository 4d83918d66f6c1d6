"""The feed-forward block of a Transformer layer, with its weights. Called by models."""

from __future__ import annotations

from torch import Tensor

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

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        return self.down(self.up(x))
