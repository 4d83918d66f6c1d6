"""Kernels of batch-invariant small steps: what they compute, and that its bits are those of large steps."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import small_linear, triton_norm_rope, triton_short_sequences
from flowerbed.rose.kernels.attention import AttentionPlan, Backend
from flowerbed.rose.kernels.flash_attention import flash_attention, why_not
from flowerbed.rose.kernels.fused_linear import fuses_products, linear_norm_rope, linear_swiglu
from flowerbed.rose.kernels.linear import linear
from flowerbed.rose.kernels.norm_rope import norm_rope, norm_rope_, norm_rope_weights

# flash-attn-4 and quack import the compiler of torch, which warns of its own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

HEADS = [(16, 8), (4, 4), (6, 2)]
THETA, EPS = 1e6, 1e-6
HALFS = [torch.bfloat16, torch.float16]
DTYPES = {"cpu": (torch.float32, torch.float16), "cuda": HALFS}
LIMITS = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""The interpreter rounds a product before it adds to it."""
SHAPES = [(16, 8, 128), (12, 12, 64), (14, 2, 96), (12, 12, 32), (6, 6, 40)]
"""Heads of queries and of keys, and their columns."""
LENGTHS = [1, 64, 63, 0, 14, 2, *range(3, 64, 7)]
NARROW = [(1024, 2048), (1024, 3072), (4096, 1024), (768, 768), (2560, 4096), (384, 384)]
"""Outputs and inputs of products without a bias."""


@pytest.fixture
def hopper() -> torch.device:
    gpu = torch.device("cuda", 0)
    reason = why_not(Backend.FLASH_ATTN_4, gpu, torch.bfloat16, 128)
    if reason is not None or not fuses_products(gpu, torch.bfloat16):
        pytest.skip(reason or "no quack-kernels for this GPU")
    return gpu


def weights_of(heads, hidden, dtype, device):
    torch.manual_seed(sum(heads))
    rows = (heads[0] + 2 * heads[1]) * 128
    weight = (torch.randn(rows, hidden) / hidden**0.5).to(device, dtype)
    norms = [(1 + torch.rand(128)).to(device, dtype) for _ in range(2)]
    return norm_rope_weights(weight, (norms[0], norms[1]), heads, THETA, EPS)


def bounds_of(lengths, device):
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


@pytest.mark.parametrize("heads", [(2, 1), (9, 3)])
def test_norm_and_rotation_equal_their_reference(heads, device):
    weights = weights_of(heads, 32, torch.float32, torch.device("cpu"))
    there = weights_of(heads, 32, torch.float32, device)
    places = torch.tensor([0, 1, 5, 64, 127, 3], dtype=torch.int32)
    for dtype in DTYPES[device.type]:
        qkv = torch.randn(len(places), (heads[0] + 2 * heads[1]) * 128).to(dtype)
        found = qkv.to(device, copy=True)
        triton_norm_rope.norm_rope_(found, there, places.to(device), heads)
        expected = norm_rope(qkv.float(), weights, places)
        limit = LIMITS[dtype]
        torch.testing.assert_close(found.float().cpu(), expected, rtol=limit, atol=limit)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALFS)
@pytest.mark.parametrize("heads", HEADS)
def test_norm_and_rotation_have_the_bits_of_the_product_s(heads, dtype, hopper):
    weights = weights_of(heads, 1_024, dtype, hopper)
    x = torch.randn(4_096, 1_024, device=hopper).to(dtype)
    places = (torch.arange(4_096, device=hopper) * 7 % 4_001).int()
    many = linear_norm_rope(x, weights, places)
    for count in (1, 32, 128):
        few = small_linear.small_linear(x[:count], weights.rows)
        norm_rope_(few, weights, places[:count], heads)
        assert torch.equal(few, many[:count]), count


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALFS)
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 9), (True, 9)])
def test_short_sequences_have_the_bits_of_flash_attention(dtype, causal, window, hopper):
    for num_heads, num_kv_heads, head_dim in SHAPES:
        torch.manual_seed(head_dim)
        widths = (num_heads, num_kv_heads, num_kv_heads)
        steps = [(64, LENGTHS)]
        if window is None:
            steps += [(128, [128]), (128, [65]), (128, [3, 100, 25]), (128, [14] * 9)]
        for bound, lengths in steps:
            qkv = torch.randn(sum(lengths), sum(widths), head_dim, device=hopper).to(dtype)
            parts = qkv.split(widths, dim=1)
            bounds = bounds_of([*lengths, 0], hopper)
            found = triton_short_sequences.attend_short_sequences(
                *parts, bounds, max_seqlen=bound, causal=causal, window=window
            )
            plan = AttentionPlan(Backend.FLASH_ATTN_4, bounds, 512)
            expected = flash_attention(*parts, plan, causal=causal, window=window)
            assert torch.equal(found, expected), (num_heads, head_dim, lengths)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALFS)
def test_swiglu_has_the_bits_of_a_large_step_s(dtype, hopper):
    torch.manual_seed(4)
    x = torch.randn(4_096, 1_024, device=hopper).to(dtype)
    weight = (torch.randn(6_144, 1_024, device=hopper) / 16).to(dtype)
    many = linear_swiglu(x, weight, batch_invariant=True)
    for count in (1, 32, 64, 65, 128):
        assert torch.equal(small_linear.small_swiglu(x[:count], weight), many[:count]), count


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALFS)
def test_narrow_products_have_the_bits_of_wide_ones(dtype, hopper):
    from flowerbed.rose.kernels import triton_narrow_linear

    for outputs, inputs in NARROW:
        torch.manual_seed(outputs)
        x = torch.randn(4_096, inputs, device=hopper).to(dtype)
        weight = (torch.randn(outputs, inputs, device=hopper) / inputs**0.5).to(dtype)
        many = linear(x, weight, None)
        counts = [n for n in (1, 16, 17, 32, 33, 64, 65, 127, 128) if narrow_serves(x[:n], weight)]
        assert counts
        for count in counts:
            few = torch.full((count + 1, inputs), torch.nan, device=hopper, dtype=dtype)
            few[:count] = x[:count]  # the row behind them must not matter
            found = triton_narrow_linear.narrow_linear(few[:count], weight)
            assert torch.equal(found, many[:count]), (outputs, inputs, count)


def narrow_serves(x, weight) -> bool:
    from flowerbed.rose.kernels import triton_narrow_linear

    return triton_narrow_linear.serves(x, weight)


def test_narrow_products_have_no_more_programs_than_processors():
    tokens = torch.empty(128, 3_072)
    for outputs, inputs, most in [
        (1024, 3072, 128),
        (4096, 1024, 32),
        (6144, 1024, 0),
        (96, 72, 0),
    ]:
        weight = torch.empty(outputs, inputs, device="meta")
        for count in (1, 32, 33, 128):
            assert narrow_serves(tokens[:count], weight) == (count <= most)
