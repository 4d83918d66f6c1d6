"""`embedding` in Triton: whole rows, one launch. Indices are clamped to the tables."""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import (
    MAX_CHUNK,
    Tile,
    chunk_tile,
    has_many_rows,
    row_tile,
)
from flowerbed.rose.kernels.triton_row_chunks import (
    add_chunks,
    load_chunks,
    load_vector,
    store_layer_norm,
)


@triton.jit
def _row_offsets(index, tokens, num_tokens, num_rows, H: tl.constexpr):
    """First element of each token's row in a table, [ROWS, 1] int64."""
    row = tl.load(index + tokens, tokens < num_tokens, other=0)
    return tl.minimum(tl.maximum(row, 0), num_rows - 1).to(tl.int64) * H


@triton.jit(do_not_specialize=["num_tokens", "num_words"])
def _embed_kernel(
    ids,
    table,
    out,
    num_tokens,
    num_words,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = (tokens < num_tokens) & (columns < H)
    values = tl.load(table + (_row_offsets(ids, tokens, num_tokens, num_words, H) + columns), mask)
    tl.store(out + (tokens.to(tl.int64) * H + columns), values, mask)


@triton.jit(do_not_specialize=["num_tokens", "num_words", "num_positions", "num_types"])
def _embed_layer_norm_kernel(
    ids,
    positions,
    token_types,
    words,
    positions_table,
    types_table,
    weight,
    bias,
    out,
    num_tokens,
    num_words,
    num_positions,
    num_types,
    eps,
    HAS_TYPES: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.arange(0, ROWS)[:, None]
    tokens = tl.program_id(0) * ROWS + rows
    columns = tl.arange(0, COLUMNS)[None, :]
    is_row = tokens < num_tokens
    word = _row_offsets(ids, tokens, num_tokens, num_words, H)
    place = _row_offsets(positions, tokens, num_tokens, num_positions, H)
    if HAS_TYPES:
        kind = _row_offsets(token_types, tokens, num_tokens, num_types, H)
    chunks = load_chunks(words, word, is_row, columns, H, COLUMNS, "")
    added = load_chunks(positions_table, place, is_row, columns, H, COLUMNS, "")
    if HAS_TYPES:
        types = load_chunks(types_table, kind, is_row, columns, H, COLUMNS, "")
    else:
        types = load_vector(types_table, rows, columns, H, COLUMNS)
    scale = load_vector(weight, rows, columns, H, COLUMNS)
    shift = load_vector(bias, rows, columns, H, COLUMNS)
    sums = add_chunks(add_chunks(chunks, added), types)
    starts = tokens.to(tl.int64) * H
    store_layer_norm(out, sums, scale, shift, starts, is_row, columns, eps, H, COLUMNS)


def embed_tokens(ids: Tensor, table: Tensor) -> Tensor:
    """See `embedding.embed_tokens`."""
    num_tokens, hidden = ids.shape[0], table.shape[1]
    out = torch.empty((num_tokens, hidden), dtype=table.dtype, device=table.device)
    rows, columns, num_warps = row_tile(out, hidden)
    _embed_kernel[(triton.cdiv(num_tokens, rows),)](
        ids,
        table,
        out,
        num_tokens,
        table.shape[0],
        H=hidden,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps,
    )
    return out


def embed_layer_norm(
    ids: Tensor,
    positions: Tensor,
    token_types: Tensor | None,
    words: Tensor,
    positions_table: Tensor,
    types_table: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> Tensor:
    """See `embedding.embed_layer_norm`."""
    num_tokens, hidden = ids.shape[0], words.shape[1]
    out = torch.empty((num_tokens, hidden), dtype=words.dtype, device=words.device)
    rows, columns, num_warps = _layer_norm_tile(out)
    _embed_layer_norm_kernel[(triton.cdiv(num_tokens, rows),)](
        ids,
        positions,
        positions if token_types is None else token_types,
        words,
        positions_table,
        types_table,
        weight,
        bias,
        out,
        num_tokens,
        words.shape[0],
        positions_table.shape[0],
        types_table.shape[0],
        eps,
        HAS_TYPES=token_types is not None,
        H=hidden,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps,
    )
    return out


def _layer_norm_tile(out: Tensor) -> Tile:
    hidden = out.shape[1]
    is_narrow = hidden < 3 * MAX_CHUNK
    num_warps = 4 if is_narrow and has_many_rows(out) else 1
    return chunk_tile(out, hidden, num_warps) or row_tile(out, hidden)


_SIZES = {"H": 1024, "ROWS": 2, "COLUMNS": 1024}
_LAYER_NORM_SIZES = [
    (_SIZES, 4),
    ({"H": 384, "ROWS": 8, "COLUMNS": 128}, 4),
    ({"H": 768, "ROWS": 1, "COLUMNS": 256}, 1),
]
_INDICES = ("ids", "positions", "token_types")
_VALUES = ("words", "positions_table", "types_table", "weight", "bias", "out")
_COUNTS = ("num_tokens", "num_words", "num_positions", "num_types")
COMPILE_CASES = {
    "_embed_kernel": [
        CompileCase(
            {"ids": "*i32", "table": "*x", "out": "*x", "num_tokens": "i32", "num_words": "i32"},
            _SIZES,
            {"num_warps": 4},
        )
    ],
    "_embed_layer_norm_kernel": [
        CompileCase(
            {
                **dict.fromkeys(_INDICES, "*i32"),
                **dict.fromkeys(_VALUES, "*x"),
                **dict.fromkeys(_COUNTS, "i32"),
                "eps": "fp32",
            },
            {"HAS_TYPES": has_types, **sizes},
            {"num_warps": num_warps},
        )
        for has_types in (True, False)
        for sizes, num_warps in _LAYER_NORM_SIZES
    ],
}
