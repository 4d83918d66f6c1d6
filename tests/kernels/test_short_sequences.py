"""Attention of short sequences against torch's, one sequence after another."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from flowerbed.rose.kernels import short_sequences, triton_short_sequences
from flowerbed.rose.kernels.attention import AttentionPlan, Backend, LengthGroup, attention

DTYPES = {"cpu": (torch.float32, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
LIMITS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""In 16 bits probabilities are rounded before they weigh values."""
HEADS = {
    "cpu": [(4, 2, 32), (6, 2, 24), (2, 2, 64)],
    "cuda": [(16, 8, 128), (12, 12, 64), (14, 2, 96)],
}
STEPS = [([1, 63, 64, 0, 0], 3), ([5, 64, 0, 17], 150), ([33], 0), ([0, 0, 2], 1100)]
"""Lengths, empty slots among them, and tokens of padding."""
KINDS = [(False, None), (True, None), (False, 3), (True, 9)]
"""Causal, window."""


def step(lengths, padding, heads, dtype):
    """Views of one buffer, as layers make them, and cu_seqlens; padding holds what was there before."""
    num_heads, num_kv_heads, head_dim = heads
    torch.manual_seed(len(lengths) + padding)
    num_tokens = sum(lengths) + padding
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    qkv[sum(lengths) :] = torch.nan
    cu_seqlens = torch.tensor([0, *lengths, padding]).cumsum(0).int()
    return qkv, cu_seqlens


def parts(qkv, heads):
    num_heads, num_kv_heads, head_dim = heads
    return qkv.view(len(qkv), -1, head_dim).split((num_heads, num_kv_heads, num_kv_heads), dim=1)


def expected_rows(qkv, cu_seqlens, heads, causal, window):
    """Each sequence alone, in fp32, by `attention` with torch's own kernel."""
    rows = []
    for start, end in pairwise(cu_seqlens.tolist()[:-1]):
        if start < end:
            groups = (LengthGroup(0, 1, end - start),)
            plan = AttentionPlan(Backend.SDPA, cu_seqlens, end - start, groups)
            alone = parts(qkv[start:end].float(), heads)
            rows.append(attention(*alone, plan, causal=causal, window=window))
    return torch.cat(rows)


@pytest.mark.parametrize(("lengths", "padding"), STEPS)
@pytest.mark.parametrize(("causal", "window"), KINDS)
def test_each_sequence_equals_the_same_alone(lengths, padding, causal, window, device):
    every = HEADS[device.type]
    for heads in every if padding == 150 else every[:1]:
        for dtype in DTYPES[device.type]:
            qkv, cu_seqlens = step(lengths, padding, heads, dtype)
            expected = expected_rows(qkv, cu_seqlens, heads, causal, window)
            found = triton_short_sequences.attend_short_sequences(
                *parts(qkv.to(device), heads),
                cu_seqlens.to(device),
                max_seqlen=64,
                causal=causal,
                window=window,
            )
            assert found.dtype == dtype
            assert torch.isfinite(found).all()  # padding, too
            limit = LIMITS[dtype]
            torch.testing.assert_close(
                found[: len(expected)].float().cpu(), expected, rtol=limit, atol=limit
            )


@pytest.mark.parametrize(("lengths", "padding"), [([100, 0, 3], 25), ([128], 0), ([3, 65, 20], 5)])
@pytest.mark.parametrize(("causal", "window"), KINDS)
def test_a_block_holds_a_small_step(lengths, padding, causal, window, device):
    heads = HEADS[device.type][0]
    qkv, cu_seqlens = step(lengths, padding, heads, torch.float16)
    found = triton_short_sequences.attend_short_sequences(
        *parts(qkv.to(device), heads),
        cu_seqlens.to(device),
        max_seqlen=128,
        causal=causal,
        window=window,
    )
    expected = expected_rows(qkv, cu_seqlens, heads, causal, window)
    assert torch.isfinite(found).all()
    found = found[: len(expected)].float().cpu()
    torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)


def test_longer_sequences_are_refused():
    qkv, cu_seqlens = step([160], 0, (4, 2, 32), torch.float32)
    with pytest.raises(ValueError, match="max_seqlen should be up to 128, not 160"):
        triton_short_sequences.attend_short_sequences(
            *parts(qkv, (4, 2, 32)), cu_seqlens, max_seqlen=160, causal=False, window=None
        )


def test_nothing_outside_the_step_is_read_or_written(device, monkeypatch):
    heads, guard = HEADS[device.type][0], 1 << 16
    buffers = []

    def guarded(shape, dtype, device):
        size = math.prod(shape)
        buffers.append(torch.full((size + 2 * guard,), 77, dtype=dtype, device=device))
        return buffers[-1][guard : guard + size].view(shape)

    monkeypatch.setattr(triton_short_sequences.torch, "empty", guarded)
    for lengths, padding in [([64, 0, 64], 0), ([1, 2], 0), ([7, 0, 0], 1500), ([], 70)]:
        qkv, cu_seqlens = step(lengths, padding, heads, torch.float16)
        around = torch.full((qkv.numel() + 2 * guard,), torch.nan, dtype=qkv.dtype, device=device)
        inside = around[guard : guard + qkv.numel()].view(qkv.shape)
        inside.copy_(qkv)
        found = triton_short_sequences.attend_short_sequences(
            *parts(inside, heads),
            cu_seqlens.to(device),
            max_seqlen=64,
            causal=False,
            window=None,
        )
        assert torch.isfinite(found).all()
        assert (found[sum(lengths) :] == 0).all()
        buffer = buffers.pop()
        assert (buffer[:guard] == 77).all()
        assert (buffer[-guard:] == 77).all()


@pytest.mark.parametrize("max_seqlen", [5, 16, 17, 64])
def test_a_bound_may_be_any_that_holds(max_seqlen, device):
    heads = HEADS[device.type][0]
    qkv, cu_seqlens = step([5, 1, 4], 70, heads, torch.float16)
    expected = expected_rows(qkv, cu_seqlens, heads, causal=False, window=None)
    found = triton_short_sequences.attend_short_sequences(
        *parts(qkv.to(device), heads),
        cu_seqlens.to(device),
        max_seqlen=max_seqlen,
        causal=False,
        window=None,
    )
    torch.testing.assert_close(found[:10].float().cpu(), expected, rtol=4e-3, atol=4e-3)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(("causal", "window"), KINDS)
def test_the_reference_equals_each_sequence_alone(causal, window):
    heads = (4, 2, 32)
    qkv, cu_seqlens = step([1, 63, 0, 64], 0, heads, torch.float32)
    found = short_sequences.attend_short_sequences(
        *parts(qkv, heads), cu_seqlens, max_seqlen=64, causal=causal, window=window
    )
    expected = expected_rows(qkv, cu_seqlens, heads, causal, window)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_heads_with_gaps_are_refused():
    heads = (4, 2, 32)
    qkv, cu_seqlens = step([4], 0, heads, torch.float32)
    query, key, value = parts(qkv, heads)
    with pytest.raises(ValueError, match="heads of key should be contiguous"):
        triton_short_sequences.attend_short_sequences(
            query,
            key.transpose(1, 2).contiguous().transpose(1, 2),
            value,
            cu_seqlens,
            max_seqlen=4,
            causal=False,
            window=None,
        )


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("heads", [(16, 8, 128), (12, 12, 64)])
def test_a_gpu_chooses_it_by_the_bound_and_flash_attn_4_gives_the_same(heads):
    qkv, cu_seqlens = step([1, 63, 64, 0, 50], 78, heads, torch.bfloat16)
    qkv = qkv.nan_to_num().cuda()
    rows = {
        bound: attention(
            *parts(qkv, heads), AttentionPlan(Backend.FLASH_ATTN_4, cu_seqlens.cuda(), bound)
        )[:178]
        for bound in (64, 256)
    }
    assert AttentionPlan(Backend.FLASH_ATTN_4, cu_seqlens, 64).is_short
    cosines = torch.nn.functional.cosine_similarity(rows[64].float(), rows[256].float())
    assert cosines.min() >= 0.9999
