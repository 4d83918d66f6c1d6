"""`short_attention` in Triton: a program takes one head and some queries, and turns all keys itself, if they turn."""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowerbed.rose.kernels import CompileCase
from flowerbed.rose.kernels.backend import check_contiguous, power_of_two
from flowerbed.rose.kernels.small_linear import MIN_CAPABILITY, starts_early
from flowerbed.rose.kernels.triton_early_start import wait_for_inputs

NUM_QUERIES = 16
"""Tokens of a program; what a tensor core takes at least."""
MIN_BLOCK = 16
PLAIN_NUM_WARPS = 4
"""Of programs whose keys do not turn."""


def _num_warps(keys: int) -> int:
    """More than 64 turned keys do not fit the registers of four warps."""
    return 4 if keys <= 64 else 8


@triton.jit
def _turned(heads, weights, angles, mask, eps, HALF: tl.constexpr, dtype: tl.constexpr):
    """Both halves of heads, [tokens, pairs], normalised, rotated and rounded as `rope` does.

    heads, weights, angles: pairs of blocks, fp32.
    """
    first, second = heads
    first_scale, second_scale = weights
    cos, sin = angles
    squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
    scale = tl.rsqrt(squares / (2 * HALF) + eps)
    first = first * scale * first_scale
    second = second * scale * second_scale
    turned_first = tl.where(mask, first * cos - second * sin, 0.0)
    turned_second = tl.where(mask, second * cos + first * sin, 0.0)
    return turned_first.to(dtype), turned_second.to(dtype)


@triton.jit
def _halves(start, places, mask, HALF: tl.constexpr):
    """Both halves of what begins at start, fp32."""
    first = tl.load(start + places, mask, other=0.0).to(tl.float32)
    second = tl.load(start + HALF + places, mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _shares(
    scores,
    queries,
    keys,
    q_positions,
    k_positions,
    dtype: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Powers of 2 by scores, [queries, keys], 0 where a key is not seen; and the sum of each row, not rounded."""
    is_seen = (keys - k_positions)[None, :] == (queries - q_positions)[:, None]
    ahead = keys[None, :] - queries[:, None]
    if CAUSAL:
        is_seen = is_seen & (ahead <= 0)
    if WINDOW >= 0:
        is_seen = is_seen & (ahead >= -WINDOW) & (ahead <= WINDOW)
    scores = tl.where(is_seen, scores, -1e30)  # each token sees itself
    shares = tl.exp2(scores - tl.max(scores, axis=1, keep_dims=True))
    shares = tl.where(is_seen, shares, 0.0)
    total = tl.maximum(tl.sum(shares, axis=1, keep_dims=True), 1e-30)
    return shares.to(dtype), total


@triton.jit(do_not_specialize=["num_tokens"])
def _short_attention_kernel(
    qkv,
    positions,
    cos,
    sin,
    q_weight,
    k_weight,
    out,
    num_tokens,
    eps,
    score_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PAIRS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EARLY: tl.constexpr,
):
    head = tl.program_id(0)
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    dtype = qkv.dtype.element_ty
    width: tl.constexpr = (NUM_HEADS + 2 * NUM_KV_HEADS) * 2 * HALF
    pairs = tl.arange(0, PAIRS)[None, :]
    q_scales = _halves(q_weight, pairs, pairs < HALF, HALF)
    k_scales = _halves(k_weight, pairs, pairs < HALF, HALF)
    wait_for_inputs(EARLY)
    queries = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    keys = tl.arange(0, KEYS)
    q_mask = (queries < num_tokens)[:, None] & (pairs < HALF)
    k_mask = (keys < num_tokens)[:, None] & (pairs < HALF)
    q_positions = tl.load(positions + queries, queries < num_tokens, other=0)
    k_positions = tl.load(positions + keys, keys < num_tokens, other=0)
    key_start = qkv + (NUM_HEADS + kv_head) * 2 * HALF
    key_places = keys[:, None] * width + pairs
    query_heads = _halves(qkv + head * 2 * HALF, queries[:, None] * width + pairs, q_mask, HALF)
    key_heads = _halves(key_start, key_places, k_mask, HALF)
    values = key_start + NUM_KV_HEADS * 2 * HALF + key_places
    first_values = tl.load(values, k_mask, other=0.0)
    second_values = tl.load(values + HALF, k_mask, other=0.0)
    q_angles = q_positions[:, None] * HALF + pairs
    k_angles = k_positions[:, None] * HALF + pairs
    q_turns = (
        tl.load(cos + q_angles, q_mask, other=0.0),
        tl.load(sin + q_angles, q_mask, other=0.0),
    )
    k_turns = (
        tl.load(cos + k_angles, k_mask, other=0.0),
        tl.load(sin + k_angles, k_mask, other=0.0),
    )
    query_parts = _turned(query_heads, q_scales, q_turns, q_mask, eps, HALF, dtype)
    key_parts = _turned(key_heads, k_scales, k_turns, k_mask, eps, HALF, dtype)
    scores = tl.dot(query_parts[0], key_parts[0].T, input_precision="ieee")
    scores = tl.dot(query_parts[1], key_parts[1].T, scores, input_precision="ieee") * score_scale
    shares, total = _shares(scores, queries, keys, q_positions, k_positions, dtype, CAUSAL, WINDOW)
    first = tl.dot(shares, first_values, input_precision="ieee") / total
    second = tl.dot(shares, second_values, input_precision="ieee") / total
    out += queries[:, None] * (NUM_HEADS * 2 * HALF) + head * 2 * HALF + pairs
    tl.store(out, first.to(dtype), q_mask)
    tl.store(out + HALF, second.to(dtype), q_mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _plain_short_attention_kernel(
    qkv,
    positions,
    out,
    num_tokens,
    score_scale,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    EARLY: tl.constexpr,
):
    head = tl.program_id(0)
    dtype = qkv.dtype.element_ty
    hidden: tl.constexpr = NUM_HEADS * HEAD_DIM
    queries = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    keys = tl.arange(0, KEYS)
    columns = tl.arange(0, COLUMNS)[None, :]
    q_mask = (queries < num_tokens)[:, None] & (columns < HEAD_DIM)
    k_mask = (keys < num_tokens)[:, None] & (columns < HEAD_DIM)
    qkv += head * HEAD_DIM + columns
    key_places = keys[:, None] * (3 * hidden)
    wait_for_inputs(EARLY)
    query_rows = tl.load(qkv + queries[:, None] * (3 * hidden), q_mask, other=0.0)
    key_rows = tl.load(qkv + hidden + key_places, k_mask, other=0.0)
    value_rows = tl.load(qkv + 2 * hidden + key_places, k_mask, other=0.0)
    q_positions = tl.load(positions + queries, queries < num_tokens, other=0)
    k_positions = tl.load(positions + keys, keys < num_tokens, other=0)
    scores = tl.dot(query_rows, key_rows.T, input_precision="ieee") * score_scale
    shares, total = _shares(scores, queries, keys, q_positions, k_positions, dtype, False, -1)
    mixed = tl.dot(shares, value_rows, input_precision="ieee") / total
    out += queries[:, None] * hidden + head * HEAD_DIM + columns
    tl.store(out, mixed.to(dtype), q_mask)


def short_attention(
    qkv: Tensor,
    positions: Tensor,
    tables: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    eps: float,
    heads: tuple[int, int],
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    """See `short_attention.short_attention`; qkv is left as it is."""
    check_contiguous("qkv", qkv)
    num_tokens, (num_heads, num_kv_heads) = qkv.shape[0], heads
    half = tables[0].shape[1]
    keys = max(power_of_two(num_tokens), MIN_BLOCK)
    out = torch.empty((num_tokens, num_heads * 2 * half), dtype=qkv.dtype, device=qkv.device)
    early = starts_early(qkv.device)
    _short_attention_kernel[(num_heads, triton.cdiv(num_tokens, NUM_QUERIES))](
        qkv,
        positions,
        *tables,
        *weights,
        out,
        num_tokens,
        eps,
        math.log2(math.e) / math.sqrt(2 * half),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=half,
        PAIRS=max(power_of_two(half), MIN_BLOCK),
        QUERIES=NUM_QUERIES,
        KEYS=keys,
        CAUSAL=causal,
        WINDOW=-1 if window is None else window,
        EARLY=early,
        num_warps=_num_warps(keys),
        launch_pdl=early,
    )
    return out


def plain_short_attention(qkv: Tensor, positions: Tensor, num_heads: int) -> Tensor:
    """See `short_attention.plain_short_attention`."""
    check_contiguous("qkv", qkv)
    num_tokens = qkv.shape[0]
    head_dim = qkv.shape[1] // (3 * num_heads)
    keys = max(power_of_two(num_tokens), MIN_BLOCK)
    out = torch.empty((num_tokens, num_heads * head_dim), dtype=qkv.dtype, device=qkv.device)
    early = starts_early(qkv.device)
    _plain_short_attention_kernel[(num_heads, triton.cdiv(num_tokens, NUM_QUERIES))](
        qkv,
        positions,
        out,
        num_tokens,
        math.log2(math.e) / math.sqrt(head_dim),
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        COLUMNS=max(power_of_two(head_dim), MIN_BLOCK),
        QUERIES=NUM_QUERIES,
        KEYS=keys,
        EARLY=early,
        num_warps=PLAIN_NUM_WARPS,
        launch_pdl=early,
    )
    return out


COMPILE_CASES = {
    "_short_attention_kernel": [
        CompileCase(
            {
                "qkv": "*x",
                "positions": "*i32",
                "cos": "*fp32",
                "sin": "*fp32",
                "q_weight": "*x",
                "k_weight": "*x",
                "out": "*x",
                "num_tokens": "i32",
                "eps": "fp32",
                "score_scale": "fp32",
            },
            {
                "NUM_HEADS": 16,
                "NUM_KV_HEADS": 8,
                "HALF": 64,
                "PAIRS": 64,
                "QUERIES": NUM_QUERIES,
                "KEYS": keys,
                "CAUSAL": window < 0 and early,
                "WINDOW": window,
                "EARLY": early,
            },
            {"num_warps": _num_warps(keys)},
            MIN_CAPABILITY if early else (8, 0),
        )
        for keys in (16, 128)
        for window in (-1, 8)
        for early in (False, True)
    ],
    "_plain_short_attention_kernel": [
        CompileCase(
            {
                "qkv": "*x",
                "positions": "*i32",
                "out": "*x",
                "num_tokens": "i32",
                "score_scale": "fp32",
            },
            {
                "NUM_HEADS": num_heads,
                "HEAD_DIM": head_dim,
                "COLUMNS": max(power_of_two(head_dim), MIN_BLOCK),
                "QUERIES": NUM_QUERIES,
                "KEYS": keys,
                "EARLY": early,
            },
            {"num_warps": PLAIN_NUM_WARPS},
            MIN_CAPABILITY if early else (8, 0),
        )
        for num_heads, head_dim, keys in ((12, 26, 16), (16, 64, 128), (8, 128, 128), (12, 64, 256))
        for early in (False, True)
    ],
}
