"""RoBERTa, XLM-RoBERTa and CamemBERT: tiny random checkpoints against sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flowerbed.errors import ModelError
from references import engine_rows, lowest_cosine, reference_ids, reference_model, reference_rows

MIN_COSINE = 0.99999
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 30522,
    "initializer_range": 0.3,
    "type_vocab_size": 1,
}


def tiny_encoder(kind, **config):
    import transformers

    torch.manual_seed(11)
    made = getattr(transformers, f"{kind}Config")(
        **{**SIZES, "max_position_embeddings": 520, **config}
    )
    return getattr(transformers, f"{kind}Model")(made)


@pytest.mark.parametrize("padding_id", [0, 1, 3])
@pytest.mark.parametrize("kind", ["Roberta", "XLMRoberta", "Camembert"])
def test_NU_09_positions_begin_after_the_padding_id_alone_and_in_packed_batches(
    make_folder, save_encoder, pool, load, sample_texts, kind, padding_id
):
    encoder = save_encoder(tiny_encoder(kind, pad_token_id=padding_id))
    folder = make_folder(pool("mean", "cls"), encoder=encoder)
    engine, model = load(folder), reference_model(folder)
    ids, expected = reference_ids(model, sample_texts), reference_rows(model, sample_texts)
    assert min(map(len, ids)) <= 3
    assert max(map(len, ids)) > 400
    alone = np.concatenate([engine_rows(engine, [sequence]) for sequence in ids])
    assert lowest_cosine(alone, expected) >= MIN_COSINE
    assert lowest_cosine(engine_rows(engine, ids), expected) >= MIN_COSINE
    assert lowest_cosine(engine_rows(engine, ids[::-1]), expected[::-1]) >= MIN_COSINE


def test_NU_09_padding_tokens_in_a_callers_ids_have_no_place_of_their_own(
    make_folder, save_encoder, pool, load
):
    encoder = save_encoder(tiny_encoder("XLMRoberta"))
    folder = make_folder(pool("mean"), encoder=encoder)
    model = reference_model(folder)[0].model
    sequences = [[0, 5, 6, 7, 2], [1], [1, 1, 9, 1, 8], [0, 5, 1, 1, 6, 2, 1], [0, 2]]
    with torch.inference_mode():
        hidden = [model(input_ids=torch.tensor([ids]))[0].mean(1)[0].numpy() for ids in sequences]
    rows = engine_rows(load(folder), sequences)
    assert lowest_cosine(rows, np.stack(hidden)) >= MIN_COSINE


def test_NU_09_NU_15_the_longest_text_ends_at_the_last_position(
    make_folder, save_encoder, pool, load
):
    encoder = save_encoder(tiny_encoder("XLMRoberta", pad_token_id=3, max_position_embeddings=40))
    folder = make_folder(pool("mean"), encoder=encoder)
    engine = load(folder)
    assert engine.info().max_length == 36
    model = reference_model(folder, max_length=36)
    text = " ".join(["tree"] * 100)
    ids = reference_ids(model, [text])
    assert len(ids[0]) == 36
    expected = reference_rows(model, [text])
    assert lowest_cosine(engine_rows(engine, ids), expected) >= MIN_COSINE


def test_names_with_a_prefix_and_a_pretraining_head_are_accepted(
    make_folder, save_encoder, pool, load
):
    folder = make_folder(pool("mean"), encoder=save_encoder(tiny_encoder("XLMRoberta")))
    expected = engine_rows(load(folder), [[0, 2000, 2]])
    tensors = load_file(folder / "model.safetensors")
    tensors = {f"roberta.{name}": tensor for name, tensor in tensors.items()}
    tensors["lm_head.bias"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert np.array_equal(engine_rows(load(folder), [[0, 2000, 2]]), expected)


@pytest.mark.parametrize(
    ("padding_id", "message"),
    [
        (-1, "pad_token_id=-1 leaves no position"),
        (519, "pad_token_id=519 leaves no position"),
        ("one", "pad_token_id should be int"),
    ],
)
def test_a_padding_id_that_leaves_no_position_is_refused(
    make_folder, save_encoder, pool, load, padding_id, message
):
    folder = make_folder(pool("mean"), encoder=save_encoder(tiny_encoder("Roberta")))
    config = json.loads((folder / "config.json").read_text()) | {"pad_token_id": padding_id}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load(folder)
