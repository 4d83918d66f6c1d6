"""Norms: the Triton kernels against the torch references, and those against transformers."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import backend, norm, triton_norm
from rounding import DTYPES, assert_rounded_once

SHAPES = [(1, 384), (3, 768), (65, 1000), (5, 1024), (2, 4096), (11, 768), (7, 1)]
EPS = 1e-6


def tensors(num_tokens, hidden, dtype, device):
    """x, residual, weight and bias, of mean 0.5 so that the mean counts."""
    torch.manual_seed(num_tokens + hidden)
    rows = [torch.randn(num_tokens, hidden) + 0.5 for _ in range(2)]
    row = [torch.randn(hidden) for _ in range(2)]
    return [tensor.to(device, dtype) for tensor in (*rows, *row)]


def in_fp32(*values):
    return [value.float().cpu() for value in values]


def implementations(device, name):
    """The Triton kernel; on a GPU also the function that should choose it."""
    functions = [getattr(triton_norm, name)]
    return functions + [getattr(norm, name)] * (device.type == "cuda")


def take_many_rows(monkeypatch):
    """Programs take what they would of steps of thousands of rows."""
    monkeypatch.setattr(backend, "MANY_ROWS", 1)
    monkeypatch.setattr(triton_norm, "NUM_PROGRAMS", 1)


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize(("num_tokens", "hidden"), SHAPES)
def test_norms_are_rounded_once(num_tokens, hidden, many_rows, device, monkeypatch):
    if many_rows:
        take_many_rows(monkeypatch)
    for dtype in DTYPES[device.type]:
        x, _, weight, bias = tensors(num_tokens, hidden, dtype, device)
        values, scale, shift = in_fp32(x, weight, bias)
        for rms_norm in implementations(device, "rms_norm"):
            assert_rounded_once(rms_norm(x, weight, EPS), norm.rms_norm(values, scale, EPS))
        for layer_norm in implementations(device, "layer_norm"):
            expected = norm.layer_norm(values, scale, shift, EPS)
            assert_rounded_once(layer_norm(x, weight, bias, EPS), expected)
        assert torch.equal(x.float().cpu(), values)


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize(("num_tokens", "hidden"), SHAPES)
def test_residuals_are_added_first(num_tokens, hidden, many_rows, device, monkeypatch):
    if many_rows:
        take_many_rows(monkeypatch)
    for dtype in DTYPES[device.type]:
        x, residual, weight, bias = tensors(num_tokens, hidden, dtype, device)
        values, addend, scale, shift = in_fp32(x, residual, weight, bias)
        for add_layer_norm in implementations(device, "add_layer_norm"):
            found = add_layer_norm(x.clone(), residual, weight, bias, EPS)
            assert_rounded_once(found, norm.layer_norm(values + addend, scale, shift, EPS))
            assert torch.equal(residual.float().cpu(), addend)
        for add_rms_norm in implementations(device, "add_rms_norm"):
            total = residual.clone()
            found = add_rms_norm(x.clone(), total, weight, EPS)
            assert torch.equal(total, x + residual)
            assert_rounded_once(found, norm.rms_norm(total.float().cpu(), scale, EPS))


@pytest.mark.parametrize("hidden", [128, 384, 768, 1000, 1024, 2560])
def test_a_row_is_the_same_among_few_and_among_many(hidden, device, monkeypatch):
    for dtype in DTYPES[device.type]:
        x, residual, weight, bias = tensors(37, hidden, dtype, device)

        def norms(n, x=x, residual=residual, weight=weight, bias=bias):
            total = residual[:n].clone()
            found = [
                triton_norm.layer_norm(x[:n], weight, bias, EPS),
                triton_norm.add_layer_norm(x[:n].clone(), residual[:n], weight, bias, EPS),
                triton_norm.rms_norm(x[:n], weight, EPS),
                triton_norm.add_rms_norm(x[:n].clone(), total, weight, EPS),
                total,
            ]
            return torch.cat(found, dim=1)

        few, one = norms(37), norms(1)
        with monkeypatch.context() as patch:
            take_many_rows(patch)
            many = norms(37)
        assert torch.equal(few, many)
        assert torch.equal(few[:1], one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_references_equal_transformers(dtype):
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    x, residual, weight, bias = tensors(5, 96, dtype, "cpu")
    module = Qwen3RMSNorm(96, eps=EPS).to(dtype)
    module.weight.data.copy_(weight)
    layer = torch.nn.LayerNorm(96, eps=EPS, dtype=dtype)
    layer.weight.data.copy_(weight)
    layer.bias.data.copy_(bias)
    with torch.inference_mode():
        assert torch.equal(norm.layer_norm(x, weight, bias, EPS), layer(x))
        expected = module(x)
        # transformers rounds before it multiplies by the weight, too.
        exact = {} if dtype != torch.float32 else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(norm.rms_norm(x, weight, EPS), expected, **exact)
        expected = module(residual + x)
        found = norm.add_rms_norm(x, residual, weight, EPS)
        torch.testing.assert_close(found, expected, **exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_rms_reference_is_rounded_once(dtype):
    x, _, weight, _ = tensors(5, 96, dtype, "cpu")
    expected = norm.rms_norm(*in_fp32(x, weight), EPS)
    assert_rounded_once(norm.rms_norm(x, weight, EPS), expected)


def test_rows_with_gaps_are_refused(device):
    x, residual, weight, bias = tensors(4, 16, torch.float32, device)
    for name, call in {
        "x": lambda gaps: triton_norm.rms_norm(gaps, weight, EPS),
        "residual": lambda gaps: triton_norm.add_layer_norm(x, gaps, weight, bias, EPS),
    }.items():
        with pytest.raises(ValueError, match=f"^{name} should be contiguous"):
            call(torch.cat([residual, residual], dim=1)[:, :16])
