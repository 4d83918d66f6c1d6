"""The form that models take for small steps against the one that they take for all others."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

import qwen
from flowerbed.config import BatchInvariant, DType, GraphCapture
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels import small_linear
from flowerbed.rose.layers import linear
from flowerbed.rose.models import bert, qwen3
from references import engine_rows, lowest_cosine
from small_models import VOCAB_ROWS, small_model

BATCHES = [[1], [32], [5, 1, 17, 40], [100, 28], [12] * 10]
"""Lengths of the sequences of each step, at most 128 tokens in all."""
NARROW_BATCHES = [[131], [100, 28, 32], [12] * 16, [1, 255]]
"""Of steps of 129 to 256 tokens, small for BERT where it is narrow."""
KINDS = {
    "causal": {},
    "bidirectional": {"is_causal": False},
    "windows": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "windows-both-ways": {
        "is_causal": False,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
}

ENCODERS = {
    "bert": ("bert", {}),
    "bert-tanh": ("bert", {"hidden_act": "gelu_new"}),
    "bert-odd-heads": ("bert", {"hidden": 78, "head_dim": 26}),
    "xlm-roberta": ("xlm-roberta", {"head_dim": 32}),
}
"""Kinds and settings of `small_model`."""
WITHOUT_SMALL_STEPS = {"relu": {"hidden_act": "relu"}, "wide": {"hidden": 320, "head_dim": 160}}
GPU_ENCODERS = {
    "bert-base": ("bert", {"hidden": 768, "intermediate_size": 3_072}),
    "minilm": ("bert", {"hidden": 384, "head_dim": 32, "intermediate_size": 1_536}),
    "tiny": ("bert", {"hidden": 312, "head_dim": 26, "intermediate_size": 1_200}),
    "bge-m3": ("xlm-roberta", {"hidden": 1_024, "intermediate_size": 4_096}),
    "tanh": ("bert", {"hidden_act": "gelu_new"}),
}
PADDING_ID = 1
"""Of XLM-R's tokenizers; a caller's own ids may hold it."""


def random_ids(lengths, num_words):
    dice = random.Random(sum(lengths))
    return [[dice.randrange(num_words) for _ in range(length)] for length in lengths]


def hidden_states(engine, sequences):
    row = RowFormat(engine.info().token_dimensions, normalize=False)
    batch = PackedBatch.build(sequences, row, head="tokens")
    data = engine.step(batch).numpy()[: batch.num_result_bytes]
    return data.view(np.float32).reshape(-1, row.dimensions)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_are_those_of_the_other_form(tmp_path, real_texts, load, monkeypatch, kind):
    folder = tmp_path / "qwen3"
    qwen.write_qwen3_embedding(folder, real_texts)
    qwen.edit_json(folder / "config.json", **KINDS[kind])
    qwen.save_weights(folder, with_head=True)
    monkeypatch.setattr(linear, "pack_weight", lambda weight: weight)  # as on a GPU
    engine = load(folder)
    steps = []
    for lengths in BATCHES:
        sequences = random_ids(lengths, qwen.VOCAB_ROWS)
        expected = hidden_states(engine, sequences)
        with monkeypatch.context() as patch:
            patch.setattr(qwen3, "is_small_step", lambda x, _: steps.append(x.shape[0]) or True)
            found = hidden_states(engine, sequences)
        np.testing.assert_allclose(found, expected, atol=2e-5)
    assert len(steps) == len(BATCHES)


def both_forms(engine, sequences, monkeypatch):
    """Hidden states in the usual form and in that of small steps, as far as the model has one."""
    usual = hidden_states(engine, sequences)
    sizes = []
    with monkeypatch.context() as patch:
        patch.setattr(bert, "is_small_step", lambda x, _: sizes.append(x.shape[0]) or True)
        small = hidden_states(engine, sequences)
    assert len(sizes) == 1
    return usual, small


@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_of_bert_are_those_of_the_other_form(tmp_path, monkeypatch, name):
    kind, settings = ENCODERS[name]
    monkeypatch.setattr(linear, "pack_weight", lambda weight: weight)  # as on a GPU
    sizes = {"initializer_range": 0.2, "num_hidden_layers": 2}
    engine = Engine.load(small_model(kind, tmp_path / name, **sizes, **settings), device="cpu")
    assert all(layer.has_small_step for layer in engine._encoder.layers)
    for lengths in BATCHES + NARROW_BATCHES:
        sequences = random_ids(lengths, VOCAB_ROWS)
        sequences[0][-1:] = [PADDING_ID]
        expected, found = both_forms(engine, sequences, monkeypatch)
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("hidden", "head_dim", "expected"),
    [(768, 64, 256), (384, 32, 256), (312, 26, 256), (1_024, 64, 128), (768, 128, 128)],
)
def test_steps_of_narrow_encoders_are_small_for_longer(tmp_path, hidden, head_dim, expected):
    folder = small_model("bert", tmp_path / "bert", hidden=hidden, head_dim=head_dim)
    encoder: Any = Engine.load(folder, device="cpu")._encoder
    assert encoder.small_step_tokens == expected


@pytest.mark.parametrize("name", WITHOUT_SMALL_STEPS)
def test_a_bert_that_the_kernels_cannot_serve_takes_the_usual_form(tmp_path, monkeypatch, name):
    folder = small_model("bert", tmp_path / name, **WITHOUT_SMALL_STEPS[name])
    engine = Engine.load(folder, device="cpu")
    usual, small = both_forms(engine, random_ids([5, 17], VOCAB_ROWS), monkeypatch)
    np.testing.assert_array_equal(small, usual)


@pytest.fixture(scope="module")
def gpu_folder(tmp_path_factory):
    """Layers of the 0.6B shape, causal; its tokenizer is never used."""
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("small") / "qwen3"
    config = Qwen3Config(
        vocab_size=1_000,
        hidden_size=1_024,
        intermediate_size=3_072,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=512,
    )
    Qwen3Model(config).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    (path / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": 1_024, "pooling_mode": "mean"}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return read_folder(resolve(str(path)))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # flash-attn-4 imports torch's compiler
def test_vectors_of_small_steps_on_a_gpu(gpu_folder, monkeypatch):
    check_vectors(gpu_folder, monkeypatch)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("name", GPU_ENCODERS)
def test_vectors_of_small_steps_of_bert_on_a_gpu(tmp_path, monkeypatch, name, dtype):
    kind, settings = GPU_ENCODERS[name]
    check_vectors(small_model(kind, tmp_path / name, **settings), monkeypatch, dtype)


def check_vectors(folder, monkeypatch, dtype=DType.BFLOAT16):
    exact = Engine.load(folder, device="cpu")
    off = BatchInvariant.OFF
    engine = Engine.load(folder, device="cuda", dtype=dtype, batch_invariant=off)
    encoder: Any = engine._encoder
    batches = BATCHES + NARROW_BATCHES
    small = [lengths for lengths in batches if sum(lengths) <= encoder.small_step_tokens]
    assert len(small) > len(BATCHES) or encoder.config.hidden > small_linear.MAX_NARROW
    steps = [random_ids(lengths, 1_000) for lengths in small]
    found = [engine_rows(engine, step) for step in steps]
    for step, rows in zip(steps, found, strict=True):
        assert lowest_cosine(rows, engine_rows(exact, step)) >= 0.999
        alone = np.concatenate([engine_rows(engine, [sequence]) for sequence in step])
        assert lowest_cosine(rows, alone) >= 0.9999
        with monkeypatch.context() as patch:
            patch.setattr(encoder, "small_step_tokens", 0)
            assert lowest_cosine(rows, engine_rows(engine, step)) >= 0.999
    engine.capture(
        online_tokens=64, normal_tokens=256, when=GraphCapture.START, memory_limit=1 << 30
    )
    for _ in range(20):  # one graph after another: none may read what the one before still writes
        for step, rows in zip(steps, found, strict=True):
            assert lowest_cosine(engine_rows(engine, step), rows) >= 0.9999
