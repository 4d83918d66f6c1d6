"""Qwen3 (Yang et al., 2025): a Transformer with rotary positions and RMS norms, without its language head.

Each layer is x = x + attention(norm(x)), then x = x + feed_forward(norm(x)). A token sees what is
before it (Qwen3-Embedding), or the whole text where config.json says `is_causal` false and in
pplx-embed models. Knows nothing of pooling or of who calls. Made by `engine` through `registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from flowerbed.config import DType
from flowerbed.errors import ModelError
from flowerbed.folder_files import (
    JsonObject,
    check_supported,
    positive,
    positive_number,
    setting,
)
from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.backend import has_known_sums
from flowerbed.rose.kernels.embedding import embed_tokens
from flowerbed.rose.kernels.rope import rope_tables
from flowerbed.rose.kernels.scaled_rows import ScaledRows
from flowerbed.rose.kernels.small_linear import SMALL_STEP_TOKENS, is_small_step
from flowerbed.rose.layers.mlp import GatedFeedForward
from flowerbed.rose.layers.norm import RMSNorm
from flowerbed.rose.layers.rotary import AttentionShape, RopeTables, RotaryAttention
from flowerbed.rose.layers.scaled import ScaledGatedFeedForward, ScaledRotaryAttention
from flowerbed.rose.weights import Weights

WHERE = "config.json"
BIDIRECTIONAL_TYPE = "bidirectional_pplx_qwen3"
"""model_type of pplx-embed, whose own code turns causality off whatever config.json says."""
SUPPORTED_SETTINGS: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
}
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """The part of config.json that a Qwen3 is made from."""

    vocab_rows: int
    max_positions: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    causal: bool
    windows: tuple[int | None, ...]  # of each layer, as `AttentionShape` has it

    @classmethod
    def read(cls, config: JsonObject) -> Self:
        """Checks the settings; ModelError names one that cannot be honoured."""
        check_supported(WHERE, config, SUPPORTED_SETTINGS)
        causal = _is_causal(config)
        read = cls(
            vocab_rows=positive(WHERE, config, "vocab_size"),
            max_positions=positive(WHERE, config, "max_position_embeddings"),
            hidden=positive(WHERE, config, "hidden_size"),
            intermediate=positive(WHERE, config, "intermediate_size"),
            num_heads=positive(WHERE, config, "num_attention_heads"),
            num_kv_heads=positive(WHERE, config, "num_key_value_heads"),
            head_dim=positive(WHERE, config, "head_dim"),
            eps=positive_number(WHERE, config, "rms_norm_eps"),
            rope_theta=_rope_theta(config),
            causal=causal,
            windows=_windows(config, causal),
        )
        if read.num_heads % read.num_kv_heads:
            raise ModelError(
                f"{WHERE}: num_attention_heads={read.num_heads} is no multiple of "
                f"num_key_value_heads={read.num_kv_heads}"
            )
        if read.head_dim % 2:
            raise ModelError(f"{WHERE}: head_dim={read.head_dim} is odd, so that no pairs rotate")
        return read

    @property
    def attention_scale(self) -> float:
        """L* in tokens: a text so long takes as much work for attention as for the products.

        A causal token sees half of the text on average.
        """
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        weights = self.hidden * (2 * width + 2 * kv_width + 3 * self.intermediate)
        return 2 * weights / (4 * width) * (2 if self.causal else 1)


class Qwen3:
    """Token ids to hidden states."""

    # The residual grows from layer to layer without a norm.
    gpu_dtype: ClassVar[DType] = DType.BFLOAT16

    def __init__(self, config: JsonObject, weights: Weights) -> None:
        """Loads the weights; ModelError if one is missing, unknown or has another shape."""
        self.config = read = Qwen3Config.read(config)
        self.vocab_rows = read.vocab_rows
        self.max_positions = read.max_positions
        self.head_dim = read.head_dim
        self.attention_scale = read.attention_scale
        weights.rename(
            prefix="model.", ignored=("lm_head.", "rotary_emb.inv_freq"), ignored_heads=()
        )
        self.words = weights.take("embed_tokens.weight", read.vocab_rows, read.hidden)
        tables = rope_tables(read.head_dim, read.rope_theta, read.max_positions, self.words.device)
        norms = [f"layers.{layer}.input_layernorm" for layer in range(len(read.windows))]
        self.input_norm = RMSNorm(weights, norms[0], read.hidden, read.eps)
        self.small_step_tokens = SMALL_STEP_TOKENS
        self.layers: list[Qwen3Layer] = []
        self.scaled_layers: list[ScaledQwen3Layer] = []  # instead of those, in 8 bits
        for number, window in enumerate(read.windows):
            names = f"layers.{number}", [*norms, "norm"][number + 1]
            layer = Qwen3Layer(weights, names, read, window, tables)
            if weights.in_8_bits:
                self.scaled_layers.append(ScaledQwen3Layer(layer))
            else:
                self.layers.append(layer)

    def __call__(self, ids: Tensor, context: ForwardContext) -> Tensor:
        """ids: [num_tokens], any integers; returns [num_tokens, hidden]."""
        residual = embed_tokens(ids, self.words)
        if self.scaled_layers:
            return self._in_8_bits(residual, context)
        x = self.input_norm(residual)
        run = Qwen3Layer.__call__
        if is_small_step(x, self.small_step_tokens):
            if not context.batch_invariant:
                run = Qwen3Layer.small_step
            elif has_known_sums():
                run = Qwen3Layer.invariant_step
        for layer in self.layers:
            x = run(layer, x, residual, context)
        return x

    def _in_8_bits(self, residual: Tensor, context: ForwardContext) -> Tensor:
        *layers, last = self.scaled_layers
        x = self.input_norm.scaled(residual)
        for layer in layers:
            x = layer.next_norm.add_scaled(layer(x, residual, context), residual)
        return last.next_norm.add(last(x, residual, context), residual)


class Qwen3Layer:
    """Attention and feed-forward, each added to the residual; the norm after each addition is one with it."""

    def __init__(
        self,
        weights: Weights,
        names: tuple[str, str],
        config: Qwen3Config,
        window: int | None,
        tables: RopeTables,
    ) -> None:
        """Takes the names of the layer and of the norm after it: the next layer's first, or the last."""
        name, next_norm = names
        shape = AttentionShape(
            hidden=config.hidden,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.eps,
            theta=config.rope_theta,
            causal=config.causal,
            window=window,
        )
        sizes = (config.hidden, config.intermediate)
        self.attention = RotaryAttention(weights, f"{name}.self_attn", shape, tables)
        self.attention_norm = RMSNorm(
            weights, f"{name}.post_attention_layernorm", config.hidden, config.eps
        )
        self.feed_forward = GatedFeedForward(weights, f"{name}.mlp", sizes)
        self.next_norm = RMSNorm(weights, next_norm, config.hidden, config.eps)

    def __call__(self, x: Tensor, residual: Tensor, context: ForwardContext) -> Tensor:
        """The norm of the residual after this layer.

        Args:
            x: [num_tokens, hidden], the norm of the residual before it.
            residual: [num_tokens, hidden]; both parts of the layer are added to it, in place.
            context: Where the tokens stand.
        """
        x = self.attention_norm.add(self.attention(x, context), residual)
        inner = self.feed_forward(x, batch_invariant=context.batch_invariant)
        return self.next_norm.add(inner, residual)

    def small_step(self, x: Tensor, residual: Tensor, context: ForwardContext) -> Tensor:
        """As a call, for x that `small_linear.is_small_step` accepts."""
        x = self.attention_norm.add_parts(self.attention.small_step(x, context), residual)
        return self.next_norm.add_parts(self.feed_forward.small_step(x), residual)

    def invariant_step(self, x: Tensor, residual: Tensor, context: ForwardContext) -> Tensor:
        """As a call with the same bits, for such x."""
        x = self.attention_norm.add(self.attention.invariant_step(x, context), residual)
        return self.next_norm.add(self.feed_forward.invariant_step(x), residual)


class ScaledQwen3Layer:
    """`Qwen3Layer` with products in 8 bits, and without the last addition and norm."""

    def __init__(self, plain: Qwen3Layer) -> None:
        self.attention = ScaledRotaryAttention(plain.attention)
        self.attention_norm = plain.attention_norm
        self.feed_forward = ScaledGatedFeedForward(plain.feed_forward)
        self.next_norm = plain.next_norm

    def __call__(self, x: ScaledRows, residual: Tensor, context: ForwardContext) -> Tensor:
        """What the feed-forward adds to the residual; what attention adds is added. As for `Qwen3Layer`."""
        x = self.attention_norm.add_scaled(self.attention(x, context), residual)
        return self.feed_forward(x)


def _is_causal(config: JsonObject) -> bool:
    if config.get("model_type") == BIDIRECTIONAL_TYPE:
        return False
    if config.get("use_bidirectional_attention"):
        raise ModelError(
            f"{WHERE}: use_bidirectional_attention is not read by transformers' Qwen3, so that it "
            "may not be meant; if it is, set is_causal to false instead"
        )
    return setting(WHERE, config, "is_causal", bool, True)


def _rope_theta(config: JsonObject) -> float:
    """Base of the rotary angles, as transformers 4 or 5 writes it; ModelError if they are scaled."""
    for name in ("rope_scaling", "rope_parameters"):
        values = setting(WHERE, config, name, dict, {})
        kind = values.get("rope_type", values.get("type", "default"))
        if kind != "default" or values.keys() - {"rope_type", "type", "rope_theta"}:
            raise ModelError(
                f"{WHERE}: {name}={str(values)[:160]} is not supported; supported: null, or "
                "rope_type default with rope_theta"
            )
    parameters = setting(WHERE, config, "rope_parameters", dict, {})
    return positive_number(
        WHERE, parameters if "rope_theta" in parameters else config, "rope_theta"
    )


def _windows(config: JsonObject, causal: bool) -> tuple[int | None, ...]:
    """How many tokens each layer sees to a side; None: all."""
    num_layers = positive(WHERE, config, "num_hidden_layers")
    size = None
    if setting(WHERE, config, "use_sliding_window", bool, False):
        size = positive(WHERE, config, "sliding_window")
    first = num_layers if size is None else setting(WHERE, config, "max_window_layers", int, 28)
    kinds = setting(
        WHERE,
        config,
        "layer_types",
        list,
        [LAYER_TYPES[layer >= first] for layer in range(num_layers)],
    )
    if len(kinds) != num_layers or not all(kind in LAYER_TYPES for kind in kinds):
        raise ModelError(
            f"{WHERE}: layer_types should name one of {', '.join(LAYER_TYPES)} for each of the "
            f"{num_layers} layers"
        )
    if "sliding_attention" in kinds and size is None:
        raise ModelError(
            f"{WHERE}: layer_types has sliding_attention, but use_sliding_window is not true"
        )
    # transformers counts the token itself among those that it sees, but not in both directions.
    reach = size - 1 if causal and size is not None else size
    return tuple(reach if kind == "sliding_attention" else None for kind in kinds)
