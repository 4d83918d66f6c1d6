"""The kernels that `kernels.py` measures: what they get, how they are called, how many bytes they must move.

To add one, write a function that makes its `Case` and put a call of it into `all_cases`. All tensors
are made on torch's default device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flowerbed.rose.kernels import (
    activation,
    embedding,
    norm,
    pack,
    pooling,
    positions,
    rope,
    scaled_rows,
)
from flowerbed.rose.kernels.short_sequences import MAX_SHORT_SEQLEN, attend_short_sequences

EPS = 1e-6
VOCABULARY, NUM_POSITIONS, TEXT_TOKENS, SHORT_TEXT_TOKENS = 151_936, 512, 128, 50
DTYPE = torch.bfloat16
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one width."""

    name: str
    width: str
    inputs: Callable[[int], Tensors]
    """Fresh random tensors for so many tokens: what a step brings anew."""
    call: Callable[..., object]
    """Takes the inputs, then the constants; returns tensors or writes into the inputs."""
    num_bytes: Callable[[int], int]
    """Read and written at least, for so many tokens."""
    constants: Tensors = ()
    """Weights and tables, which stay in the cache or are read in part."""
    error: float = 0.01
    """Largest difference from fp32 on the CPU, over the largest value; bf16 rounds by 0.002 to 0.004."""


def all_cases() -> list[Case]:
    """Qwen3-0.6B's shapes, and those of BERT models small, base and large."""
    hiddens = (384, 768, 1024, 4096)
    heads = (16, 8, 128)
    return [
        *(_rms_norm(hidden) for hidden in (1024, 4096)),
        *(_add_rms_norm(hidden) for hidden in (1024, 4096)),
        *(_layer_norm(hidden) for hidden in hiddens),
        *(_add_layer_norm(hidden) for hidden in hiddens),
        _rope(heads),
        _qk_norm_rope(heads),
        *(_short_sequences(one) for one in (heads, (12, 12, 64))),
        *(_swiglu(width) for width in (3072, 4864)),
        *(_bias_gelu(width, "none") for width in (1536, 3072, 4096)),
        _bias_gelu(3072, "tanh"),
        *(_quantize_rows(width) for width in (768, 2048, 3072)),
        _scaled_add_rms_norm(1024),
        _scaled_add_layer_norm(768),
        _scaled_swiglu(3072),
        _scaled_bias_gelu(3072),
        _embed_tokens(1024),
        *(_embed_layer_norm(hidden) for hidden in hiddens[:3]),
        _token_places(),
        *(_pool(1024, mode) for mode in ("mean", "cls", "max")),
        _pool(1024, "mean", one_text=True),
        _pool(1024, "mean", max_length=MAX_SHORT_SEQLEN),
        _pack(1024),
        _pack_tanh(1024),
    ]


def _random(*shape: int) -> Tensor:
    return torch.randn(shape).to(DTYPE)


def _row_bytes(width: int) -> Callable[[int], int]:
    return lambda num_tokens: num_tokens * width * DTYPE.itemsize


def _rms_norm(hidden: int) -> Case:
    return Case(
        "rms_norm",
        str(hidden),
        lambda num_tokens: (_random(num_tokens, hidden),),
        lambda x, weight: norm.rms_norm(x, weight, EPS),
        _row_bytes(2 * hidden),
        (_random(hidden),),
    )


def _add_rms_norm(hidden: int) -> Case:
    return Case(
        "add_rms_norm",
        str(hidden),
        lambda num_tokens: (_random(num_tokens, hidden), _random(num_tokens, hidden)),
        lambda x, residual, weight: norm.add_rms_norm(x, residual, weight, EPS),
        _row_bytes(4 * hidden),
        (_random(hidden),),
    )


def _layer_norm(hidden: int) -> Case:
    return Case(
        "layer_norm",
        str(hidden),
        lambda num_tokens: (_random(num_tokens, hidden),),
        lambda x, weight, bias: norm.layer_norm(x, weight, bias, EPS),
        _row_bytes(2 * hidden),
        (_random(hidden), _random(hidden)),
    )


def _add_layer_norm(hidden: int) -> Case:
    return Case(
        "add_layer_norm",
        str(hidden),
        lambda num_tokens: (_random(num_tokens, hidden), _random(num_tokens, hidden)),
        lambda x, residual, weight, bias: norm.add_layer_norm(x, residual, weight, bias, EPS),
        _row_bytes(3 * hidden),
        (_random(hidden), _random(hidden)),
    )


def _rope_case(name: str, heads: tuple[int, int, int], call: Callable[..., None]) -> Case:
    num_heads, num_kv_heads, head_dim = heads
    width = (num_heads + 2 * num_kv_heads) * head_dim

    return Case(
        name,
        "/".join(map(str, heads)),
        lambda num_tokens: (_random(num_tokens, width), _positions(num_tokens)),
        call,
        _row_bytes(2 * (num_heads + num_kv_heads) * head_dim),
        (
            *rope.rope_tables(head_dim, 1e6, NUM_POSITIONS, torch.get_default_device()),
            _random(head_dim),
            _random(head_dim),
        ),
    )


def _positions(num_tokens: int) -> Tensor:
    return torch.arange(num_tokens, dtype=torch.int32) % NUM_POSITIONS


def _rope(heads: tuple[int, int, int]) -> Case:
    return _rope_case(
        "rope_",
        heads,
        lambda qkv, places, cos, sin, *_: rope.rope_(qkv, places, cos, sin, *heads[:2]),
    )


def _qk_norm_rope(heads: tuple[int, int, int]) -> Case:
    return _rope_case(
        "qk_norm_rope_",
        heads,
        lambda qkv, places, cos, sin, q_weight, k_weight: rope.qk_norm_rope_(
            qkv, places, cos, sin, q_weight, k_weight, EPS, *heads[:2]
        ),
    )


def _short_sequences(heads: tuple[int, int, int]) -> Case:
    num_heads, num_kv_heads, head_dim = heads
    parts = (num_heads, num_kv_heads, num_kv_heads)
    width = sum(parts) * head_dim

    def call(qkv: Tensor, cu_seqlens: Tensor) -> Tensor:
        query, key, value = qkv.view(len(qkv), -1, head_dim).split(parts, dim=1)
        return attend_short_sequences(
            query,
            key,
            value,
            cu_seqlens,
            max_seqlen=MAX_SHORT_SEQLEN,
            causal=False,
            window=None,
        )

    def inputs(num_tokens: int) -> Tensors:
        ends = _cu_seqlens(num_tokens, SHORT_TEXT_TOKENS)
        return _random(num_tokens, width), torch.cat([ends, ends[-1:]])  # without padding

    return Case(
        "attend_short_sequences",
        "/".join(map(str, heads)),
        inputs,
        call,
        _row_bytes(width + num_heads * head_dim),
    )


def _swiglu(width: int) -> Case:
    return Case(
        "swiglu",
        str(width),
        lambda num_tokens: (_random(num_tokens, 2 * width),),
        activation.swiglu,
        _row_bytes(3 * width),
    )


def _bias_gelu(width: int, approximate: activation.Approximation) -> Case:
    return Case(
        f"bias_gelu {approximate}",
        str(width),
        lambda num_tokens: (_random(num_tokens, width),),
        lambda x, bias: activation.bias_gelu(x, bias, approximate),
        _row_bytes(2 * width),
        (_random(width),),
    )


LEVEL_ERROR = 0.08
"""Two neighbouring levels of 8 bits, over the largest: which one is nearer to a value may differ."""


def _quantize_rows(width: int) -> Case:
    return Case(
        "quantize_rows",
        str(width),
        lambda num_tokens: (_random(num_tokens, width),),
        scaled_rows.quantize_rows,
        lambda num_tokens: num_tokens * (3 * width + 4),
        error=LEVEL_ERROR,
    )


def _scaled_add_rms_norm(hidden: int) -> Case:
    return Case(
        "scaled_add_rms_norm",
        str(hidden),
        lambda num_tokens: (_random(num_tokens, hidden), _random(num_tokens, hidden)),
        lambda x, residual, weight: scaled_rows.scaled_add_rms_norm(x, residual, weight, EPS),
        lambda num_tokens: num_tokens * (7 * hidden + 4),
        (_random(hidden),),
        error=LEVEL_ERROR,
    )


def _scaled_add_layer_norm(hidden: int) -> Case:
    def call(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensors:
        plain, rows = scaled_rows.scaled_add_layer_norm(x, residual, weight, bias, EPS)
        return (plain, *rows)

    return Case(
        "scaled_add_layer_norm",
        str(hidden),
        lambda num_tokens: (_random(num_tokens, hidden), _random(num_tokens, hidden)),
        call,
        lambda num_tokens: num_tokens * (7 * hidden + 4),
        (_random(hidden), _random(hidden)),
        error=LEVEL_ERROR,
    )


def _scaled_swiglu(width: int) -> Case:
    return Case(
        "scaled_swiglu",
        str(width),
        lambda num_tokens: (_random(num_tokens, 2 * width),),
        scaled_rows.scaled_swiglu,
        lambda num_tokens: num_tokens * (5 * width + 4),
        error=LEVEL_ERROR,
    )


def _scaled_bias_gelu(width: int) -> Case:
    return Case(
        "scaled_bias_gelu",
        str(width),
        lambda num_tokens: (_random(num_tokens, width),),
        lambda x, bias: scaled_rows.scaled_bias_gelu(x, bias, "none"),
        lambda num_tokens: num_tokens * (3 * width + 4),
        (_random(width),),
        error=LEVEL_ERROR,
    )


def _ids(num_tokens: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (num_tokens,), dtype=torch.int32)


def _embed_tokens(hidden: int) -> Case:
    return Case(
        "embed_tokens",
        str(hidden),
        lambda num_tokens: (_ids(num_tokens),),
        embedding.embed_tokens,
        _row_bytes(2 * hidden),
        (_random(VOCABULARY, hidden),),
    )


def _embed_layer_norm(hidden: int) -> Case:
    tables = [_random(rows, hidden) for rows in (VOCABULARY, NUM_POSITIONS, 2)]
    return Case(
        "embed_layer_norm",
        str(hidden),
        lambda num_tokens: (
            _ids(num_tokens),
            _positions(num_tokens),
            torch.randint(0, 2, (num_tokens,), dtype=torch.int32),
        ),
        lambda ids, places, types, words, places_table, types_table, weight, bias: (
            embedding.embed_layer_norm(
                ids, places, types, words, places_table, types_table, weight, bias, EPS
            )
        ),
        _row_bytes(2 * hidden),
        (*tables, _random(hidden), _random(hidden)),
    )


def _cu_seqlens(num_tokens: int, length: int = TEXT_TOKENS) -> Tensor:
    """Texts of so many tokens, the last one shorter if there are fewer."""
    ends = range(length, num_tokens, length)
    return torch.tensor([0, *ends, num_tokens], dtype=torch.int32)


def _token_places() -> Case:
    return Case(
        "token_places",
        "",
        lambda num_tokens: (
            _cu_seqlens(num_tokens),
            torch.full((len(_cu_seqlens(num_tokens)) - 1,), 40, dtype=torch.int32),
            _ids(num_tokens),
        ),
        lambda cu_seqlens, pair_starts, ids: positions.token_places(
            cu_seqlens, pair_starts, ids.shape[0]
        ),
        lambda num_tokens: 8 * num_tokens,
        error=0.0,
    )


def _pool(hidden: int, mode: str, *, one_text: bool = False, max_length: int | None = None) -> Case:
    def texts(num_tokens: int) -> Tensor:
        ends = torch.tensor([0, num_tokens], dtype=torch.int32)
        return ends if one_text else _cu_seqlens(num_tokens, max_length or TEXT_TOKENS)

    def inputs(num_tokens: int) -> Tensors:
        cu_seqlens = texts(num_tokens)
        segments = torch.stack([cu_seqlens[:-1], cu_seqlens[1:]], dim=1)
        return _random(num_tokens, hidden), segments, cu_seqlens

    def num_bytes(num_tokens: int) -> int:
        num_texts = len(texts(num_tokens)) - 1
        tokens = num_texts if mode == "cls" else num_tokens
        return (tokens * DTYPE.itemsize + num_texts * 4) * hidden

    return Case(
        f"pool_segments {mode}{', one text' if one_text else ', short' if max_length else ''}",
        str(hidden),
        inputs,
        lambda hidden, segments, cu_seqlens: pooling.pool_segments(
            hidden, segments, cu_seqlens, (mode,), max_length
        ),
        num_bytes,
    )


def _pack_inputs(num_tokens: int, dtype: pack.RowDtype, dimensions: int) -> Tensors:
    """Entries of one row for each text, rows end to end."""
    num_rows = len(_cu_seqlens(num_tokens)) - 1
    rows, row_bytes = torch.arange(num_rows), dtype.row_bytes(dimensions)
    columns = (rows, row_bytes * rows, dtype, dimensions, 1)
    formats = torch.stack([torch.as_tensor(c).expand(num_rows) for c in columns], dim=1).int()
    status_offset = torch.tensor([num_rows * row_bytes], dtype=torch.int32)
    out = torch.full((num_rows * (row_bytes + 1),), 255, dtype=torch.uint8)
    return torch.randn(num_rows, dimensions), formats, status_offset, out


def _pack(dimensions: int) -> Case:
    """One fp32 row, normalised, for each text."""

    def rows(pooled: Tensor, formats: Tensor, status_offset: Tensor, out: Tensor) -> Tensor:
        pack.pack_rows_into(pooled, formats, status_offset, out)
        return out[: 4 * pooled.numel()].view(torch.float32)

    return Case(
        "pack_rows_into",
        str(dimensions),
        lambda num_tokens: _pack_inputs(num_tokens, pack.RowDtype.FLOAT32, dimensions),
        rows,
        lambda num_tokens: 8 * dimensions * (len(_cu_seqlens(num_tokens)) - 1),
    )


def _pack_tanh(dimensions: int) -> Case:
    """One int8 row of tanh levels for each text; levels next to half a step may differ by one."""

    def rows(pooled: Tensor, formats: Tensor, status_offset: Tensor, out: Tensor) -> Tensor:
        pack.pack_rows_into(pooled, formats, status_offset, out, "tanh")
        return out[: pooled.numel()].view(torch.int8)

    return Case(
        "pack_rows_into tanh int8",
        str(dimensions),
        lambda num_tokens: _pack_inputs(num_tokens, pack.RowDtype.INT8, dimensions),
        rows,
        lambda num_tokens: 5 * dimensions * (len(_cu_seqlens(num_tokens)) - 1),
    )
