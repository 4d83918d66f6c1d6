"""Layer norm of rows that are cut into chunks of columns. Called by `triton_norm` and `triton_embedding`.

A width such as 768 is three chunks of 256 in 16 bits and six of 128 in 32, so that no lane idles and one
warp has a whole row: its sums need no barrier. Chunks are first added to each other, then over lanes, whatever the number of rows.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

COMPILE_CASES: dict[str, list[object]] = {}


@triton.jit
def load_chunks(
    pointer, starts, is_row, columns, H: tl.constexpr, COLUMNS: tl.constexpr, POLICY: tl.constexpr
):
    """Rows from `starts` on, [ROWS, 1]: a tuple of [ROWS, COLUMNS], zero outside. columns: [1, COLUMNS]."""
    chunks = ()
    for i in tl.static_range((H + COLUMNS - 1) // COLUMNS):
        mask = is_row if (i + 1) * COLUMNS <= H else is_row & (i * COLUMNS + columns < H)
        places = starts + (i * COLUMNS + columns)
        chunks += (tl.load(pointer + places, mask, other=0.0, eviction_policy=POLICY),)
    return chunks


@triton.jit
def load_vector(vector, rows, columns, H: tl.constexpr, COLUMNS: tl.constexpr):
    """A vector for all rows, as `load_chunks`; rows: [ROWS, 1] numbers from 0 on."""
    if COLUMNS < H:
        # In the layout of the rows: one of its own would go through shared memory.
        chunks = load_chunks(vector, rows * 0, rows >= 0, columns, H, COLUMNS, "")
    else:
        chunks = (tl.load(vector + columns, columns < H, other=0.0),)
    return chunks


@triton.jit
def add_chunks(a, b):
    """Sums of two tuples of chunks, fp32."""
    sums = ()
    for i in tl.static_range(len(a)):
        sums += (a[i].to(tl.float32) + b[i].to(tl.float32),)
    return sums


@triton.jit
def _row_sums(chunks):
    """[ROWS, 1]."""
    total = chunks[0]
    for i in tl.static_range(1, len(chunks)):
        total += chunks[i]
    return tl.sum(total, axis=1, keep_dims=True)


@triton.jit
def store_layer_norm(
    out, chunks, scale, shift, starts, is_row, columns, eps, H: tl.constexpr, COLUMNS: tl.constexpr
):
    """Stores the layer norm of rows, chunks of fp32, zero outside. scale, shift: from `load_vector`."""
    mean = _row_sums(chunks) / H
    centred = ()
    squares = ()
    for i in tl.static_range(len(chunks)):
        values = chunks[i] - mean
        if (i + 1) * COLUMNS > H:
            values = tl.where(i * COLUMNS + columns < H, values, 0.0)
        centred += (values,)
        squares += (values * values,)
    factor = tl.rsqrt(_row_sums(squares) / H + eps)
    for i in tl.static_range(len(chunks)):
        values = centred[i] * factor * scale[i].to(tl.float32) + shift[i].to(tl.float32)
        mask = is_row if (i + 1) * COLUMNS <= H else is_row & (i * COLUMNS + columns < H)
        places = starts + (i * COLUMNS + columns)
        tl.store(out + places, values.to(out.dtype.element_ty), mask)
