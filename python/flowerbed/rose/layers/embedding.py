"""Input embeddings: words, positions and token types, summed and normalised. Called by models."""

from __future__ import annotations

from torch import Tensor

from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.embedding import embed_layer_norm
from flowerbed.rose.layers.norm import LayerNorm
from flowerbed.rose.weights import Weights


class InputEmbedding:
    """layer_norm(words[id] + types[type] + positions[position])."""

    def __init__(
        self, weights: Weights, name: str, rows: tuple[int, int, int], hidden: int, eps: float
    ) -> None:
        """Takes the rows of the three tables: words, positions, token types."""
        num_words, num_positions, num_types = rows
        self.words = weights.take(f"{name}.word_embeddings.weight", num_words, hidden)
        self.positions = weights.take(f"{name}.position_embeddings.weight", num_positions, hidden)
        self.types = weights.take(f"{name}.token_type_embeddings.weight", num_types, hidden)
        self.norm = LayerNorm(weights, f"{name}.LayerNorm", hidden, eps)

    def __call__(self, ids: Tensor, context: ForwardContext) -> Tensor:
        """ids: [num_tokens]; returns [num_tokens, hidden]. On a CPU, IndexError if one has no row."""
        return embed_layer_norm(
            ids,
            context.positions,
            context.token_types,
            self.words,
            self.positions,
            self.types,
            self.norm.weight,
            self.norm.bias,
            self.norm.eps,
        )
