"""Rotary positions: the Triton kernel against the torch references, and those against transformers."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import backend, rope, triton_rope
from rounding import DTYPES, assert_rounded_once

HEADS = [
    (16, 8, 128),
    (12, 12, 64),
    (14, 2, 64),
    (4, 4, 128),
    (3, 1, 96),
    (2, 1, 256),
    (32, 8, 128),
]
NUM_POSITIONS = 300
EPS = 1e-6


def tensors(num_tokens, heads, dtype, device, index_dtype=torch.int32):
    """qkv, positions, cos, sin and the weights of the two norms."""
    num_heads, num_kv_heads, head_dim = heads
    torch.manual_seed(num_tokens + num_heads)
    cos, sin = rope.rope_tables(head_dim, 1e6, NUM_POSITIONS, torch.device("cpu"))
    return (
        torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(device, dtype),
        torch.randint(0, NUM_POSITIONS, (num_tokens,)).to(device, index_dtype),
        cos.to(device),
        sin.to(device),
        *(torch.randn(head_dim).to(device, dtype) for _ in range(2)),
    )


def implementations(device, name):
    """The Triton kernel; on a GPU also the function that should choose it."""
    functions = [getattr(triton_rope, name)]
    return functions + [getattr(rope, name)] * (device.type == "cuda")


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "heads"), [(1, HEADS[0]), (65, HEADS[1]), *((3, heads) for heads in HEADS)]
)
def test_rotated_heads_are_rounded_once(num_tokens, heads, many_rows, device, monkeypatch):
    if many_rows:
        monkeypatch.setattr(backend, "MANY_ROWS", 1)
    for dtype in DTYPES[device.type]:
        qkv, positions, *others = tensors(num_tokens, heads, dtype, device)
        cos, sin, *weights = others
        cpu = [positions.cpu(), cos.cpu(), sin.cpu()]
        expected = qkv.float().cpu().clone()
        rope.rope_(expected, *cpu, *heads[:2])
        for rope_ in implementations(device, "rope_"):
            found = qkv.clone()
            rope_(found, positions, cos, sin, *heads[:2])
            assert_rounded_once(found, expected)
        expected = qkv.float().cpu().clone()
        rope.qk_norm_rope_(expected, *cpu, *(w.float().cpu() for w in weights), EPS, *heads[:2])
        for qk_norm_rope_ in implementations(device, "qk_norm_rope_"):
            found = qkv.clone()
            qk_norm_rope_(found, positions, *others, EPS, *heads[:2])
            assert_rounded_once(found, expected)


@pytest.mark.parametrize("heads", HEADS)
def test_a_row_is_the_same_among_few_and_among_many(heads, device, monkeypatch):
    for dtype in DTYPES[device.type]:
        qkv, positions, *others = tensors(37, heads, dtype, device)

        def turned(n, qkv=qkv, positions=positions, others=others):
            normed, plain = qkv[:n].clone(), qkv[:n].clone()
            triton_rope.qk_norm_rope_(normed, positions[:n], *others, EPS, *heads[:2])
            triton_rope.rope_(plain, positions[:n], *others[:2], *heads[:2])
            return torch.cat([normed, plain], dim=1)

        few, one = turned(37), turned(1)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "MANY_ROWS", 1)
            many = turned(37)
        assert torch.equal(few, many)
        assert torch.equal(few[:1], one)


def test_values_are_left_as_they_are(device):
    num_heads, num_kv_heads, head_dim = heads = HEADS[0]
    first = (num_heads + num_kv_heads) * head_dim
    qkv, *others = tensors(5, heads, torch.float32, device, torch.int64)
    found = qkv.clone()
    triton_rope.qk_norm_rope_(found, *others, EPS, num_heads, num_kv_heads)
    assert torch.equal(found[:, first:], qkv[:, first:])
    assert not torch.isclose(found[:, :first], qkv[:, :first]).all(dim=1).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", HEADS)
def test_references_equal_transformers(heads, dtype):
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import (
        Qwen3RMSNorm,
        Qwen3RotaryEmbedding,
        apply_rotary_pos_emb,
    )

    num_heads, num_kv_heads, head_dim = heads
    qkv, positions, cos, sin, *weights = tensors(9, heads, dtype, "cpu", torch.int64)
    rotary = Qwen3RotaryEmbedding(Qwen3Config(head_dim=head_dim, rope_theta=1e6))
    # In fp32, where transformers would round the tables and every step.
    angles = rotary(torch.empty(0), positions[None])
    query, key, value = (
        qkv.float().view(1, 9, -1, head_dim).split((num_heads, num_kv_heads, num_kv_heads), dim=2)
    )

    def rotated(query, key):
        turned = apply_rotary_pos_emb(query, key, *angles, unsqueeze_dim=2)
        return torch.cat([*turned, value], dim=2).view(9, -1)

    found = qkv.clone()
    rope.rope_(found, positions, cos, sin, num_heads, num_kv_heads)
    expected = rotated(query, key)
    assert torch.equal(found, expected.to(dtype))

    with torch.inference_mode():
        norms = []
        for weight in weights:
            norms.append(Qwen3RMSNorm(head_dim, eps=EPS))
            norms[-1].weight.data.copy_(weight)
        expected = rotated(norms[0](query), norms[1](key))
    found = qkv.clone()
    rope.qk_norm_rope_(found, positions, cos, sin, *weights, EPS, num_heads, num_kv_heads)
    assert_rounded_once(found, expected)


@pytest.mark.parametrize("theta", [10_000.0, 1e6])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_tables_equal_transformers(head_dim, theta):
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    num_positions = 4096
    rotary = Qwen3RotaryEmbedding(
        Qwen3Config(
            head_dim=head_dim, rope_parameters={"rope_type": "default", "rope_theta": theta}
        )
    )
    expected = rotary(torch.empty(0), torch.arange(num_positions)[None])
    tables = rope.rope_tables(head_dim, theta, num_positions, torch.device("cpu"))
    for found, both_halves in zip(tables, expected, strict=True):
        assert torch.equal(torch.cat([found, found], dim=1), both_halves[0])


def test_rows_with_gaps_are_refused(device):
    qkv, *others = tensors(4, (2, 1, 64), torch.float32, device)
    wide = torch.cat([qkv, qkv], dim=1)[:, : qkv.shape[1]]
    with pytest.raises(ValueError, match="^qkv should be contiguous"):
        triton_rope.qk_norm_rope_(wide, *others, EPS, 2, 1)
