"""Activations: the Triton kernels against the torch references, and those against transformers."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import activation, backend, triton_activation
from rounding import DTYPES, assert_rounded_once

SHAPES = [(1, 3072), (3, 1536), (65, 1000), (5, 77), (2, 4864)]


def implementations(device, name):
    """The Triton kernel; on a GPU also the function that should choose it."""
    functions = [getattr(triton_activation, name)]
    return functions + [getattr(activation, name)] * (device.type == "cuda")


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize(("num_tokens", "width"), SHAPES)
def test_swiglu_is_rounded_once(num_tokens, width, many_rows, device, monkeypatch):
    if many_rows:
        monkeypatch.setattr(backend, "MANY_ROWS", 1)
    torch.manual_seed(width)
    for dtype in DTYPES[device.type]:
        gate_up = torch.randn(num_tokens, 2 * width).to(device, dtype)
        for swiglu in implementations(device, "swiglu"):
            assert_rounded_once(swiglu(gate_up), activation.swiglu(gate_up.float().cpu()))


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("num_tokens", "width"), SHAPES)
def test_gelu_is_rounded_once(num_tokens, width, approximate, many_rows, device, monkeypatch):
    if many_rows:
        monkeypatch.setattr(backend, "MANY_ROWS", 1)
    torch.manual_seed(width)
    for dtype in DTYPES[device.type]:
        x = (2 * torch.randn(num_tokens, width)).to(device, dtype)
        for bias in (None, torch.randn(width).to(device, dtype)):
            shift = None if bias is None else bias.float().cpu()
            expected = activation.bias_gelu(x.float().cpu(), shift, approximate)
            for bias_gelu in implementations(device, "bias_gelu"):
                assert_rounded_once(bias_gelu(x.clone(), bias, approximate), expected)


@pytest.mark.parametrize("width", [77, 1536, 3072])
def test_a_row_is_the_same_among_few_and_among_many(width, device, monkeypatch):
    torch.manual_seed(width)
    for dtype in DTYPES[device.type]:
        gate_up = (2 * torch.randn(37, 2 * width)).to(device, dtype)
        x, bias = torch.randn(37, width).to(device, dtype), torch.randn(width).to(device, dtype)

        def activations(n, gate_up=gate_up, x=x, bias=bias):
            gelus = [
                triton_activation.bias_gelu(x[:n].clone(), bias, approximate)
                for approximate in ("none", "tanh")
            ]
            return torch.cat([triton_activation.swiglu(gate_up[:n]), *gelus], dim=1)

        few, one = activations(37), activations(1)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "MANY_ROWS", 1)
            many = activations(37)
        assert torch.equal(few, many)
        assert torch.equal(few[:1], one)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_holds_where_it_bends_and_far_out(approximate, device):
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-6e4, -100.0, 0.0, 100.0, 6e4])])
    for dtype in DTYPES[device.type]:
        values = x.to(device, dtype)[None]
        expected = activation.bias_gelu(values.float().cpu(), None, approximate)
        found = triton_activation.bias_gelu(values.clone(), None, approximate)
        assert_rounded_once(found, expected)


def test_gelu_keeps_its_precision_near_zero_and_in_its_tail(device):
    x = torch.cat([torch.linspace(-5, -1, 1001), torch.logspace(-4, 0, 1001)])
    exact = (x.half().double() * torch.special.ndtr(x.half().double())).float()
    found = triton_activation.bias_gelu(x.half().to(device)[None], None, "none")[0].cpu()
    step = torch.finfo(torch.float16).eps / 2
    limit = 1.1 * step * exact.abs().clamp_min(torch.finfo(torch.float16).smallest_normal)
    assert ((found.double() - exact.double()).abs() <= limit).all()


def test_swiglu_far_out_is_finite_or_overflows_as_the_reference_does(device):
    gate_up = torch.tensor([[-6e4, -200, -90, 0, 90, 6e4] + [1.0] * 6], device=device)
    for dtype in DTYPES[device.type]:
        values = gate_up.to(dtype)
        expected = activation.swiglu(values.float().cpu())
        assert_rounded_once(triton_activation.swiglu(values), expected)


def test_references_equal_transformers():
    from transformers.activations import ACT2FN

    torch.manual_seed(1)
    x, up = torch.randn(2, 5, 64)
    bias = torch.randn(64)
    assert torch.equal(activation.swiglu(torch.cat([x, up], dim=1)), ACT2FN["silu"](x) * up)
    for name, approximate in {"gelu": "none", "gelu_pytorch_tanh": "tanh"}.items():
        assert torch.equal(activation.bias_gelu(x, bias, approximate), ACT2FN[name](x + bias))
        assert torch.equal(activation.bias_gelu(x, None, approximate), ACT2FN[name](x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_references_are_rounded_once(dtype):
    torch.manual_seed(1)
    x, bias = torch.randn(5, 64).to(dtype), torch.randn(64).to(dtype)
    assert_rounded_once(activation.swiglu(x), activation.swiglu(x.float()))
    for approximate in ("none", "tanh"):
        expected = activation.bias_gelu(x.float(), bias.float(), approximate)
        assert_rounded_once(activation.bias_gelu(x, bias, approximate), expected)


def test_rows_with_gaps_are_refused(device):
    wide = torch.randn(4, 32, device=device)
    with pytest.raises(ValueError, match="^gate_up should be contiguous"):
        triton_activation.swiglu(wide[:, :16])
    with pytest.raises(ValueError, match="^x should be contiguous"):
        triton_activation.bias_gelu(wide[:, :16], None, "none")
