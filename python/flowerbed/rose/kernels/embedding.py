"""Rows of embedding tables: of tokens alone, or of tokens, positions and types, summed and normalised.

Knows no models. Called by models and by `layers.embedding`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.norm import layer_norm


def embed_tokens(ids: Tensor, table: Tensor) -> Tensor:
    """The rows of ids. An id without a row is an error on a CPU; on a GPU it gets the nearest row.

    Args:
        ids: [num_tokens], int32 or int64.
        table: [num_rows, hidden].

    Returns:
        [num_tokens, hidden], dtype of the table.

    Raises:
        IndexError: An id has no row (on a CPU).
    """
    if use_triton(table):
        from flowerbed.rose.kernels import triton_embedding

        return triton_embedding.embed_tokens(ids, table)
    return _rows(ids, table)


def embed_layer_norm(  # noqa: PLR0913 - tensors, not settings
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
    """layer_norm(words[id] + types_table[type] + positions_table[position]).

    Indices without a row are treated as in `embed_tokens`.

    Args:
        ids: [num_tokens], int32 or int64, as the other indices.
        positions: [num_tokens].
        token_types: [num_tokens]; None: all 0.
        words: [num_words, hidden].
        positions_table: [num_positions, hidden].
        types_table: [num_types, hidden].
        weight: [hidden].
        bias: [hidden].
        eps: Added to the variance.

    Returns:
        [num_tokens, hidden], dtype of the tables.

    Raises:
        IndexError: An index has no row (on a CPU).
    """
    if use_triton(words):
        from flowerbed.rose.kernels import triton_embedding

        return triton_embedding.embed_layer_norm(
            ids, positions, token_types, words, positions_table, types_table, weight, bias, eps
        )
    x = _rows(ids, words)
    x += types_table[0] if token_types is None else _rows(token_types, types_table)
    x += _rows(positions, positions_table)
    return layer_norm(x, weight, bias, eps)


def _rows(index: Tensor, table: Tensor) -> Tensor:
    # On a GPU an index without a row would end the process, much later.
    known = index.clamp(0, table.shape[0] - 1) if table.is_cuda else index
    return functional.embedding(known, table)
