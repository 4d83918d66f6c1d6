"""RoBERTa (Liu et al., 2019), XLM-RoBERTa and CamemBERT: BERT with other positions and no segments.

Positions begin after the padding token's id, and padding tokens within a sequence have no place of
their own. Made by `engine` through `registry`.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from flowerbed.folder_files import JsonObject
from flowerbed.folder_text import positions_before_first
from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.positions import places_after_padding
from flowerbed.rose.models.bert import Bert
from flowerbed.rose.weights import Weights


class Roberta(Bert):
    """Token ids to hidden states."""

    PREFIX = "roberta."
    HEADS = ("lm_head.", "classifier.")

    def __init__(self, config: JsonObject, weights: Weights) -> None:
        """Loads the weights; ModelError if one is missing, unknown or has another shape."""
        super().__init__(config, weights)
        first = positions_before_first(config)
        self.max_positions -= first
        self.padding_id = first - 1

    def embed(self, ids: Tensor, context: ForwardContext) -> Tensor:
        """What the first layer reads, [num_tokens, hidden]; other layers take positions as they are."""
        positions = places_after_padding(ids, context.positions, self.padding_id)
        # Its tokenizers tell no second text from the first.
        return self.embedding(ids, replace(context, positions=positions, token_types=None))
