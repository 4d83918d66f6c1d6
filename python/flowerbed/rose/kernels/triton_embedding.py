"""`embedding` in Triton: whole rows, one launch. Indices are clamped to the tables."""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import row_tile
from flowerbed.rose.kernels.triton_norm import standardize


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
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    mask = (tokens < num_tokens) & (columns < H)
    word = _row_offsets(ids, tokens, num_tokens, num_words, H) + columns
    place = _row_offsets(positions, tokens, num_tokens, num_positions, H) + columns
    values = tl.load(words + word, mask, other=0.0).to(tl.float32)
    values += tl.load(positions_table + place, mask, other=0.0).to(tl.float32)
    if HAS_TYPES:
        kind = _row_offsets(token_types, tokens, num_tokens, num_types, H) + columns
        values += tl.load(types_table + kind, mask, other=0.0).to(tl.float32)
    else:
        values += tl.load(types_table + columns, columns < H, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, columns < H, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, columns < H, other=0.0).to(tl.float32)
    values = standardize(values, scale, shift, eps, mask, H)
    tl.store(out + (tokens.to(tl.int64) * H + columns), values.to(out.dtype.element_ty), mask)


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
    rows, columns, num_warps = row_tile(out, hidden)
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


_SIZES = {"H": 1024, "ROWS": 2, "COLUMNS": 1024}
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
            {"HAS_TYPES": has_types, **_SIZES},
            {"num_warps": 4},
        )
        for has_types in (True, False)
    ],
}
