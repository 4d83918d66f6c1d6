"""Kernels of small steps against their torch references in fp32."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import (
    add_parts,
    norm,
    rope,
    short_attention,
    small_linear,
    triton_add_parts,
    triton_short_attention,
    triton_small_linear,
)
from rounding import assert_rounded_once

SHAPES = [(1, 48, 64), (17, 40, 96), (33, 130, 36), (70, 64, 128)]
"""Tokens, outputs, inputs."""
GPU_SHAPES = [(17, 40, 96), (33, 130, 36), (32, 1024, 2048), (128, 1024, 3072)]
BIAS_GPU_SHAPES = [
    (1, 40, 96),
    (33, 130, 36),
    (64, 1200, 312),
    (32, 312, 1200),
    (128, 768, 3072),
    (256, 768, 3072),
]
DTYPES = {"cpu": (torch.float32, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
"""On a GPU small steps are in 16 bits."""
SHARE_ERROR = 4e-3
"""Of attention in 16 bits, where probabilities are rounded before they weigh values."""
HEADS = [(4, 2, 32), (3, 1, 24), (2, 2, 64)]
PLAIN_HEADS = [(12, 32), (3, 26), (2, 64), (1, 7)]
"""Heads and their columns; not all are even."""
ACTIVATIONS = {"gelu": "none", "gelu_tanh": "tanh"}
LENGTHS = [([1], 0), ([5, 1, 11], 3), ([33], 0), ([2, 40, 20], 2)]
"""Of sequences, and how many tokens of padding come after them."""


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


def test_products_with_a_bias_equal_their_references(device):
    for shape in SHAPES if device.type == "cpu" else BIAS_GPU_SHAPES:
        for dtype in DTYPES[device.type]:
            (x, weight), on_cpu = product_inputs(shape, dtype, device)
            bias = torch.randn(shape[1]).to(dtype)
            sums = on_cpu[0] @ on_cpu[1].T
            for function in implementations(
                device, small_linear, triton_small_linear, "small_linear"
            ):
                found = function(x, weight, bias.to(device))
                assert found.dtype == dtype
                assert_product(found, sums + bias.float())
            for activation, approximate in ACTIVATIONS.items():
                values = sums.to(dtype).float() + bias.float()
                expected = torch.nn.functional.gelu(values, approximate=approximate)
                for function in implementations(
                    device, small_linear, triton_small_linear, "small_gelu"
                ):
                    assert_activation(function(x, weight, bias.to(device), activation), expected)


def test_parts_with_a_bias_add_up_and_their_layer_norm_is_rounded_once(device, monkeypatch):
    monkeypatch.setattr(triton_small_linear, "MIN_PART", 16)
    seen = set()
    for shape in SHAPES if device.type == "cpu" else BIAS_GPU_SHAPES:
        for dtype in DTYPES[device.type]:
            inputs, on_cpu = product_inputs(shape, dtype, device)
            bias, shift = (torch.randn(shape[1]).to(dtype) for _ in range(2))
            weight = torch.rand(shape[1]).to(dtype) + 0.5
            residual = torch.randn(shape[:2]).to(dtype)
            parts = triton_small_linear.small_linear_parts(*inputs, bias.to(device))
            seen.add(parts.shape[0])
            product = on_cpu[0] @ on_cpu[1].T + bias.float()
            torch.testing.assert_close(parts.sum(0).cpu(), product, rtol=1e-5, atol=1e-5)
            total = residual.float() + sum(parts.unbind()).to(dtype).float().cpu()
            expected = torch.nn.functional.layer_norm(
                total, shape[1:2], weight.float(), shift.float(), 1e-6
            )
            for add in implementations(device, add_parts, triton_add_parts, "add_parts_layer_norm"):
                on_device = (tensor.to(device) for tensor in (residual, weight, shift))
                found = add(parts, *on_device, 1e-6)
                assert found.dtype == dtype
                assert_rounded_once(found, expected)
    assert {2, 4} <= seen


def test_the_number_of_parts_does_not_depend_on_the_tokens(device, monkeypatch):
    monkeypatch.setattr(triton_small_linear, "MIN_PART", 16)
    weight = torch.zeros(40, 64, dtype=torch.float16, device=device)
    steps = [weight.new_zeros(num_tokens, 64) for num_tokens in (1, 64, 65, 128, 256)]
    found = [triton_small_linear.small_linear_parts(x, weight) for x in steps]
    assert [parts.shape[0] for parts in found] == [4] * 5


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
            for add in implementations(device, add_parts, triton_add_parts, "add_parts_rms_norm"):
                kept = residual.to(device, copy=True)
                found = add(parts, kept, weight.to(device), 1e-6)
                total = sum(parts.unbind()).to(dtype).float().cpu()
                assert_rounded_once(kept, residual.float() + total)
                normed = norm.rms_norm(kept.float().cpu(), weight.float(), 1e-6)
                assert_rounded_once(found, normed)
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


@pytest.mark.parametrize(("lengths", "padding"), LENGTHS)
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


@pytest.mark.parametrize(
    ("lengths", "padding"), [*LENGTHS, ([128], 0), ([70, 50], 8), ([200], 0), ([90, 160], 6)]
)
def test_plain_short_attention_equals_its_reference(lengths, padding, device):
    heads_of = {"cpu": PLAIN_HEADS if padding == 3 else PLAIN_HEADS[:1], "cuda": PLAIN_HEADS[:3]}
    for num_heads, head_dim in heads_of[device.type]:
        for dtype in DTYPES[device.type]:
            heads = (num_heads, num_heads, head_dim)
            qkv, positions = attention_inputs(lengths, padding, heads, dtype, "cpu")[:2]
            expected = short_attention.plain_short_attention(qkv.float(), positions, num_heads)
            for function in implementations(
                device, short_attention, triton_short_attention, "plain_short_attention"
            ):
                found = function(qkv.to(device), positions.to(device), num_heads)
                assert found.dtype == dtype
                limit = 1e-5 if dtype == torch.float32 else SHARE_ERROR * 2
                limit *= 8 if dtype == torch.bfloat16 else 1
                torch.testing.assert_close(found.float().cpu(), expected, rtol=limit, atol=limit)


def test_the_reference_of_plain_short_attention_is_torchs_attention_of_each_sequence():
    qkv, positions = attention_inputs([6, 9], 1, (3, 3, 26), torch.float32, "cpu")[:2]
    found = short_attention.plain_short_attention(qkv, positions, 3)
    for start, end in ((0, 6), (6, 15)):
        query, key, value = qkv[start:end].view(1, -1, 3, 3, 26).permute(2, 0, 3, 1, 4)
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        expected = expected[0].transpose(0, 1).reshape(end - start, -1)
        torch.testing.assert_close(found[start:end], expected, rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(("shared_bytes", "is_small"), [(232_448, True), (101_376, False)])
def test_small_steps_need_shared_memory(shared_bytes, is_small, monkeypatch):
    class Properties:
        shared_memory_per_block_optin = shared_bytes

    x = torch.empty(8, 64, dtype=torch.bfloat16)
    monkeypatch.setattr(small_linear, "use_triton", lambda x: True)
    monkeypatch.setattr(small_linear, "starts_early", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    small_linear.has_shared_memory.cache_clear()
    assert small_linear.is_small_step(x, 128) == is_small
    small_linear.has_shared_memory.cache_clear()
