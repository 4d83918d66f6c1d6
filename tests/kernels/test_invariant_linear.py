"""Products and pooling of batch-invariant steps: a row has the same bits among few rows and among many."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import triton_pooling, triton_small_linear
from flowerbed.rose.kernels.fused_linear import (
    fused_linear,
    fuses_products,
    invariant_linear,
    linear_activation,
)
from flowerbed.rose.kernels.linear import linear
from flowerbed.rose.kernels.pooling import POOLERS
from rounding import assert_rounded_once

# quack imports the compiler of torch, which warns of its own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DTYPES = {"cpu": (torch.float32, torch.float16), "cuda": (torch.float32, torch.bfloat16)}
SHAPES = [(1024, 3072), (768, 3072), (2304, 768), (384, 1536), (40, 136)]
"""Outputs and inputs."""
COUNTS = (1, 8, 64, 65, 128, 192, 193, 256, 1_000, 4_096, 16_384)
"""Rows of a product."""


@pytest.mark.gpu
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_row_is_the_same_among_few_and_among_many(dtype, has_bias):
    if not fuses_products(torch.device("cuda", 0), torch.bfloat16):
        pytest.skip("no quack-kernels for this GPU")
    for outputs, inputs in SHAPES:
        torch.manual_seed(outputs)
        x = torch.randn(COUNTS[-1], inputs, device="cuda").to(dtype)
        weight = (torch.randn(outputs, inputs, device="cuda") / inputs**0.5).to(dtype)
        bias = torch.randn(outputs, device="cuda").to(dtype) if has_bias else None
        many = invariant_linear(x, weight, bias)
        for count in COUNTS[:-1]:
            assert torch.equal(invariant_linear(x[:count], weight, bias), many[:count]), count


def test_sums_are_rounded_once(device):
    torch.manual_seed(3)
    x, weight = torch.randn(7, 80), torch.randn(24, 80) / 80**0.5
    for dtype in DTYPES[device.type]:
        values = x.to(dtype), weight.to(dtype)
        found = triton_small_linear.small_linear(
            *(part.to(device) for part in values), is_narrow=True
        )
        assert_rounded_once(found, values[0].float() @ values[1].float().T)


@pytest.mark.gpu
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_faster_kernel_of_many_rows_has_the_same_bits(dtype, has_bias):
    if not fuses_products(torch.device("cuda", 0), dtype):
        pytest.skip("no quack-kernels for this GPU")
    for outputs, inputs in [(2304, 768), (768, 768), (1024, 2048)]:
        torch.manual_seed(outputs)
        x = torch.randn(8_192, inputs, device="cuda").to(dtype)
        weight = (torch.randn(outputs, inputs, device="cuda") / inputs**0.5).to(dtype)
        bias = torch.randn(outputs, device="cuda").to(dtype) if has_bias else None
        found = fused_linear(x, weight, bias)
        assert torch.equal(found, linear(x, weight, bias))
        assert torch.equal(found, invariant_linear(x, weight, bias))


def test_without_a_gpu_it_is_the_product_of_torch():
    x, weight, bias = torch.randn(300, 8), torch.randn(4, 8), torch.randn(4)
    for activation in ("identity", "relu", "gelu"):
        expected = linear(x, weight, bias, activation)
        for fixed in (False, True):
            found = linear_activation(x, weight, bias, activation, batch_invariant=fixed)
            torch.testing.assert_close(found, expected)


def test_a_segment_has_the_same_row_in_a_step_of_any_size(device):
    torch.manual_seed(5)
    lengths = [1, 40, 64, 130, 700] if device.type == "cpu" else [1, 40, 64, 130, 700, 5_000]
    hidden = torch.randn(sum(lengths), 37).to(device)
    modes = tuple(POOLERS)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    bounds = torch.stack([starts[:-1], starts[1:]], dim=1)
    together = triton_pooling.pool_segments(
        hidden, bounds.to(device), starts.to(device), modes, batch_invariant=True
    )
    for number, (start, end) in enumerate(bounds.tolist()):
        length = end - start
        own = torch.tensor([[0, length]], dtype=torch.int32, device=device)
        alone = triton_pooling.pool_segments(
            hidden[start:end].contiguous(), own, own[0], modes, length, batch_invariant=True
        )
        assert torch.equal(alone[0], together[number]), length
