"""Attention on a CPU against its formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowerbed.rose.kernels.attention import AttentionPlan, Backend, LengthGroup, attention

NUM_HEADS, HEAD_DIM = 3, 16


def formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One sequence; all [seqlen, heads, head_dim]."""
    q, k, v = (rows.double().transpose(0, 1) for rows in (query, key, value))
    weights = (q @ k.transpose(1, 2) / HEAD_DIM**0.5).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1)


def plan_of(lengths: list[int]) -> AttentionPlan:
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    groups = tuple(
        LengthGroup(start, 1, n) for start, n in zip(starts.tolist(), lengths, strict=False)
    )
    return AttentionPlan(Backend.SDPA, starts, max(lengths), groups)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("padding", [0, 1, 7])
@pytest.mark.parametrize("lengths", [[1], [14], [57], [63], [64], [65], [130], [1, 14], [9, 70]])
def test_padding_behind_a_sequence_is_not_seen(lengths, padding, dtype, tolerance):
    torch.manual_seed(sum(lengths))
    num_tokens = sum(lengths)
    qkv = torch.randn(num_tokens + padding, 3, NUM_HEADS, HEAD_DIM)
    qkv[num_tokens:] = 1e4
    query, key, value = qkv.to(dtype).unbind(1)
    rows = attention(query, key, value, plan_of(lengths))
    assert rows.dtype == dtype
    assert rows.shape == (num_tokens + padding, NUM_HEADS * HEAD_DIM)
    start = 0
    for n in lengths:
        part = slice(start, start + n)
        expected = formula(query[part], key[part], value[part])
        assert (rows[part].double() - expected).abs().max() < tolerance
        start += n


@pytest.mark.parametrize("seqlen", [1, 14, 64])
def test_a_short_sequence_may_look_back_only(seqlen):
    torch.manual_seed(seqlen)
    query, key, value = torch.randn(seqlen, 3, NUM_HEADS, HEAD_DIM).unbind(1)
    rows = attention(query, key, value, plan_of([seqlen]), causal=True)
    for token in range(seqlen):
        seen = slice(0, token + 1)
        expected = formula(query[seen], key[seen], value[seen])[-1]
        assert (rows[token].double() - expected).abs().max() < 2e-6
