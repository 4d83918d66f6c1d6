"""Products in 8 bits: their arithmetic, the sizes they take, and on a GPU its kernels against it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from flowerbed.errors import ConfigError
from flowerbed.rose.kernels import fused_linear, norm_rope, scaled_linear
from flowerbed.rose.kernels.scaled_rows import ScaledRows, quantize_rows

HEADS = (4, 2)
EPS = 1e-6
THETA = 1e6
ROWS = (1, 63, 333, 2_049)
WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # quack imports torch's compiler


def exact(rows: ScaledRows):
    """What rows stand for, in fp32."""
    return rows.values.float() * rows.scales


def tensors(num_rows, hidden, out_features, device="cpu"):
    """x in 8 bits, a weight and a bias in bfloat16."""
    torch.manual_seed(num_rows + hidden)
    x = torch.randn(num_rows, hidden)
    x[num_rows // 2] *= 1_000
    weight = (torch.randn(out_features, hidden) / hidden**0.5).bfloat16()
    bias = torch.randn(out_features).bfloat16()
    return quantize_rows(x.to(device)), weight.to(device), bias.to(device)


def assert_near(found, expected):
    """bfloat16; sums on a GPU may lack what its registers do not hold, about 14 bits."""
    assert found.dtype == torch.bfloat16
    if not found.is_cuda:
        torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=1e-3)
        return
    size = expected.square().mean(1, keepdim=True).sqrt()
    error = (found.float() - expected).abs()
    assert (error <= 2**-6 * (expected.abs() + size)).all()
    norms = torch.linalg.vector_norm(error, dim=1) / torch.linalg.vector_norm(expected, dim=1)
    assert norms.max() <= 6e-3  # of all rows together 1.7e-3 to 2e-3


def test_a_product_is_that_of_the_values_and_their_scales():
    x, weight, bias = tensors(5, 64, 48)
    rows = scaled_linear.scaled_weight(weight)
    expected = exact(x) @ exact(rows).T
    assert_near(scaled_linear.scaled_linear(x, rows), expected)
    assert_near(scaled_linear.scaled_linear(x, rows, bias), expected + bias.float())
    share = torch.linalg.vector_norm(exact(rows) - weight.float()) / weight.float().norm()
    assert 0.01 < share < 0.04  # three bits behind the leading one


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_activations_come_after_the_bias_and_before_the_8_bits(activation):
    x, weight, bias = tensors(5, 64, 48)
    rows = scaled_linear.scaled_weight(weight)
    found = exact(scaled_linear.scaled_linear_activation(x, rows, bias, activation))
    function = scaled_linear.linear.ACTIVATIONS[activation]
    expected = function(exact(x) @ exact(rows).T + bias.float())
    error = torch.linalg.vector_norm(found - expected, dim=1)
    assert (error <= 0.04 * torch.linalg.vector_norm(expected, dim=1)).all()
    gate, up = (exact(x) @ exact(rows).T).chunk(2, dim=1)
    found = exact(scaled_linear.scaled_linear_swiglu(x, scaled_linear.gate_up_weights(weight)))
    expected = functional.silu(gate) * up
    error = torch.linalg.vector_norm(found - expected, dim=1)
    assert (error <= 0.04 * torch.linalg.vector_norm(expected, dim=1)).all()


@pytest.mark.parametrize("shape", [(48, 72), (40, 64)])
def test_sizes_that_no_kernel_serves_are_refused(shape):
    with pytest.raises(ConfigError, match=f"multiples of 16.* {shape[1]} to {shape[0]}: use"):
        scaled_linear.scaled_weight(torch.zeros(shape))


@pytest.mark.gpu
@WARNS
@pytest.mark.parametrize(("hidden", "out_features"), [(1_024, 4_096), (3_072, 1_024), (384, 1_536)])
def test_products_on_a_gpu(hidden, out_features):
    x, weight, bias = tensors(2_049, hidden, out_features, "cuda")
    rows = scaled_linear.scaled_weight(weight)
    sums = exact(x) @ exact(rows).T
    whole = scaled_linear.scaled_linear(x, rows)
    for num_rows in ROWS:
        part = ScaledRows(x.values[:num_rows], x.scales[:num_rows])
        torch.full((num_rows, out_features), float("nan"), device="cuda", dtype=torch.bfloat16)
        found = scaled_linear.scaled_linear(part, rows)
        assert_near(found, sums[:num_rows])
        if fused_linear.fuses_products(found.device, found.dtype) and hidden >= out_features:
            assert torch.equal(found, whole[:num_rows])  # a row alone is the row among others
        assert_near(scaled_linear.scaled_linear(part, rows, bias), sums[:num_rows] + bias.float())


@pytest.fixture
def quack():
    """The GPU, and kernels for it."""
    device = torch.device("cuda", 0)
    if not fused_linear.fuses_products(device, torch.bfloat16):
        pytest.skip("no quack-kernels for this GPU")
    return device


@pytest.mark.gpu
@WARNS
@pytest.mark.parametrize(("hidden", "inner"), [(1_024, 3_072), (768, 3_072), (128, 256)])
def test_swiglu_kernels_are_the_product_and_what_follows(hidden, inner, quack):
    x, weight, _ = tensors(2_049, hidden, 2 * inner, quack)
    weights = scaled_linear.gate_up_weights(weight)
    gate, up = (exact(x) @ exact(weights.rows).T).chunk(2, dim=1)
    expected = functional.silu(gate) * up
    kernels = fused_linear.quack_linear()
    few, _, many = scaled_linear.SWIGLU
    whole = kernels.scaled_linear_swiglu(x, weights, many)
    for num_rows in ROWS:
        part = ScaledRows(x.values[:num_rows], x.scales[:num_rows])
        for tile in (few, many):
            torch.full((num_rows, inner), float("nan"), device=quack, dtype=torch.bfloat16)
            found = kernels.scaled_linear_swiglu(part, weights, tile)
            assert_near(found, expected[:num_rows])
            assert torch.equal(found, whole[:num_rows])  # a row alone is the row among others


@pytest.mark.gpu
@WARNS
def test_norm_and_rotation_are_the_product_and_what_follows(quack):
    width = (HEADS[0] + 2 * HEADS[1]) * norm_rope.HEAD_DIM
    x, weight, _ = tensors(2_049, 1_024, width, quack)
    norms = tuple((1 + torch.randn(128, device=quack) / 4).bfloat16() for _ in range(2))
    positions = torch.randint(0, 4_096, (2_049,), device=quack, dtype=torch.int32)
    plain = norm_rope.norm_rope_weights(weight, norms, HEADS, THETA, EPS)
    weights = scaled_linear.scaled_norm_rope_weights(plain)
    # The same by the reference for 16 bits, of the values that the 8 bits stand for.
    expected = fused_linear.linear_norm_rope(
        exact(x).cpu(),
        norm_rope.NormRopeWeights(
            exact(weights.rows).cpu(), *(part.cpu() for part in plain[1:4]), EPS
        ),
        positions.cpu(),
    ).to(quack)
    whole = scaled_linear.scaled_linear_norm_rope(x, weights, positions)
    for num_rows in ROWS:
        part = ScaledRows(x.values[:num_rows], x.scales[:num_rows])
        torch.full((num_rows, width), float("nan"), device=quack, dtype=torch.bfloat16)
        found = scaled_linear.scaled_linear_norm_rope(part, weights, positions[:num_rows])
        assert_near(found, expected[:num_rows])
        assert torch.equal(found, whole[:num_rows])
