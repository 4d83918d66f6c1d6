"""Keys that several heads share, on GPUs where torch has no flash attention for them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowerbed.rose.kernels import attention as kernels
from flowerbed.rose.kernels.attention import AttentionPlan, Backend, LengthGroup, attention

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16
GPU = torch.device("cuda", 0)


def formula(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, window: int | None
) -> Tensor:
    """One sequence; all [seqlen, heads, head_dim]."""
    shared = query.shape[1] // key.shape[1]
    q = query.double().transpose(0, 1)
    k, v = (rows.double().repeat_interleave(shared, 1).transpose(0, 1) for rows in (key, value))
    place = torch.arange(len(query))
    ahead = place[None, :] - place[:, None]
    is_hidden = (ahead > 0) if causal else torch.zeros_like(ahead, dtype=torch.bool)
    if window is not None:
        is_hidden |= ahead.abs() > window
    scores = (q @ k.transpose(1, 2) / query.shape[2] ** 0.5).masked_fill(is_hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_keys_of_their_own_for_each_head_give_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: int | None
) -> None:
    monkeypatch.setattr(kernels, "takes_shared_keys", lambda *_, **__: False)
    torch.manual_seed(2)
    lengths = (30, 30, 71)
    query = torch.randn(sum(lengths), NUM_HEADS, HEAD_DIM)
    key, value = torch.randn(2, sum(lengths), NUM_KV_HEADS, HEAD_DIM)
    starts = torch.tensor([0, 30, 60, 131], dtype=torch.int32)
    groups = (LengthGroup(0, 2, 30), LengthGroup(60, 1, 71))
    plan = AttentionPlan(Backend.SDPA, starts, max(lengths), groups)
    rows = attention(query, key, value, plan, causal=causal, window=window)
    for start, length in zip(starts.tolist(), lengths, strict=False):
        part = slice(start, start + length)
        expected = formula(query[part], key[part], value[part], causal=causal, window=window)
        assert (rows[part].double() - expected).abs().max() < 2e-6


@pytest.mark.parametrize(
    ("capability", "dtype", "has_mask", "expected"),
    [
        ((9, 0), torch.bfloat16, False, True),
        ((9, 0), torch.float32, False, False),
        ((9, 0), torch.bfloat16, True, False),
        ((7, 5), torch.float16, False, False),
    ],
)
def test_a_gpu_shares_keys_where_flash_attention_serves(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    has_mask: bool,
    expected: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert kernels.takes_shared_keys(GPU, dtype, has_mask=has_mask) == expected
    assert kernels.takes_shared_keys(torch.device("cpu"), dtype, has_mask=has_mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_a_long_input_grows_with_its_tokens(dtype: torch.dtype) -> None:
    num_tokens = 16_384  # scores of all heads would take 17 GB in float32
    torch.manual_seed(3)
    query = torch.randn(num_tokens, 16, 128, device=GPU, dtype=dtype)
    key, value = torch.randn(2, num_tokens, 8, 128, device=GPU, dtype=dtype)
    starts = torch.tensor([0, num_tokens], dtype=torch.int32, device=GPU)
    plan = AttentionPlan(Backend.SDPA, starts, num_tokens, (LengthGroup(0, 1, num_tokens),))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    rows = attention(query, key, value, plan, causal=True)
    assert torch.cuda.max_memory_allocated() - before < 2 << 30
    seen = slice(0, 300)
    expected = formula(
        query[seen].cpu(), key[seen].cpu(), value[seen].cpu(), causal=True, window=None
    )
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    assert (rows[seen].cpu().double() - expected).abs().max() < tolerance
