"""`short_sequences` in Triton: a program takes one head of one sequence.

It loads each of its queries, keys and values once, and none of another sequence: whatever lies there, a row
that was never written, too, spoils nothing. Padding is filled with zeros.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import power_of_two
from flowerbed.rose.kernels.short_sequences import MAX_BLOCK_SEQLEN, MAX_SHORT_SEQLEN
from flowerbed.rose.kernels.small_linear import MIN_CAPABILITY, SMALL_STEP_TOKENS, starts_early
from flowerbed.rose.kernels.triton_early_start import wait_for_inputs
from flowerbed.rose.kernels.triton_short_rows import mixed_values, score_scale

ROWS_OF_WARP = 16
"""Queries of a warp, which holds all their scores; four warps share a `wgmma`."""
MIN_COLUMNS = 16
"""What a tensor core takes at least."""
PADDING_PROGRAMS = 16
"""Of each head, which fill the padding in turns; of a small step's one."""


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
    APPROXIMATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait_for_inputs(EARLY)
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
            start += (tl.num_programs(1) - num_slots) * BLOCK
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
        mixed = mixed_values(
            queries, keys, values, score_scale, length, BLOCK, CAUSAL, WINDOW, APPROXIMATE
        )
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
    if max_seqlen > MAX_BLOCK_SEQLEN:
        raise ValueError(f"max_seqlen should be up to {MAX_BLOCK_SEQLEN}, not {max_seqlen}")
    for name, part in (("query", query), ("key", key), ("value", value)):
        if part.stride()[1:] != (head_dim, 1):
            raise ValueError(f"heads of {name} should be contiguous; strides are {part.stride()}")
    out = torch.empty((num_tokens, num_heads * head_dim), dtype=query.dtype, device=query.device)
    num_slots = cu_seqlens.shape[0] - 2
    block = MAX_SHORT_SEQLEN if max_seqlen <= MAX_SHORT_SEQLEN else MAX_BLOCK_SEQLEN
    early = num_tokens <= SMALL_STEP_TOKENS and starts_early(query.device)
    num_fillers = 1 if early else PADDING_PROGRAMS
    _short_sequences_kernel[(num_heads, num_slots + num_fillers)](
        query,
        key,
        value,
        cu_seqlens,
        out,
        num_slots,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        score_scale(head_dim),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=key.shape[1],
        HEAD_DIM=head_dim,
        COLUMNS=max(power_of_two(head_dim), MIN_COLUMNS),
        BLOCK=block,
        CAUSAL=causal,
        WINDOW=-1 if window is None else window,
        APPROXIMATE=query.is_cuda,
        EARLY=early,
        num_warps=block // ROWS_OF_WARP,
        launch_pdl=early,
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
                "CAUSAL": causal,
                "WINDOW": window,
                "APPROXIMATE": True,
                "EARLY": early,
            },
            {"num_warps": block // ROWS_OF_WARP},
            MIN_CAPABILITY if early else (8, 0),
        )
        for num_heads, num_kv_heads, head_dim in ((16, 8, 128), (12, 12, 64), (14, 2, 96))
        for causal in (False, True)
        for window in (-1, 8)
        for block in (MAX_SHORT_SEQLEN, MAX_BLOCK_SEQLEN)
        for early in (False, True)
    ],
}
