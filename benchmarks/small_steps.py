"""What small steps of a model take on a GPU: `python benchmarks/small_steps.py FOLDER [--tokens 16 32 64 128]`.

For each number of tokens, in one sequence: the encoder in a CUDA graph, in the form of small steps and in
that of all others, and one launch of each kernel of a layer, beside the library's product of the same
shape. A graph holds a launch for each layer with the layer's own weights, more than the L2 cache takes;
figures are medians over replays, so that the gap between two kernels is in them. No row is checked here:
`tests/rose/test_small_steps.py` does that.

One JSON object a line on stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import machine
import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.config import BatchInvariant
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels import small_linear
from flowerbed.rose.kernels.attention import AttentionPlan
from flowerbed.rose.kernels.fused_linear import fuses_products, invariant_linear
from flowerbed.rose.kernels.norm_rope import norm_rope_
from flowerbed.rose.kernels.short_attention import plain_short_attention, short_attention
from flowerbed.rose.kernels.short_sequences import attend_short_sequences
from flowerbed.rose.models.bert import Bert, BertLayer
from flowerbed.rose.models.qwen3 import Qwen3, Qwen3Layer

NUM_REPLAYS = 41
NUM_SLOTS = 16


def main() -> None:
    """Measures each number of tokens."""
    parser = argparse.ArgumentParser(description="Measure small steps on a GPU.")
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 32, 64, 96, 128])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("error: no GPU was found; kernels run on one only")
    folder = read_folder(resolve(options.folder))
    engine = Engine.load(folder, device="cuda", batch_invariant=BatchInvariant.OFF)
    where = {**machine.describe(), "gpu": torch.cuda.get_device_name(), "dtype": str(engine.dtype)}
    encoder: Any = engine._encoder
    if not isinstance(encoder, Qwen3 | Bert):
        raise SystemExit("error: this model has no form for small steps")
    kernels: Any = _qwen3_kernels if isinstance(encoder, Qwen3) else _bert_kernels
    with torch.inference_mode(), torch.device("cuda"):
        for num_tokens in options.tokens:
            ids = torch.randint(0, engine.vocab_rows, (num_tokens,), dtype=torch.int32)
            row: dict[str, object] = {"num_tokens": num_tokens}
            # In either form, whatever the model calls small.
            context = _context(engine, num_tokens, batch_invariant=False)
            forms = [("other", 0, False), ("small", num_tokens, False)]
            if isinstance(encoder, Qwen3) and fuses_products(
                encoder.words.device, encoder.words.dtype
            ):
                forms.append(("invariant", num_tokens, True))
            for form, limit, fixed in forms:
                encoder.small_step_tokens = limit
                context = _context(engine, num_tokens, batch_invariant=fixed)
                us = _graph_us(lambda: encoder(ids, context))  # noqa: B023 - run at once
                row[f"encoder_{form}_ms"] = round(us / 1e3, 4)
            for name, call in kernels(encoder, context, num_tokens).items():
                us = _graph_us(lambda: [call(layer) for layer in encoder.layers])  # noqa: B023
                row[f"{name}_us"] = round(us / len(encoder.layers), 2)
            print(json.dumps({"benchmark": "small_steps", **row, **where}), flush=True)


def _context(engine: Engine, num_tokens: int, *, batch_invariant: bool) -> ForwardContext:
    cu_seqlens = torch.full((NUM_SLOTS + 1,), num_tokens, dtype=torch.int32)
    cu_seqlens[0] = 0
    positions = torch.arange(num_tokens, dtype=torch.int32)
    plan = AttentionPlan(engine.attention, cu_seqlens, num_tokens, batch_invariant=batch_invariant)
    return ForwardContext(positions, None, plan)


def _qwen3_kernels(
    encoder: Qwen3, context: ForwardContext, num_tokens: int
) -> dict[str, Callable[[Qwen3Layer], Tensor]]:
    """Each kernel of a layer by its name, and the library's products."""
    config = encoder.config
    heads = config.num_heads, config.num_kv_heads
    x, mixed, inner, qkv = (
        torch.randn(num_tokens, width, dtype=encoder.words.dtype)
        for width in (
            config.hidden,
            heads[0] * config.head_dim,
            config.intermediate,
            (heads[0] + 2 * heads[1]) * config.head_dim,
        )
    )
    residual = x.clone()
    first = encoder.layers[0]
    parts = small_linear.small_linear_parts(mixed, first.attention.output.weight)

    def attend(layer: Qwen3Layer) -> Tensor:
        own = layer.attention
        return short_attention(
            qkv,
            context.positions,
            *own.tables,
            own.query_norm,
            own.key_norm,
            config.eps,
            *heads,
            causal=config.causal,
            window=own.shape.window,
        )

    def turn(layer: Qwen3Layer) -> Tensor:
        weights = layer.attention.fused
        assert weights is not None
        norm_rope_(qkv, weights, context.positions, heads)
        return qkv

    def attend_again(layer: Qwen3Layer) -> Tensor:
        query, key, value = qkv.view(num_tokens, -1, config.head_dim).split(
            (*heads, heads[1]), dim=1
        )
        return attend_short_sequences(
            query,
            key,
            value,
            context.attention.cu_seqlens,
            max_seqlen=num_tokens,
            causal=config.causal,
            window=layer.attention.shape.window,
        )

    kernels: dict[str, Callable[[Qwen3Layer], Tensor]] = {
        "qkv": lambda layer: small_linear.small_linear(x, layer.attention.qkv.weight),
        "attention": attend,
        "output": lambda layer: small_linear.small_linear_parts(
            mixed, layer.attention.output.weight
        ),
        "norm": lambda layer: layer.next_norm.add_parts(parts, residual),
        "gate_up": lambda layer: small_linear.small_swiglu(x, layer.feed_forward.gate_up.weight),
        "down": lambda layer: small_linear.small_linear_parts(
            inner, layer.feed_forward.down.weight
        ),
        "library_qkv": lambda layer: functional.linear(x, layer.attention.qkv.weight),
        "library_output": lambda layer: functional.linear(mixed, layer.attention.output.weight),
        "library_gate_up": lambda layer: functional.linear(x, layer.feed_forward.gate_up.weight),
        "library_down": lambda layer: functional.linear(inner, layer.feed_forward.down.weight),
    }
    if first.attention.fused is not None:
        kernels |= {
            "invariant_rotation": turn,
            "invariant_attention": attend_again,
            "invariant_output": lambda layer: invariant_linear(
                mixed, layer.attention.output.weight, None
            ),
            "invariant_down": lambda layer: invariant_linear(
                inner, layer.feed_forward.down.weight, None
            ),
            "invariant_norm": lambda layer: layer.next_norm.add(x, residual),
        }
    return kernels


def _bert_kernels(
    encoder: Bert, context: ForwardContext, num_tokens: int
) -> dict[str, Callable[[BertLayer], Tensor]]:
    """As `_qwen3_kernels`."""
    hidden, intermediate = encoder.config.hidden, encoder.config.intermediate
    x, mixed, inner, qkv = (
        torch.randn(num_tokens, width, dtype=encoder.embedding.words.dtype)
        for width in (hidden, hidden, intermediate, 3 * hidden)
    )
    first = encoder.layers[0]
    parts = small_linear.small_linear_parts(inner, first.feed_forward.down.weight)
    products = {
        "qkv": (x, lambda layer: layer.attention.qkv),
        "output": (mixed, lambda layer: layer.attention.output),
        "up": (x, lambda layer: layer.feed_forward.up),
        "down": (inner, lambda layer: layer.feed_forward.down),
    }

    def library(name: str) -> Callable[[BertLayer], Tensor]:
        source, product = products[name]
        return lambda layer: functional.linear(source, product(layer).weight, product(layer).bias)

    def parted(name: str) -> Callable[[BertLayer], Tensor]:
        source, product = products[name]
        return lambda layer: small_linear.small_linear_parts(
            source, product(layer).weight, product(layer).bias
        )

    return {
        "qkv": lambda layer: small_linear.small_linear(
            x, layer.attention.qkv.weight, layer.attention.qkv.bias
        ),
        "attention": lambda _: plain_short_attention(
            qkv, context.positions, encoder.config.num_heads
        ),
        "output": parted("output"),
        "norm": lambda layer: layer.output_norm.add_parts(parts, x),
        "up": lambda layer: small_linear.small_gelu(
            x,
            layer.feed_forward.up.weight,
            layer.feed_forward.up.bias,
            layer.feed_forward.up.activation,
        ),
        "down": parted("down"),
        **{f"library_{name}": library(name) for name in products},
    }


def _graph_us(run: Callable[[], object]) -> float:
    """Median time of one replay."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(NUM_REPLAYS + 1)]
    for _ in range(5):
        graph.replay()
    for i, event in enumerate(events):
        event.record()
        if i < NUM_REPLAYS:
            graph.replay()
    torch.cuda.synchronize()
    del kept
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events)) * 1e3


if __name__ == "__main__":
    main()
