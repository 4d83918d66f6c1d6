"""Rows in 8 bits: the Triton kernels against the torch references, and those against plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowerbed.rose.kernels import activation, norm, scaled_rows, triton_scaled_rows
from rounding import DTYPES

SHAPES = [(1, 384), (9, 1000), (3, 1024), (2, 4096), (7, 1)]
EPS = 1e-6
STEP = 2**-3
"""Between two neighbours of float8_e4m3fn, over the smaller one; their least distance is 2^-9."""


@pytest.fixture(autouse=True)
def rounds_rightly(device, monkeypatch):
    """Triton's interpreter rounds half away from zero and forgets to carry: torch does it instead."""
    if device.type == "cuda":
        return
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def to_float8(values):
        rounded = torch.from_numpy(np.ascontiguousarray(values.handle.data)).to(scaled_rows.FLOAT8)
        data = rounded.view(torch.uint8).numpy()
        kind = tl.block_type(tl.float8e4nv, list(data.shape))
        return tl.tensor(TensorHandle(data, tl.float8e4nv), kind)

    monkeypatch.setattr(triton_scaled_rows, "to_float8", to_float8)


def implementations(device, name):
    """The Triton kernel; on a GPU also the function that should choose it."""
    functions = [getattr(triton_scaled_rows, name)]
    public = name if name.startswith("quantize") else f"scaled_{name}"
    return functions + [getattr(scaled_rows, public)] * (device.type == "cuda")


def in_fp32(*tensors):
    return [tensor.float().cpu() for tensor in tensors]


def values_of(rows):
    return rows.values.cpu().double() * rows.scales.cpu().double()


def assert_same_rows(found, expected):
    """Scales to a few bits of fp32; values next to the middle of two levels may be the other one."""
    assert found.values.dtype == scaled_rows.FLOAT8
    assert found.scales.dtype == torch.float32
    torch.testing.assert_close(found.scales.cpu(), expected.scales, rtol=1e-5, atol=0)
    ours, theirs = found.values.cpu().float(), expected.values.float()
    differ = ours != theirs
    assert differ.float().mean() <= max(2e-3, 2 / differ.numel())
    limit = STEP * theirs.abs().clamp_min(2**-6) * 1.001
    assert ((ours - theirs).abs() <= limit).all()


def tensors(num_tokens, hidden, dtype, device):
    """x, residual, weight and bias; the second row of both is zero, the third ten thousand times as large."""
    torch.manual_seed(num_tokens + hidden)
    rows = [torch.randn(num_tokens, hidden) + 0.5 for _ in range(2)]
    for x in rows:
        x[1:2] = 0
        x[2:3] *= 1e4
    row = [torch.randn(hidden) for _ in range(2)]
    return [tensor.to(device, dtype) for tensor in (*rows, *row)]


@pytest.mark.parametrize(("num_tokens", "hidden"), SHAPES)
def test_kernels_equal_their_references(num_tokens, hidden, device):
    for dtype in DTYPES[device.type]:
        x, _, weight, bias = tensors(num_tokens, hidden, dtype, device)
        for quantize in implementations(device, "quantize_rows"):
            assert_same_rows(quantize(x), scaled_rows.quantize_rows(x.float().cpu()))
        expected = scaled_rows.scaled_rms_norm(*in_fp32(x, weight), EPS)
        for rms_norm in implementations(device, "rms_norm"):
            assert_same_rows(rms_norm(x, weight, EPS), expected)
        for approximate in ("none", "tanh"):
            for shift in (None, bias):
                wanted = [x.float().cpu(), None if shift is None else shift.float().cpu()]
                expected = scaled_rows.scaled_bias_gelu(*wanted, approximate)
                for gelu in implementations(device, "bias_gelu"):
                    assert_same_rows(gelu(x, shift, approximate), expected)


@pytest.mark.parametrize(("num_tokens", "hidden"), SHAPES)
def test_norms_of_sums_equal_their_references(num_tokens, hidden, device):
    for dtype in DTYPES[device.type]:
        x, residual, weight, bias = tensors(num_tokens, hidden, dtype, device)
        total = (x.float() + residual.float()).to(dtype)
        expected = scaled_rows.scaled_rms_norm(*in_fp32(total, weight), EPS)
        for add_rms_norm in implementations(device, "add_rms_norm"):
            found_residual = residual.clone()
            assert_same_rows(add_rms_norm(x.clone(), found_residual, weight, EPS), expected)
            torch.testing.assert_close(found_residual, total)
        if hidden == 1:  # no variance
            continue
        plain, rows = scaled_rows.scaled_add_layer_norm(*in_fp32(x, residual, weight, bias), EPS)
        for add_layer_norm in implementations(device, "add_layer_norm"):
            found, found_rows = add_layer_norm(x.clone(), residual, weight, bias, EPS)
            assert found.dtype == dtype
            torch.testing.assert_close(found.float().cpu(), plain, rtol=2**-7, atol=2e-3)
            assert_same_rows(found_rows, rows)


@pytest.mark.parametrize(("num_tokens", "width"), [(1, 3072), (9, 1000), (5, 77)])
def test_swiglu_equals_its_reference(num_tokens, width, device):
    torch.manual_seed(width)
    for dtype in DTYPES[device.type]:
        gate_up = torch.randn(num_tokens, 2 * width).to(device, dtype)
        expected = scaled_rows.scaled_swiglu(gate_up.float().cpu())
        for swiglu in implementations(device, "swiglu"):
            assert_same_rows(swiglu(gate_up), expected)


def test_rows_of_zeros_and_of_next_to_nothing_are_zeros_of_scale_one(device):
    x = torch.zeros(3, 64, device=device)
    x[1] = 1e-38
    x[2, 5] = -1e-3
    rows = triton_scaled_rows.quantize_rows(x)
    assert rows.scales.flatten().tolist() == pytest.approx([1, 1, 1e-3 / 448])
    assert not rows.values[:2].float().any()
    assert rows.values[2, 5].item() == -448


def test_huge_rows_saturate_nothing(device):
    x = torch.tensor([[3.3e38, -3.3e38, 1e38, 0.0], [6e4, -1.0, 2e-3, 1e-9]], device=device)
    rows = triton_scaled_rows.quantize_rows(x)
    torch.testing.assert_close(values_of(rows), x.cpu().double(), rtol=2**-4, atol=6e4 / 448 / 512)
    assert rows.values[0, 0].item() == 448


def test_what_is_no_number_is_not_hidden(device):
    for value in (float("nan"), float("inf"), -float("inf")):
        x = torch.randn(2, 64)
        x[0, 7] = value
        functions = [scaled_rows.quantize_rows]
        if device.type == "cuda":
            x = x.cuda()
            functions.append(triton_scaled_rows.quantize_rows)
        for quantize in functions:
            rows = quantize(x)
            assert values_of(rows)[0].isnan().any()
            assert values_of(rows)[1].isfinite().all()


def test_references_are_the_plain_functions_in_8_bits():
    torch.manual_seed(2)
    x, residual = torch.randn(2, 9, 96)
    weight, bias = torch.randn(2, 96)
    plain, rows = scaled_rows.scaled_add_layer_norm(x.clone(), residual, weight, bias, EPS)
    pairs = [
        (scaled_rows.quantize_rows(x), x),
        (scaled_rows.scaled_rms_norm(x, weight, EPS), norm.rms_norm(x, weight, EPS)),
        (
            scaled_rows.scaled_add_rms_norm(x, residual.clone(), weight, EPS),
            norm.rms_norm(x + residual, weight, EPS),
        ),
        (rows, norm.layer_norm(x + residual, weight, bias, EPS)),
        (scaled_rows.scaled_swiglu(x), activation.swiglu(x)),
        (scaled_rows.scaled_bias_gelu(x, bias, "tanh"), activation.bias_gelu(x, bias, "tanh")),
    ]
    torch.testing.assert_close(plain, norm.layer_norm(x + residual, weight, bias, EPS))
    for found, expected in pairs:
        least = found.scales * 2**-10
        error = (found.values.float() * found.scales - expected).abs()
        assert (error <= torch.maximum(expected.abs() * 2**-4 * 1.001, least)).all()
        assert torch.equal(found.values.float().abs().amax(1), torch.full((9,), 448.0))


def test_rows_with_gaps_are_refused(device):
    wide = torch.randn(4, 32, device=device)
    weight = torch.randn(16, device=device)
    for name, call in {
        "x": lambda gaps: triton_scaled_rows.quantize_rows(gaps),
        "residual": lambda gaps: triton_scaled_rows.add_rms_norm(
            gaps.contiguous(), gaps, weight, EPS
        ),
        "gate_up": lambda gaps: triton_scaled_rows.swiglu(gaps),
    }.items():
        with pytest.raises(ValueError, match=f"^{name} should be contiguous"):
            call(wide[:, :16])
