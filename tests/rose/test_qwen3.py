"""Qwen3, causal and bidirectional: tiny random checkpoints against transformers and sentence-transformers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import qwen
from flowerbed.errors import ModelError
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels.pack import RowDtype
from flowerbed.rose.models.qwen3 import Qwen3Config
from references import engine_rows, lowest_cosine, reference_ids, reference_model, reference_rows

MIN_COSINE = 0.99999
LENGTHS = (1, 2, 3, 7, 8, 9, 10, 16, 31, 100, qwen.MAX_POSITIONS)
WINDOW = 8
SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
SHAPES = {  # layers, hidden, heads, intermediate; L* of pplx-embed's and Qwen3-Embedding's
    "0.6B": (28, 1024, 16, 3072, 3_840),
    "4B": (36, 2560, 32, 9728, 12_320),
    "8B": (36, 4096, 32, 12288, 23_552),
}


@pytest.fixture
def embedding_folder(tmp_path, real_texts):
    """Qwen3-Embedding: causal, last token, normalised."""
    folder = tmp_path / "qwen3-embedding"
    qwen.write_qwen3_embedding(folder, real_texts)
    qwen.save_weights(folder, with_head=True)
    return folder


@pytest.fixture
def pplx_folder(tmp_path, real_texts):
    """pplx-embed-v1: bidirectional, mean, tanh levels, not normalised."""
    folder = tmp_path / "pplx-embed"
    qwen.write_pplx_embed(folder, real_texts)
    qwen.save_weights(folder, with_head=False)
    return folder


@pytest.fixture(scope="module")
def sequences():
    dice = random.Random(5)
    return [[dice.randrange(qwen.VOCAB_ROWS) for _ in range(length)] for length in LENGTHS]


def reference_hidden(folder, sequences, *, causal):
    """Hidden states of transformers, one sequence at a time, end to end."""
    from transformers import Qwen3Model

    model = Qwen3Model.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    model.config.is_causal = causal
    with torch.inference_mode():
        return [model(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in sequences]


def engine_hidden(engine, sequences):
    row = RowFormat(engine.info().token_dimensions, normalize=False)
    batch = PackedBatch.build(sequences, row, head="tokens")
    data = engine.step(batch).numpy()[: batch.num_result_bytes]
    return data.view(np.float32).reshape(-1, row.dimensions)


def assert_hidden_states_match(engine, folder, sequences, *, causal):
    """Alone, and all in one batch in two orders."""
    expected = reference_hidden(folder, sequences, causal=causal)
    for ids, rows in zip(sequences, expected, strict=True):
        np.testing.assert_allclose(engine_hidden(engine, [ids]), rows, atol=1e-5)
    together = engine_hidden(engine, sequences)
    np.testing.assert_allclose(together, np.concatenate(expected), atol=1e-5)
    backwards = engine_hidden(engine, sequences[::-1])
    np.testing.assert_allclose(backwards, np.concatenate(expected[::-1]), atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1, "head_dim": 8},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        SLIDING,
        SLIDING | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ],
    ids=["0.6B", "one-kv-head-a-head", "one-kv-head", "transformers-5", "windows", "layer-types"],
)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_hidden_states_match_transformers_at_every_length(
    embedding_folder, load, sequences, changes, causal
):
    config = {"is_causal": causal, **changes} if changes or not causal else {}
    qwen.edit_json(embedding_folder / "config.json", **config)
    qwen.save_weights(embedding_folder, with_head=True)
    engine = load(embedding_folder)
    assert_hidden_states_match(engine, embedding_folder, sequences, causal=causal)


def test_a_window_hides_what_is_beyond_it(embedding_folder, load, sequences):
    whole = engine_hidden(load(embedding_folder), [sequences[-1]])
    qwen.edit_json(embedding_folder / "config.json", **SLIDING)
    windowed = engine_hidden(load(embedding_folder), [sequences[-1]])
    assert np.abs(whole - windowed)[:WINDOW].max() < 1e-5
    assert np.abs(whole - windowed)[2 * WINDOW :].max(axis=1).min() > 1e-3


def test_a_causal_token_sees_nothing_after_it_and_a_bidirectional_one_does(
    embedding_folder, load, sequences
):
    long = sequences[-2]
    engine = load(embedding_folder)
    cut, whole = engine_hidden(engine, [long[:40]]), engine_hidden(engine, [long])[:40]
    np.testing.assert_allclose(cut, whole, atol=1e-5)
    qwen.edit_json(embedding_folder / "config.json", is_causal=False)
    engine = load(embedding_folder)
    cut, whole = engine_hidden(engine, [long[:40]]), engine_hidden(engine, [long])[:40]
    assert np.abs(cut - whole).max(axis=1).min() > 1e-3


def test_qwen3_embedding_matches_sentence_transformers(embedding_folder, load, sample_texts):
    engine, model = load(embedding_folder), reference_model(embedding_folder)
    info = engine.info()
    assert (info.pooling, info.normalize, info.dimensions) == ("lasttoken", True, 32)
    assert info.max_length == model.max_seq_length == qwen.MAX_POSITIONS
    texts = [*sample_texts, "", "<think> naïve café 年 🙂</think>"]
    ids, expected = reference_ids(model, texts), reference_rows(model, texts)
    assert all(sequence[-1] == qwen.END_ID for sequence in ids)
    assert min(map(len, ids)) == 1
    assert max(map(len, ids)) == qwen.MAX_POSITIONS
    alone = np.concatenate([engine_rows(engine, [sequence]) for sequence in ids])
    assert lowest_cosine(alone, expected) >= MIN_COSINE
    assert lowest_cosine(engine_rows(engine, ids), expected) >= MIN_COSINE
    assert lowest_cosine(engine_rows(engine, ids[::-1]), expected[::-1]) >= MIN_COSINE


def test_pplx_embed_hidden_states_match_transformers(pplx_folder, load, sequences):
    # Without the quantizer, which is known to change vectors.
    plain = (qwen.module("Transformer", ""), qwen.module("Pooling", "1_Pooling"))
    qwen.write_modules(pplx_folder, *plain)
    engine = load(pplx_folder)
    assert (engine.info().pooling, engine.info().normalize) == ("mean", False)
    assert_hidden_states_match(engine, pplx_folder, sequences, causal=False)


def packed(engine, sequences, dtype, dimensions, *, normalize=False):
    """Bytes of each row, [num_sequences, width] uint8; asserts that all are good."""
    row = RowFormat(dimensions, dtype, normalize=normalize)
    batch = PackedBatch.build(sequences, row)
    data = engine.step(batch).numpy()
    assert not data[batch.num_result_bytes :].any()
    return data[: batch.num_result_bytes].reshape(len(sequences), -1)


@pytest.mark.parametrize("dimensions", [32, 20])
def test_pplx_embed_rows_are_levels_of_the_means_of_transformers(
    pplx_folder, load, sequences, dimensions
):
    hidden = reference_hidden(pplx_folder, sequences, causal=False)
    means = np.stack([rows.mean(axis=0)[:dimensions] for rows in hidden])
    engine = load(pplx_folder)
    levels = packed(engine, sequences, RowDtype.FLOAT32, dimensions).view(np.float32)
    assert np.array_equal(levels, np.rint(levels))
    assert np.abs(levels - 127 * np.tanh(means)).max() < 0.501
    assert len(np.unique(levels)) > 20
    alone = [packed(engine, [ids], RowDtype.FLOAT32, dimensions)[0] for ids in sequences]
    assert np.abs(np.stack(alone).view(np.float32) - levels).max() <= 1

    int8 = packed(engine, sequences, RowDtype.INT8, dimensions).view(np.int8)
    assert np.array_equal(int8, levels)
    unit = packed(engine, sequences, RowDtype.FLOAT32, dimensions, normalize=True).view(np.float32)
    assert np.allclose(unit, levels / np.linalg.norm(levels, axis=1, keepdims=True), atol=1e-6)
    assert np.abs(means).min() > 1e-5  # no sign is in doubt
    bits = packed(engine, sequences, RowDtype.UBINARY, dimensions)
    assert np.array_equal(bits, np.packbits(means >= 0, axis=1))
    binary = packed(engine, sequences, RowDtype.BINARY, dimensions).view(np.int8)
    assert np.array_equal(binary, (bits.astype(np.int16) - 128).astype(np.int8))


def test_the_code_of_a_known_folder_is_not_run_and_of_others_refused(
    pplx_folder, embedding_folder, load
):
    load(pplx_folder)  # running its code would end the tests
    auto_map = qwen.PPLX_CONFIG["auto_map"]
    qwen.edit_json(embedding_folder / "config.json", auto_map=auto_map)
    with pytest.raises(ModelError, match="auto_map asks for the folder's own code"):
        load(embedding_folder)


@pytest.mark.parametrize("with_prefix", [True, False])
def test_names_with_and_without_prefix_and_a_language_head_are_accepted(
    embedding_folder, load, sequences, with_prefix
):
    expected = engine_rows(load(embedding_folder), sequences)
    file = embedding_folder / "model.safetensors"
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}
    assert "embed_tokens.weight" in tensors
    if with_prefix:
        tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
    tensors["lm_head.weight"] = torch.zeros(3, 3)
    save_file(tensors, file, metadata={"format": "pt"})
    assert np.array_equal(engine_rows(load(embedding_folder), sequences), expected)


def test_sharded_weights_in_float32_are_read(pplx_folder, load, sequences):
    whole = engine_hidden(load(pplx_folder), sequences)
    (pplx_folder / "model.safetensors").unlink()
    qwen.save_weights(pplx_folder, with_head=False, max_shard_size="100KB")
    assert len(list(pplx_folder.glob("model-*-of-*.safetensors"))) > 1
    assert np.array_equal(engine_hidden(load(pplx_folder), sequences), whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; supported: 'silu'"),
        ({"attention_bias": True}, "attention_bias='True' is not supported; supported: False"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling={.*yarn.* not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1}}, "llama3.* not supported"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters={.* is not supported"),
        ({"rope_theta": None}, "rope_theta should be a number above 0, not 'None'"),
        ({"rms_norm_eps": True}, "rms_norm_eps should be a number above 0, not 'True'"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps should be a number above 0"),
        ({"head_dim": None}, "head_dim should be a whole number above 0"),
        ({"head_dim": 15}, "head_dim=15 is odd"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ({"use_sliding_window": True}, "sliding_window should be a whole number above 0"),
        ({"layer_types": ["full_attention"]}, "layer_types should name one of .* 3 layers"),
        ({"layer_types": ["linear_attention"] * 3}, "full_attention, sliding_attention for each"),
        ({"layer_types": ["sliding_attention"] * 3}, "but use_sliding_window is not true"),
        ({"use_bidirectional_attention": True}, "set is_causal to false instead"),
        ({"is_causal": 0}, "is_causal should be bool"),
        ({"vocab_size": 7}, r"embed_tokens.weight has shape .* says \[7, 32\]"),
        ({"num_hidden_layers": 4}, "no tensor layers.3.input_layernorm.weight"),
        ({"num_hidden_layers": 2}, "does not know: layers.2"),
    ],
)  # fmt: skip
def test_NU_14_settings_that_cannot_be_honoured_are_refused(
    embedding_folder, load, changes, message
):
    qwen.edit_json(embedding_folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load(embedding_folder)


@pytest.mark.parametrize("bad_id", [-1, qwen.VOCAB_ROWS])
def test_an_id_or_a_position_without_a_row_raises(embedding_folder, load, bad_id):
    engine = load(embedding_folder)
    with pytest.raises(IndexError):
        engine.step(PackedBatch.build([[5, bad_id]], RowFormat(32)))
    with pytest.raises(IndexError):
        engine.step(PackedBatch.build([[5] * (qwen.MAX_POSITIONS + 1)], RowFormat(32)))


@pytest.mark.parametrize("size", SHAPES)
def test_published_shapes_have_the_attention_scale_of_their_arithmetic(size):
    layers, hidden, heads, intermediate, scale = SHAPES[size]
    config = qwen.QWEN3_EMBEDDING_CONFIG | {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": intermediate,
        "max_window_layers": layers,
    }
    causal = Qwen3Config.read(config)
    bidirectional = Qwen3Config.read(config | {"model_type": "bidirectional_pplx_qwen3"})
    assert causal.windows == bidirectional.windows == (None,) * layers
    assert bidirectional.attention_scale == scale
    assert causal.attention_scale == 2 * scale
