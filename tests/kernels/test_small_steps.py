"""Kernels of small steps against their torch references in fp32."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import (
    rope,
    short_attention,
    small_linear,
    triton_short_attention,
    triton_small_linear,
)
from rounding import assert_rounded_once

SHAPES = [(1, 48, 64), (17, 40, 96), (33, 130, 36), (70, 64, 128)]
"""Tokens, outputs, inputs."""
GPU_SHAPES = [(17, 40, 96), (33, 130, 36), (32, 1024, 2048), (128, 1024, 3072)]
DTYPES = {"cpu": (torch.float32, torch.float16), "cuda": (torch.bfloat16,)}
"""On a GPU small steps are in 16 bits, and each dtype takes seconds to compile."""
SHARE_ERROR = 4e-3
"""Of attention in 16 bits, where probabilities are rounded before they weigh values."""
HEADS = [(4, 2, 32), (3, 1, 24), (2, 2, 64)]


def shapes(device):
    return GPU_SHAPES if device.type == "cuda" else SHAPES


def implementations(device, module, triton_module, name):
    """The Triton kernel; on a GPU also the function that should choose it."""
    return [getattr(triton_module, name)] + [getattr(module, name)] * (device.type == "cuda")


def product_inputs(shape, dtype, device):
    """x and weight, so that sums are about 1; the same on the CPU in fp32."""
    num_tokens, outputs, inputs = shape
    torch.manual_seed(num_tokens)
    x = torch.randn(num_tokens, inputs).to(dtype)
    weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    return (x.to(device), weight.to(device)), (x.float(), weight.float())


def assert_product(found, expected):
    """Sums of many products in another order: nearly rounded once."""
    unit = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.float().cpu(), expected, rtol=unit, atol=2e-6 + unit / 16)


def assert_activation(found, expected):
    """Of rounded sums: one in thousands may round the other way, which the activation shows."""
    unit = torch.finfo(found.dtype).eps
    if found.dtype == torch.float32:
        assert_product(found, expected)
        return
    found = found.float().cpu()
    is_other = (found - expected).abs() > unit * expected.abs() + 2e-6 + unit / 16
    assert is_other.float().mean() <= 1e-3
    torch.testing.assert_close(found, expected, rtol=4 * unit, atol=1e-5 + 2 * unit)


def reference(name, dtype):
    """In fp32, the product rounded where the activation reads it."""
    if name == "small_linear":
        return small_linear.small_linear

    def swiglu(x, weight):
        gate, up = (x @ weight.T).to(dtype).float().chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up

    return swiglu


def test_products_equal_their_references(device):
    for shape in shapes(device):
        for dtype in DTYPES[device.type]:
            inputs, on_cpu = product_inputs(shape, dtype, device)
            for name in ("small_linear", "small_swiglu"):
                expected = reference(name, dtype)(*on_cpu)
                for function in implementations(device, small_linear, triton_small_linear, name):
                    found = function(*inputs)
                    assert found.dtype == dtype
                    check = assert_product if name == "small_linear" else assert_activation
                    check(found, expected)


def test_parts_add_up_to_the_product_and_their_norm_is_rounded_once(device, monkeypatch):
    monkeypatch.setattr(triton_small_linear, "MIN_PART", 16)
    seen = set()
    for shape in shapes(device):
        for dtype in DTYPES[device.type]:
            inputs, on_cpu = product_inputs(shape, dtype, device)
            parts = triton_small_linear.small_linear_parts(*inputs)
            seen.add(parts.shape[0])
            product = small_linear.small_linear(*on_cpu)
            torch.testing.assert_close(parts.sum(0).cpu(), product, rtol=1e-5, atol=1e-5)
            residual = torch.randn(product.shape).to(dtype)
            weight = torch.rand(shape[1]).to(dtype) + 0.5
            for add in implementations(
                device, small_linear, triton_small_linear, "add_parts_rms_norm"
            ):
                kept = residual.to(device, copy=True)
                found = add(parts, kept, weight.to(device), 1e-6)
                total = parts.sum(0).to(dtype).float().cpu()
                assert_rounded_once(kept, residual.float() + total)
                norm = small_linear.rms_norm(kept.float().cpu(), weight.float(), 1e-6)
                assert_rounded_once(found, norm)
    assert {2, 4} <= seen


def attention_inputs(lengths, padding, heads, dtype, device):
    num_heads, num_kv_heads, head_dim = heads
    num_tokens = sum(lengths) + padding
    torch.manual_seed(num_tokens)
    cos, sin = rope.rope_tables(head_dim, 1e6, 128, torch.device("cpu"))
    positions = torch.cat([torch.arange(n) for n in lengths] + [torch.zeros(padding).long()]).int()
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    weights = [(torch.rand(head_dim) + 0.5).to(dtype) for _ in range(2)]
    return qkv, positions, cos, sin, *weights


@pytest.mark.parametrize(
    ("lengths", "padding"), [([1], 0), ([5, 1, 11], 3), ([33], 0), ([2, 40, 20], 2)]
)
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3), (True, 4)])
def test_short_attention_equals_its_reference(lengths, padding, causal, window, device):
    heads_of = {"cpu": HEADS if padding == 3 else HEADS[:1], "cuda": [(16, 8, 128)]}
    for heads in heads_of[device.type]:
        for dtype in DTYPES[device.type]:
            qkv, *others = attention_inputs(lengths, padding, heads, dtype, device)
            on_cpu = [t.float() if t.is_floating_point() else t for t in others]
            options = {"causal": causal, "window": window}
            expected = short_attention.short_attention(
                qkv.float().clone(), *on_cpu, 1e-6, *heads[:2], **options
            )
            cos, sin, *weights = (t.to(device) for t in others[1:])
            found = triton_short_attention.short_attention(
                qkv.to(device),
                others[0].to(device),
                (cos, sin),
                tuple(weights),
                1e-6,
                heads[:2],
                **options,
            )
            limit = 1e-5 if dtype == torch.float32 else SHARE_ERROR * 2
            limit *= 8 if dtype == torch.bfloat16 else 1
            torch.testing.assert_close(found.float().cpu(), expected, rtol=limit, atol=limit)


def test_the_reference_of_short_attention_keeps_sequences_apart():
    from flowerbed.rose.kernels.attention import AttentionPlan, Backend, LengthGroup, attention

    heads = (4, 2, 32)
    qkv, positions, cos, sin, *weights = attention_inputs([6, 9], 0, heads, torch.float32, "cpu")
    turned = qkv.clone()
    rope.qk_norm_rope_(turned, positions, cos, sin, *weights, 1e-6, 4, 2)
    query, key, value = turned.view(15, -1, 32).split((4, 2, 2), dim=1)
    groups = (LengthGroup(0, 1, 6), LengthGroup(6, 1, 9))
    plan = AttentionPlan(Backend.SDPA, torch.tensor([0, 6, 15]), 9, groups)
    for causal, window in ((False, None), (True, None), (False, 2), (True, 2)):
        found = short_attention.short_attention(
            qkv.clone(), positions, cos, sin, *weights, 1e-6, 4, 2, causal=causal, window=window
        )
        expected = attention(query, key, value, plan, causal=causal, window=window)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
