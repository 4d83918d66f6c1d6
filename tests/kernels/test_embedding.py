"""Embeddings: the Triton kernels against the torch references, and those against transformers."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels import backend, embedding, triton_embedding
from rounding import DTYPES, assert_rounded_once

SHAPES = [(1, 384), (3, 768), (65, 1000), (5, 1024)]
NUM_ROWS = (40, 30, 2)
EPS = 1e-12


def tensors(num_tokens, hidden, dtype, device, index_dtype=torch.int32):
    """Ids, positions and types; their tables, weight and bias."""
    torch.manual_seed(num_tokens + hidden)
    indices = [torch.randint(0, n, (num_tokens,)).to(device, index_dtype) for n in NUM_ROWS]
    tables = [torch.randn(n, hidden).to(device, dtype) for n in NUM_ROWS]
    return indices, [*tables, *(torch.randn(hidden).to(device, dtype) for _ in range(2))]


def on_cpu(tensors):
    return [
        tensor.cpu().float() if tensor.is_floating_point() else tensor.cpu() for tensor in tensors
    ]


def implementations(device, name):
    """The Triton kernel; on a GPU also the function that should choose it."""
    functions = [getattr(triton_embedding, name)]
    return functions + [getattr(embedding, name)] * (device.type == "cuda")


@pytest.mark.parametrize("many_rows", [False, True])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("num_tokens", "hidden"), SHAPES)
def test_rows_are_found(num_tokens, hidden, index_dtype, many_rows, device, monkeypatch):
    if many_rows:
        monkeypatch.setattr(backend, "MANY_ROWS", 1)
    for dtype in DTYPES[device.type]:
        indices, values = tensors(num_tokens, hidden, dtype, device, index_dtype)
        expected = values[0][indices[0].long()]
        for embed_tokens in implementations(device, "embed_tokens"):
            assert torch.equal(embed_tokens(indices[0], values[0]), expected)
        expected = embedding.embed_layer_norm(*on_cpu(indices), *on_cpu(values), EPS)
        for embed_layer_norm in implementations(device, "embed_layer_norm"):
            assert_rounded_once(embed_layer_norm(*indices, *values, EPS), expected)


@pytest.mark.parametrize("hidden", [128, 384, 768, 1000, 1024])
def test_a_row_is_the_same_among_few_and_among_many(hidden, device, monkeypatch):
    for dtype in DTYPES[device.type]:
        indices, values = tensors(37, hidden, dtype, device)
        few = triton_embedding.embed_layer_norm(*indices, *values, EPS)
        one = triton_embedding.embed_layer_norm(*(index[:1] for index in indices), *values, EPS)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "MANY_ROWS", 1)
            many = triton_embedding.embed_layer_norm(*indices, *values, EPS)
        assert torch.equal(few, many)
        assert torch.equal(few[:1], one)


def test_without_types_all_are_the_first(device):
    (ids, positions, types), values = tensors(9, 384, torch.float32, device)
    expected = embedding.embed_layer_norm(
        *on_cpu((ids, positions, types * 0)), *on_cpu(values), EPS
    )
    for embed_layer_norm in implementations(device, "embed_layer_norm"):
        assert_rounded_once(embed_layer_norm(ids, positions, None, *values, EPS), expected)


def test_indices_without_a_row_get_the_nearest(device):
    indices, values = tensors(5, 64, torch.float32, device)
    for index in indices:
        index[:3] = torch.tensor([-(2**31), -1, 2**31 - 1], dtype=torch.int32)
    clamped = [index.clamp(0, n - 1) for index, n in zip(indices, NUM_ROWS, strict=True)]
    for embed_tokens in implementations(device, "embed_tokens"):
        assert torch.equal(embed_tokens(indices[0], values[0]), values[0][clamped[0].long()])
    expected = embedding.embed_layer_norm(*on_cpu(clamped), *on_cpu(values), EPS)
    for embed_layer_norm in implementations(device, "embed_layer_norm"):
        assert_rounded_once(embed_layer_norm(*indices, *values, EPS), expected)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [-1, NUM_ROWS[0]])
def test_on_a_cpu_an_index_without_a_row_is_an_error(place, bad):
    indices, values = tensors(5, 8, torch.float32, "cpu")
    indices[place][4] = bad
    with pytest.raises(IndexError):
        embedding.embed_layer_norm(*indices, *values, EPS)
    if place == 0:
        with pytest.raises(IndexError):
            embedding.embed_tokens(indices[0], values[0])


def test_the_reference_equals_transformers():
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEmbeddings

    (ids, positions, types), values = tensors(9, 48, torch.float32, "cpu", torch.int64)
    sizes = dict(
        zip(("vocab_size", "max_position_embeddings", "type_vocab_size"), NUM_ROWS, strict=True)
    )
    module = BertEmbeddings(BertConfig(hidden_size=48, num_attention_heads=4, **sizes)).eval()
    parts = (
        module.word_embeddings, module.position_embeddings, module.token_type_embeddings,
        module.LayerNorm,
    )  # fmt: skip
    with torch.inference_mode():
        for part, weight in zip(parts, values[:4], strict=True):
            part.weight.copy_(weight)
        module.LayerNorm.bias.copy_(values[4])
        for token_types in (types, None):
            expected = module(
                input_ids=ids[None],
                position_ids=positions[None],
                token_type_ids=None if token_types is None else token_types[None],
            )
            found = embedding.embed_layer_norm(ids, positions, token_types, *values, EPS)
            assert torch.equal(found, expected[0])
