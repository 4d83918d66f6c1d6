"""`short_sequences` in Triton: a program takes one head of one sequence.

It loads each of its queries, keys and values once, and none of another sequence: whatever lies there, a row
that was never written, too, spoils nothing. Padding is filled with zeros.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import power_of_two

MIN_BLOCK = 16
"""What a tensor core takes at least."""
PADDING_PROGRAMS = tl.constexpr(16)
"""Of each head; the padding is filled in turns."""


def _num_warps(block: int) -> int:
    return 4 if block <= 64 else 8


@triton.jit(do_not_specialize=["num_slots"], do_not_specialize_on_alignment=["cu_seqlens"])
def _short_sequences_kernel(
    query,
    key,
    value,
    cu_seqlens,
    out,
    num_slots,
    query_stride,
    key_stride,
    value_stride,
    score_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):
    head = tl.program_id(0)
    slot = tl.program_id(1)
    places = tl.arange(0, BLOCK)
    columns = tl.arange(0, COLUMNS)[None, :]
    out_stride: tl.constexpr = NUM_HEADS * HEAD_DIM
    out += head * HEAD_DIM
    if slot >= num_slots:
        start = tl.load(cu_seqlens + num_slots) + (slot - num_slots) * BLOCK
        end = tl.load(cu_seqlens + num_slots + 1)
        while start < end:  # a range of tensors fails in Triton's interpreter
            mask = (start + places < end)[:, None] & (columns < HEAD_DIM)
            rows = (start + places).to(tl.int64)[:, None] * out_stride
            tl.store(out + rows + columns, tl.zeros((BLOCK, COLUMNS), out.dtype.element_ty), mask)
            start += PADDING_PROGRAMS * BLOCK
        return
    start = tl.load(cu_seqlens + slot).to(tl.int64)
    length = (tl.load(cu_seqlens + slot + 1) - start).to(tl.int32)
    if length > 0:
        kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
        mask = (places < length)[:, None] & (columns < HEAD_DIM)
        query += start * query_stride + head * HEAD_DIM
        key += start * key_stride + kv_head * HEAD_DIM
        value += start * value_stride + kv_head * HEAD_DIM
        rows = places[:, None]
        queries = tl.load(query + rows * query_stride + columns, mask, other=0.0)
        keys = tl.load(key + rows * key_stride + columns, mask, other=0.0)
        values = tl.load(value + rows * value_stride + columns, mask, other=0.0)
        scores = tl.dot(queries, keys.T, input_precision="ieee") * score_scale
        is_seen = (places < length)[None, :]
        ahead = places[None, :] - places[:, None]
        if CAUSAL:
            is_seen = is_seen & (ahead <= 0)
        if WINDOW >= 0:
            is_seen = is_seen & (ahead >= -WINDOW) & (ahead <= WINDOW)
        scores = tl.where(is_seen, scores, -1e30)
        shares = tl.exp2(scores - tl.max(scores, axis=1, keep_dims=True))
        total = tl.sum(shares, axis=1, keep_dims=True)
        mixed = tl.dot(shares.to(values.dtype), values, input_precision="ieee") / total
        out += start * out_stride
        tl.store(out + rows * out_stride + columns, mixed.to(values.dtype), mask)


def attend_short_sequences(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    *,
    max_seqlen: int,
    causal: bool,
    window: int | None,
) -> Tensor:
    """See `short_sequences.attend_short_sequences`."""
    num_tokens, num_heads, head_dim = query.shape
    for name, part in (("query", query), ("key", key), ("value", value)):
        if part.stride()[1:] != (head_dim, 1):
            raise ValueError(f"heads of {name} should be contiguous; strides are {part.stride()}")
    out = torch.empty((num_tokens, num_heads * head_dim), dtype=query.dtype, device=query.device)
    block = max(power_of_two(max_seqlen), MIN_BLOCK)
    num_slots = cu_seqlens.shape[0] - 2
    _short_sequences_kernel[(num_heads, num_slots + PADDING_PROGRAMS.value)](
        query,
        key,
        value,
        cu_seqlens,
        out,
        num_slots,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        math.log2(math.e) / math.sqrt(head_dim),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=key.shape[1],
        HEAD_DIM=head_dim,
        COLUMNS=max(power_of_two(head_dim), MIN_BLOCK),
        BLOCK=block,
        CAUSAL=causal,
        WINDOW=-1 if window is None else window,
        num_warps=_num_warps(block),
    )
    return out


_TYPES = {
    **dict.fromkeys(("query", "key", "value", "out"), "*bf16"),  # fp32 never comes here
    "cu_seqlens": "*i32",
    **dict.fromkeys(("num_slots", "query_stride", "key_stride", "value_stride"), "i32"),
    "score_scale": "fp32",
}
COMPILE_CASES = {
    "_short_sequences_kernel": [
        CompileCase(
            _TYPES,
            {
                "NUM_HEADS": num_heads,
                "NUM_KV_HEADS": num_kv_heads,
                "HEAD_DIM": head_dim,
                "COLUMNS": power_of_two(head_dim),
                "BLOCK": block,
                "CAUSAL": window < 0 and block == 64,
                "WINDOW": window,
            },
            {"num_warps": _num_warps(block)},
        )
        for num_heads, num_kv_heads, head_dim in ((16, 8, 128), (12, 12, 64), (14, 2, 96))
        for block in (16, 64)
        for window in (-1, 8)
    ],
}
