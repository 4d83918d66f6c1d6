"""BERT (Devlin et al., 2018): a bidirectional Transformer encoder with learned positions.

Each layer is x = LayerNorm(x + attention(x)), then x = LayerNorm(x + feed_forward(x)). Knows nothing
of pooling or of who calls. Made by `engine` through `registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from flowerbed.config import DType
from flowerbed.errors import ModelError
from flowerbed.folder_files import JsonObject, check_supported, positive, setting
from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.scaled_rows import ScaledRows, quantize_rows
from flowerbed.rose.kernels.small_linear import encoder_step_tokens, is_small_step
from flowerbed.rose.layers.attention import AttentionNames, SelfAttention
from flowerbed.rose.layers.embedding import InputEmbedding
from flowerbed.rose.layers.mlp import FeedForward
from flowerbed.rose.layers.norm import LayerNorm
from flowerbed.rose.layers.scaled import ScaledFeedForward, ScaledSelfAttention
from flowerbed.rose.weights import Weights

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""config.json's hidden_act -> name in `kernels.linear`."""
SUPPORTED_SETTINGS: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}
"""Values that can be honoured, beside null or none."""


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The part of config.json that a BERT is made from."""

    vocab_rows: int
    max_positions: int
    type_rows: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    activation: str
    eps: float

    @classmethod
    def read(cls, config: JsonObject) -> Self:
        """Checks the settings; ModelError names one that cannot be honoured."""
        where = "config.json"
        check_supported(where, config, SUPPORTED_SETTINGS)
        activation = setting(where, config, "hidden_act", str, "gelu")
        if activation not in ACTIVATIONS:
            raise ModelError(
                f"{where}: hidden_act={activation[:80]!r} is not supported; "
                f"supported: {', '.join(ACTIVATIONS)}"
            )
        read = cls(
            vocab_rows=positive(where, config, "vocab_size"),
            max_positions=positive(where, config, "max_position_embeddings"),
            type_rows=positive(where, config, "type_vocab_size"),
            hidden=positive(where, config, "hidden_size"),
            intermediate=positive(where, config, "intermediate_size"),
            num_layers=positive(where, config, "num_hidden_layers"),
            num_heads=positive(where, config, "num_attention_heads"),
            activation=ACTIVATIONS[activation],
            eps=setting(where, config, "layer_norm_eps", float, 1e-12),
        )
        if read.hidden % read.num_heads:
            raise ModelError(
                f"{where}: hidden_size={read.hidden} is no multiple of "
                f"num_attention_heads={read.num_heads}"
            )
        return read


class Bert:
    """Token ids to hidden states."""

    gpu_dtype: ClassVar[DType] = DType.FLOAT16
    PREFIX = "bert."
    HEADS = ("cls.",)  # beside the prefix: of other tasks, not loaded

    def __init__(self, config: JsonObject, weights: Weights) -> None:
        """Loads the weights; ModelError if one is missing, unknown or has another shape."""
        self.config = read = BertConfig.read(config)
        self.vocab_rows = read.vocab_rows
        self.max_positions = read.max_positions
        self.head_dim = read.hidden // read.num_heads
        self.small_step_tokens = encoder_step_tokens(read.hidden, self.head_dim)
        dense_flops = 2 * (
            4 * read.hidden**2 + 2 * read.hidden * read.intermediate
        )  # a token and layer
        self.attention_scale = dense_flops / (4 * read.hidden)
        weights.rename(
            prefix=self.PREFIX,
            ignored=("pooler.", "embeddings.position_ids"),
            ignored_heads=self.HEADS,
        )
        rows = (read.vocab_rows, read.max_positions, read.type_rows)
        self.embedding = InputEmbedding(weights, "embeddings", rows, read.hidden, read.eps)
        self.layers: list[BertLayer] = []
        self.scaled_layers: list[ScaledBertLayer] = []  # instead of those, in 8 bits
        for number in range(read.num_layers):
            layer = BertLayer(weights, f"encoder.layer.{number}", read)
            if weights.in_8_bits:
                self.scaled_layers.append(ScaledBertLayer(layer))
            else:
                self.layers.append(layer)

    def __call__(self, ids: Tensor, context: ForwardContext) -> Tensor:
        """ids: [num_tokens] int64; returns [num_tokens, hidden]."""
        x = self.embed(ids, context)
        is_small = not context.batch_invariant and is_small_step(x, self.small_step_tokens)
        for layer in self.layers:
            x = (layer.small_step if is_small and layer.has_small_step else layer)(x, context)
        if self.scaled_layers:
            rows = quantize_rows(x)
            for layer in self.scaled_layers:
                x, rows = layer(x, rows, context)
        return x

    def embed(self, ids: Tensor, context: ForwardContext) -> Tensor:
        """What the first layer reads, [num_tokens, hidden]."""
        return self.embedding(ids, context)


class BertLayer:
    """Attention and feed-forward, each with a residual and a layer norm after it."""

    def __init__(self, weights: Weights, name: str, config: BertConfig) -> None:
        attention = f"{name}.attention"
        self.attention = SelfAttention(
            weights,
            AttentionNames(
                query=f"{attention}.self.query",
                key=f"{attention}.self.key",
                value=f"{attention}.self.value",
                output=f"{attention}.output.dense",
            ),
            config.hidden,
            config.num_heads,
        )
        self.attention_norm = LayerNorm(
            weights, f"{attention}.output.LayerNorm", config.hidden, config.eps
        )
        self.feed_forward = FeedForward(
            weights,
            f"{name}.intermediate.dense",
            f"{name}.output.dense",
            (config.hidden, config.intermediate),
            config.activation,
        )
        self.output_norm = LayerNorm(weights, f"{name}.output.LayerNorm", config.hidden, config.eps)
        self.has_small_step = self.attention.has_small_step and self.feed_forward.has_small_step

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """x: [num_tokens, hidden]; returns the same shape."""
        x = self.attention_norm(self.attention(x, context), residual=x)
        inner = self.feed_forward(x, batch_invariant=context.batch_invariant)
        return self.output_norm(inner, residual=x)

    def small_step(self, x: Tensor, context: ForwardContext) -> Tensor:
        """As a call, for x that `small_linear.is_small_step` accepts, where `has_small_step`."""
        x = self.attention_norm.add_parts(self.attention.small_step(x, context), residual=x)
        return self.output_norm.add_parts(self.feed_forward.small_step(x), residual=x)


class ScaledBertLayer:
    """`BertLayer` with products in 8 bits."""

    def __init__(self, plain: BertLayer) -> None:
        self.attention = ScaledSelfAttention(plain.attention)
        self.attention_norm = plain.attention_norm
        self.feed_forward = ScaledFeedForward(plain.feed_forward)
        self.output_norm = plain.output_norm

    def __call__(
        self, x: Tensor, rows: ScaledRows, context: ForwardContext
    ) -> tuple[Tensor, ScaledRows]:
        """x: [num_tokens, hidden], and the same in 8 bits; returns as much."""
        x, rows = self.attention_norm.add_scaled(self.attention(rows, context), x)
        return self.output_norm.add_scaled(self.feed_forward(rows), x)
