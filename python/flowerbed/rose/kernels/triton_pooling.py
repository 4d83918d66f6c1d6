"""`pooling.pool_segments` in Triton: one launch for short steps, two for long ones.

A long segment is split over programs, whose partial results a second launch adds in a fixed order,
so that equal inputs give equal bits. Sums are in fp32.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.triton_positions import find_sequence, search_steps

BLOCK_TOKENS = 128
SHORT_BLOCK_TOKENS = 64
"""Where no segment is longer."""
BLOCK_COLUMNS = 64
MERGE_COLUMNS = 128
MAX_TOKEN_COLUMNS = 1024
"""Of a program that reads one token and sums nothing."""
MAX_SPLITS = 16
TOKENS_PER_SPLIT = 1024
MAX_SPLIT_ROWS = 1024
"""Rows times splits; past it there are programs enough without splitting."""

CLS = tl.constexpr(0)
LASTTOKEN = tl.constexpr(1)  # the modes up to here read one token
MEAN = tl.constexpr(2)
MEAN_SQRT = tl.constexpr(3)
WEIGHTEDMEAN = tl.constexpr(4)
MAX = tl.constexpr(5)
MODE_CODES = {
    "cls": 0,
    "lasttoken": 1,
    "mean": 2,
    "mean_sqrt_len_tokens": 3,
    "weightedmean": 4,
    "max": 5,
}


@triton.jit
def _split_tokens(length, NUM_SPLITS: tl.constexpr, BLOCK_T: tl.constexpr):
    """Tokens of each split of a segment, whole blocks; the last splits may be empty."""
    return tl.cdiv(tl.cdiv(length, NUM_SPLITS), BLOCK_T) * BLOCK_T


@triton.jit
def _first_position(cu_seqlens, num_sequences, start, length, NUM_STEPS: tl.constexpr):
    """Position of a segment's first token in its sequence; 0 for an empty segment."""
    sequence = find_sequence(cu_seqlens, num_sequences, start, NUM_STEPS)
    is_real = (length > 0) & (sequence < num_sequences)
    return tl.where(is_real, start - tl.load(cu_seqlens + sequence, mask=is_real, other=0), 0)


@triton.jit
def _greatest(values):
    """Maximum over the first axis; NaN if there is one."""
    has_nan = tl.max((values != values).to(tl.int32), axis=0) > 0
    return tl.where(has_nan, float("nan"), tl.max(tl.where(values == values, values, 0.0), axis=0))


@triton.constexpr_function
def _mode(modes, place):
    """Code of the mode at a place, as `pool_segments` packs them."""
    return (modes >> (4 * place)) & 15


@triton.jit
def _write_modes(
    out,
    hidden,
    start,
    length,
    position,
    columns,
    total,
    weighted,
    greatest,
    row_stride,
    num_columns,
    MODES: tl.constexpr,
    NUM_MODES: tl.constexpr,
):
    """Writes one row's part of each mode; zeros for an empty segment."""
    mask = columns < num_columns
    count = tl.maximum(length, 1).to(tl.float32)
    for place in tl.static_range(NUM_MODES):
        mode = _mode(MODES, place)
        if mode <= LASTTOKEN:
            token = start if mode == CLS else start + length - 1
            values = hidden + token.to(tl.int64) * row_stride + columns
            pooled = tl.load(values, mask=mask & (length > 0), other=0.0).to(tl.float32)
        elif mode == MEAN:
            pooled = tl.div_rn(total, count)
        elif mode == MEAN_SQRT:
            pooled = tl.div_rn(total, tl.sqrt_rn(count))
        elif mode == WEIGHTEDMEAN:
            many = length.to(tl.int64)
            weights = many * position + many * (many + 1) // 2
            pooled = tl.div_rn(weighted, tl.maximum(weights, 1).to(tl.float32))
        else:
            pooled = greatest
        pooled = tl.where(length > 0, pooled, 0.0)
        tl.store(out + place * num_columns + columns, pooled, mask=mask)


@triton.jit(
    do_not_specialize=["num_sequences"],
    do_not_specialize_on_alignment=["segments", "cu_seqlens"],
)
def _pool_kernel(
    hidden,
    segments,
    cu_seqlens,
    out,
    partials,
    row_stride,
    num_columns,
    num_sequences,
    MODES: tl.constexpr,
    NUM_MODES: tl.constexpr,
    HAS_SUM: tl.constexpr,
    HAS_WEIGHTED: tl.constexpr,
    HAS_MAX: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One split of one row, BLOCK_H columns: partial results, or the row itself if not split."""
    row = tl.program_id(0)
    split = tl.program_id(2)
    start = tl.load(segments + 2 * row)
    length = tl.load(segments + 2 * row + 1) - start
    columns = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    position = 0
    if HAS_WEIGHTED:
        position = _first_position(cu_seqlens, num_sequences, start, length, NUM_STEPS)
    span = _split_tokens(length, NUM_SPLITS, BLOCK_T)
    first = split * span
    last = tl.minimum(first + span, length)

    sums = tl.zeros((BLOCK_T, BLOCK_H), dtype=tl.float32)
    weighted_sums = tl.zeros((BLOCK_T, BLOCK_H), dtype=tl.float32)
    maxima = tl.full((BLOCK_T, BLOCK_H), float("-inf"), dtype=tl.float32)
    if HAS_SUM or HAS_WEIGHTED or HAS_MAX:
        block = first
        while block < last:  # a range of tensors fails in Triton's interpreter
            tokens = block + tl.arange(0, BLOCK_T)
            is_real = (tokens < last)[:, None] & (columns < num_columns)[None, :]
            rows = (start + tokens).to(tl.int64) * row_stride
            values = tl.load(hidden + rows[:, None] + columns[None, :], mask=is_real, other=0.0)
            values = values.to(tl.float32)
            if HAS_SUM:
                sums += values
            if HAS_WEIGHTED:
                weighted_sums += values * (position + tokens + 1).to(tl.float32)[:, None]
            if HAS_MAX:
                values = tl.where(is_real, values, float("-inf"))
                maxima = tl.maximum(maxima, values, propagate_nan=tl.PropagateNan.ALL)
            block += BLOCK_T
    total = tl.sum(sums, axis=0)
    weighted = tl.sum(weighted_sums, axis=0)
    greatest = _greatest(maxima)

    if NUM_SPLITS == 1:
        _write_modes(
            out + row.to(tl.int64) * (NUM_MODES * num_columns),
            hidden,
            start,
            length,
            position,
            columns,
            total,
            weighted,
            greatest,
            row_stride,
            num_columns,
            MODES,
            NUM_MODES,
        )
    elif first < length:
        mask = columns < num_columns
        partial = partials + (row * NUM_SPLITS + split).to(tl.int64) * 3 * num_columns + columns
        if HAS_SUM:
            tl.store(partial, total, mask=mask)
        if HAS_WEIGHTED:
            tl.store(partial + num_columns, weighted, mask=mask)
        if HAS_MAX:
            tl.store(partial + 2 * num_columns, greatest, mask=mask)


@triton.jit(
    do_not_specialize=["num_sequences"],
    do_not_specialize_on_alignment=["segments", "cu_seqlens"],
)
def _merge_kernel(
    hidden,
    segments,
    cu_seqlens,
    out,
    partials,
    row_stride,
    num_columns,
    num_sequences,
    MODES: tl.constexpr,
    NUM_MODES: tl.constexpr,
    HAS_SUM: tl.constexpr,
    HAS_WEIGHTED: tl.constexpr,
    HAS_MAX: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Joins the partial results of one row, BLOCK_H columns."""
    row = tl.program_id(0)
    start = tl.load(segments + 2 * row)
    length = tl.load(segments + 2 * row + 1) - start
    columns = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    position = 0
    if HAS_WEIGHTED:
        position = _first_position(cu_seqlens, num_sequences, start, length, NUM_STEPS)
    splits = tl.arange(0, NUM_SPLITS)
    is_used = splits * _split_tokens(length, NUM_SPLITS, BLOCK_T) < length
    mask = is_used[:, None] & (columns < num_columns)[None, :]
    places = (row * NUM_SPLITS + splits).to(tl.int64) * 3 * num_columns
    partial = partials + places[:, None] + columns[None, :]
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    weighted = total
    greatest = total
    if HAS_SUM:
        total = tl.sum(tl.load(partial, mask=mask, other=0.0), axis=0)
    if HAS_WEIGHTED:
        weighted = tl.sum(tl.load(partial + num_columns, mask=mask, other=0.0), axis=0)
    if HAS_MAX:
        greatest = _greatest(tl.load(partial + 2 * num_columns, mask=mask, other=float("-inf")))
    _write_modes(
        out + row.to(tl.int64) * (NUM_MODES * num_columns),
        hidden,
        start,
        length,
        position,
        columns,
        total,
        weighted,
        greatest,
        row_stride,
        num_columns,
        MODES,
        NUM_MODES,
    )


def num_splits(max_length: int, num_rows: int) -> int:
    """Programs that share a segment's tokens: 1, 2, 4, ... by the step's size alone."""
    most = min(MAX_SPLITS, max_length // TOKENS_PER_SPLIT, MAX_SPLIT_ROWS // num_rows)
    return 1 << (max(most, 1).bit_length() - 1)


def pool_segments(
    hidden: Tensor,
    segments: Tensor,
    cu_seqlens: Tensor,
    modes: tuple[str, ...],
    max_length: int | None = None,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """See `pooling.pool_segments`."""
    num_tokens, num_columns = hidden.shape
    num_rows = segments.shape[0]
    out = hidden.new_empty(num_rows, num_columns * len(modes), dtype=torch.float32)
    if num_rows == 0:
        return out
    reads_all = any(mode not in ("cls", "lasttoken") for mode in modes)
    longest = num_tokens if max_length is None else max_length
    splits = num_splits(longest, num_rows) if reads_all and not batch_invariant else 1
    is_short = longest <= SHORT_BLOCK_TOKENS and not batch_invariant
    partials = out if splits == 1 else out.new_empty(num_rows, splits, 3, num_columns)
    arguments = (
        hidden,
        segments,
        cu_seqlens,
        out,
        partials,
        hidden.stride(0),
        num_columns,
        cu_seqlens.shape[0] - 1,
    )
    has_weighted = "weightedmean" in modes
    constexprs = {
        "MODES": sum(MODE_CODES[mode] << (4 * i) for i, mode in enumerate(modes)),
        "NUM_MODES": len(modes),
        "HAS_SUM": "mean" in modes or "mean_sqrt_len_tokens" in modes,
        "HAS_WEIGHTED": has_weighted,
        "HAS_MAX": "max" in modes,
        "NUM_SPLITS": splits,
        # Nothing else looks for a sequence: one kernel for any number of them.
        "NUM_STEPS": search_steps(cu_seqlens.shape[0] - 1) if has_weighted else 0,
        "BLOCK_T": (SHORT_BLOCK_TOKENS if is_short else BLOCK_TOKENS) if reads_all else 1,
    }
    columns, num_warps = BLOCK_COLUMNS, 4 if is_short else 8
    if not reads_all:
        columns, num_warps = min(triton.next_power_of_2(num_columns), MAX_TOKEN_COLUMNS), 4
    grid = (num_rows, triton.cdiv(num_columns, columns), splits)
    _pool_kernel[grid](*arguments, **constexprs, BLOCK_H=columns, num_warps=num_warps)
    if splits > 1:
        grid = (num_rows, triton.cdiv(num_columns, MERGE_COLUMNS))
        _merge_kernel[grid](*arguments, **constexprs, BLOCK_H=MERGE_COLUMNS)
    return out


_TYPES = {
    "hidden": "*x",
    "segments": "*i32",
    "cu_seqlens": "*i32",
    "out": "*fp32",
    "partials": "*fp32",
    "row_stride": "i32",
    "num_columns": "i32",
    "num_sequences": "i32",
}
_EVERY_MODE = {
    "MODES": 0x543210,
    "NUM_MODES": 6,
    "HAS_SUM": True,
    "HAS_WEIGHTED": True,
    "HAS_MAX": True,
    "NUM_STEPS": 6,
    "BLOCK_T": BLOCK_TOKENS,
}
_ONE_TOKEN = {
    "MODES": 0x10,
    "NUM_MODES": 2,
    **dict.fromkeys(("HAS_SUM", "HAS_WEIGHTED", "HAS_MAX"), False),
    "NUM_STEPS": 6,
    "NUM_SPLITS": 1,
    "BLOCK_T": 1,
    "BLOCK_H": MAX_TOKEN_COLUMNS,
}
COMPILE_CASES = {
    "_pool_kernel": [
        *(
            CompileCase(
                _TYPES,
                {**_EVERY_MODE, "NUM_SPLITS": splits, "BLOCK_H": BLOCK_COLUMNS},
                {"num_warps": 8},
            )
            for splits in (1, MAX_SPLITS)
        ),
        CompileCase(_TYPES, _ONE_TOKEN),
    ],
    "_merge_kernel": [
        CompileCase(_TYPES, {**_EVERY_MODE, "NUM_SPLITS": MAX_SPLITS, "BLOCK_H": MERGE_COLUMNS})
    ],
}
