"""Values beyond float16's range in the kernels that read or make them, against references in fp32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from flowerbed.rose.kernels import (
    activation,
    add_parts,
    backend,
    fused_linear,
    linear,
    norm,
    small_linear,
    triton_activation,
    triton_add_parts,
    triton_norm,
    triton_small_linear,
)
from flowerbed.rose.kernels.saturation import FLOAT16_MAX, saturated
from rounding import assert_rounded_once

INF, NAN = float("inf"), float("nan")
FAR = [INF, -INF, 65_504.0, -65_504.0, 60_000.0, -60_000.0, 1.0, 0.0, -1.0]
HALF = torch.float16
EPS = 1e-6


def both(module, triton_module, name, device):
    """The torch reference and the Triton kernel, of which a GPU has only the latter in float16."""
    functions = [getattr(triton_module, name), getattr(module, name)]
    return functions if device.type == "cpu" else functions[:1]


def clamped(x):
    """fp32 within the range of float16, by numpy: what is no number stays none."""
    return torch.from_numpy(x.float().cpu().numpy().clip(-FLOAT16_MAX, FLOAT16_MAX))


def test_only_float16_is_clamped_and_what_is_no_number_stays_none():
    x = torch.tensor([INF, -INF, NAN, 1e5, -1e5, 65_504.0, 3.0])
    expected = torch.tensor([65_504, -65_504, NAN, 65_504, -65_504, 65_504, 3.0])
    torch.testing.assert_close(saturated(x, HALF), expected, rtol=0, atol=0, equal_nan=True)
    for dtype in (torch.float32, torch.bfloat16):
        assert saturated(x, dtype) is x


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shift", [0.0, 30_000.0, -30_000.0])
def test_gelu_ends_at_the_largest_value(approximate, shift, device):
    x = torch.tensor([FAR, FAR[::-1]], dtype=HALF)
    bias = torch.full((len(FAR),), shift, dtype=HALF)
    expected = functional.gelu(clamped(x.float() + bias.float()), approximate=approximate)
    for bias_gelu in both(activation, triton_activation, "bias_gelu", device):
        found = bias_gelu(x.to(device, copy=True), bias.to(device), approximate)
        assert_rounded_once(found, expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_keeps_what_is_no_number(approximate, device):
    x = torch.tensor([[NAN, 1.0, NAN, INF]], dtype=HALF)
    for bias_gelu in both(activation, triton_activation, "bias_gelu", device):
        found = bias_gelu(x.to(device, copy=True), None, approximate)
        assert found.isnan().tolist() == x.isnan().tolist()


@pytest.mark.parametrize("name", sorted(linear.ACTIVATIONS))
def test_other_activations_end_there_without_triton_too(name):
    x, weight = torch.tensor([[200.0, 1.0], [-200.0, 1.0]], dtype=HALF), torch.ones(3, 2).half()
    weight[0] = 1_000.0
    found = linear.linear(x, weight, None, name)
    exact = linear.ACTIVATIONS[name](
        (x.float() @ weight.float().T).clamp(-FLOAT16_MAX, FLOAT16_MAX)
    )
    if name == "identity":  # whoever reads it clamps it
        assert found[:, 0].isinf().all()
    else:
        assert_rounded_once(found, exact)


@pytest.mark.parametrize("activation_name", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("num_tokens", [3, 70])
def test_small_products_with_gelu_end_there(activation_name, num_tokens, device):
    torch.manual_seed(num_tokens)
    x, weight = torch.randn(num_tokens, 64).half(), torch.randn(40, 64).half()
    weight[5] *= 40_000 / 3
    weight[6] = NAN
    bias = torch.zeros(40, dtype=HALF)
    bias[7] = 65_504.0
    sums = (x.float() @ weight.float().T).to(HALF).float() + bias.float()
    assert (sums[:, 5].abs() > FLOAT16_MAX).any()
    expected = functional.gelu(clamped(sums), approximate=small_linear.GELUS[activation_name])
    for small_gelu in both(small_linear, triton_small_linear, "small_gelu", device):
        found = small_gelu(x.to(device), weight.to(device), bias.to(device), activation_name)
        found = found.float().cpu()
        assert found[:, 6].isnan().all()
        found[:, 6] = expected[:, 6] = 0.0
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize("hidden", [384, 768, 1000, 1024])
def test_layer_norms_read_an_overflow_as_the_largest_value(hidden, many_rows, device, monkeypatch):
    if many_rows:
        monkeypatch.setattr(backend, "MANY_ROWS", 1)
        monkeypatch.setattr(triton_norm, "NUM_PROGRAMS", 1)
    torch.manual_seed(hidden)
    x, residual = torch.randn(2, 6, hidden).half()
    weight, bias = torch.randn(2, hidden).half()
    x[0, 3], x[1, hidden - 1], x[2, 0] = INF, -INF, INF
    x[2, 1] = -INF
    x[3, 5] = NAN
    residual[0, 3] = -50.0
    scale, shift = weight.float(), bias.float()
    good = [0, 1, 2, 4, 5]
    on_device = [tensor.to(device) for tensor in (residual, weight, bias)]
    total = clamped(x) + residual.float()
    expected = functional.layer_norm(total, (hidden,), scale, shift, EPS)
    found = triton_norm.add_layer_norm(x.to(device, copy=True), *on_device, EPS)
    assert found[3].isnan().all()
    assert_rounded_once(found[good], expected[good])
    if device.type == "cpu":  # its sum is in float16
        found = norm.add_layer_norm(x.clone(), *on_device, EPS)
        assert found[3].isnan().all()
        torch.testing.assert_close(found[good].float(), expected[good], rtol=5e-3, atol=5e-3)
    expected = functional.layer_norm(clamped(x), (hidden,), scale, shift, EPS)
    for layer_norm in both(norm, triton_norm, "layer_norm", device):
        found = layer_norm(x.to(device), *on_device[1:], EPS)
        assert found[3].isnan().all()
        assert_rounded_once(found[good], expected[good])


def test_parts_that_add_up_to_an_overflow_are_read_as_the_largest_value(device):
    torch.manual_seed(1)
    parts = torch.randn(4, 3, 312)
    parts[:, 0, 5], parts[:, 1, 6], parts[0, 2, 7] = 40_000.0, -20_000.0, NAN
    residual, (weight, bias) = torch.randn(3, 312).half(), torch.randn(2, 312).half()
    total = residual.float() + clamped(parts.sum(0)).half().float()
    expected = functional.layer_norm(total, (312,), weight.float(), bias.float(), EPS)
    on_device = [tensor.to(device) for tensor in (parts, residual, weight, bias)]
    for add in both(add_parts, triton_add_parts, "add_parts_layer_norm", device):
        found = add(*on_device, EPS)
        assert found[2].isnan().all()
        assert_rounded_once(found[:2], expected[:2])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # quack imports the compiler of torch
@pytest.mark.parametrize("num_rows", [4, 2_049])
def test_products_of_large_steps_end_there_in_one_kernel_and_in_two(num_rows):
    device = torch.device("cuda", 0)
    torch.manual_seed(num_rows)
    x = torch.randn(num_rows, 768, device=device).half()
    x[1] = -x[0]
    weight = torch.randn(3_072, 768, device=device).half() / 768**0.5
    weight[5] = 200 * x[0]
    weight[6] = NAN
    bias = torch.zeros(3_072, device=device, dtype=HALF)
    bias[7] = 65_504.0
    bias[8] = NAN
    found = fused_linear.linear_activation(x, weight, bias, "gelu").float()
    assert found[:, [6, 8]].isnan().all()
    sums = (x.float() @ weight.float().T).to(HALF).float() + bias.float()
    assert (sums[:, 5] > FLOAT16_MAX).any()
    assert (sums[:, 5] < -FLOAT16_MAX).any()
    expected = functional.gelu(sums.clamp(-FLOAT16_MAX, FLOAT16_MAX))
    good = [n for n in range(3_072) if n not in (6, 8)]
    assert found[:, good].isfinite().all()
    torch.testing.assert_close(found[:, good], expected[:, good], rtol=4e-3, atol=4e-3)
