"""Modules and weight files of tiny random checkpoints against sentence-transformers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from references import engine_rows, lowest_cosine, reference_ids, reference_model, reference_rows

MIN_COSINE = 0.99999
HIDDEN = 32


def assert_matches_reference(engine, folder, texts):
    """Alone and all in one batch."""
    model = reference_model(folder)
    ids, expected = reference_ids(model, texts), reference_rows(model, texts)
    together = engine_rows(engine, ids)
    alone = np.concatenate([engine_rows(engine, [sequence]) for sequence in ids])
    assert lowest_cosine(together, expected) >= MIN_COSINE
    assert lowest_cosine(alone, expected) >= MIN_COSINE
    norms = np.linalg.norm(together, axis=1), np.linalg.norm(expected, axis=1)
    assert np.allclose(*norms, rtol=1e-4)


@pytest.mark.parametrize(
    "modes",
    [
        ("cls",),
        ("max",),
        ("mean",),
        ("mean_sqrt_len_tokens",),
        ("weightedmean",),
        ("lasttoken",),
        ("mean", "max", "cls"),
        ("lasttoken", "weightedmean"),
    ],
    ids="+".join,
)
def test_NU_08_NU_14_every_pooling_mode_matches_alone_and_in_batches(
    make_folder, pool, load, sample_texts, modes
):
    folder = make_folder(pool(*modes))
    engine = load(folder)
    assert engine.info().pooling == "+".join(modes)
    assert engine.info().dimensions == HIDDEN * len(modes)
    assert engine.info().normalize is False
    assert_matches_reference(engine, folder, sample_texts)


@pytest.mark.parametrize(
    "activation",
    [torch.nn.Tanh(), torch.nn.Identity(), torch.nn.GELU(), torch.nn.ReLU(), torch.nn.SiLU()],
)
def test_NU_13_dense_modules_after_pooling_are_applied(
    make_folder, pool, load, sample_texts, activation
):
    folder = make_folder(
        pool("mean"),
        Dense(HIDDEN, 48, activation_function=activation),
        Dense(48, 20, bias=False),
        Normalize(),
    )
    engine = load(folder)
    assert (engine.info().dimensions, engine.info().normalize) == (20, True)
    assert_matches_reference(engine, folder, sample_texts)


def test_NU_13_a_dense_module_in_a_folder_of_another_name_is_applied(
    make_folder, pool, load, sample_texts
):
    folder = make_folder(pool("mean"), Dense(HIDDEN, 20))
    (folder / "2_Dense").rename(folder / "2_Dense_20")
    modules = (folder / "modules.json").read_text().replace('"2_Dense"', '"2_Dense_20"')
    (folder / "modules.json").write_text(modules)
    assert_matches_reference(load(folder), folder, sample_texts)


def test_a_normalize_before_a_dense_is_applied_where_it_stands(
    make_folder, pool, load, sample_texts
):
    folder = make_folder(pool("mean_sqrt_len_tokens"), Normalize(), Dense(HIDDEN, 20))
    engine = load(folder)
    assert engine.info().normalize is False
    assert_matches_reference(engine, folder, sample_texts)


def test_truncate_dim_of_the_folder_is_honoured(make_folder, pool, load, sample_texts):
    folder = make_folder(pool("mean"), Normalize(), truncate_dim=12)
    engine = load(folder)
    assert (engine.info().dimensions, engine.info().normalize) == (12, False)
    assert_matches_reference(engine, folder, sample_texts)


def test_a_prompt_can_be_left_out_of_pooling(make_folder, pool, load, sample_texts):
    folder = make_folder(
        pool("weightedmean", "mean", "cls", include_prompt=False), prompts={"query": "search for: "}
    )
    engine = load(folder)
    model = reference_model(folder)
    ids = reference_ids(model, ["search for: " + text for text in sample_texts])
    prompt_length = len(model.tokenizer("search for: ")["input_ids"]) - 1
    spans = [(i, prompt_length, len(sequence)) for i, sequence in enumerate(ids)]
    assert engine.folder.text.pool_prompt is False
    rows = engine_rows(engine, ids, spans=spans)
    expected = reference_rows(model, sample_texts, prompt_name="query")
    assert lowest_cosine(rows, expected) >= MIN_COSINE


def test_pairs_get_token_types(make_folder, pool, load):
    folder = make_folder(pool("mean"))
    model = reference_model(folder)
    texts = [("a query", "a longer document that answers it"), ("x", "y"), ("only one text", None)]
    encoded = [model.tokenizer(a, b) if b else model.tokenizer(a) for a, b in texts]
    ids = [item["input_ids"] for item in encoded]
    starts = [
        item["token_type_ids"].index(1) if b else len(item["input_ids"])
        for item, (_, b) in zip(encoded, texts, strict=True)
    ]
    rows = engine_rows(load(folder), ids, pair_starts=starts)
    with torch.inference_mode():
        expected = [
            model[0].model(**{k: torch.tensor([v]) for k, v in item.items()})[0].mean(1)[0].numpy()
            for item in encoded
        ]
    assert lowest_cosine(rows, np.stack(expected)) >= MIN_COSINE


def test_NU_14_switches_of_old_folders_choose_the_pooling(make_folder, pool, load, sample_texts):
    folder = make_folder(pool("mean"))
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps(
            {
                "word_embedding_dimension": HIDDEN,
                "pooling_mode_mean_tokens": True,
                "pooling_mode_cls_token": True,
                "pooling_mode_max_tokens": False,
            }
        )
    )
    engine = load(folder)
    assert engine.info().pooling == "cls+mean"
    assert_matches_reference(engine, folder, sample_texts)


def test_sharded_weights_are_read(make_folder, pool, load, sample_texts):
    from transformers import BertModel

    folder = make_folder(pool("mean"))
    whole = engine_rows(load(folder), [[101, 2000, 102]])
    BertModel.from_pretrained(folder).save_pretrained(folder / "shards", max_shard_size="1MB")
    (folder / "model.safetensors").unlink()
    for file in (folder / "shards").glob("model*"):
        shutil.move(file, folder / file.name)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    assert np.array_equal(engine_rows(load(folder), [[101, 2000, 102]]), whole)
    assert_matches_reference(load(folder), folder, sample_texts)


def rewrite(folder, rename):
    """Saves the weights under other names."""
    tensors = load_file(folder / "model.safetensors")
    save_file(rename(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def test_names_with_a_prefix_old_norm_names_and_a_pretraining_head_are_accepted(
    make_folder, pool, load
):
    folder = make_folder(pool("mean"))
    expected = engine_rows(load(folder), [[101, 2000, 102]])

    def rename(tensors):
        renamed = {
            "bert."
            + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): t
            for name, t in tensors.items()
        }
        renamed["cls.predictions.bias"] = torch.zeros(3)
        renamed["bert.embeddings.position_ids"] = torch.arange(512)
        return renamed

    rewrite(folder, rename)
    assert np.array_equal(engine_rows(load(folder), [[101, 2000, 102]]), expected)


def test_weights_saved_in_bfloat16_run_in_float32(make_folder, pool, load, sample_texts):
    folder = make_folder(pool("mean"))
    rewrite(folder, lambda tensors: {name: t.to(torch.bfloat16) for name, t in tensors.items()})
    assert_matches_reference(load(folder), folder, sample_texts)


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu"])
def test_other_activations_match(make_folder, pool, load, sample_texts, activation):
    folder = make_folder(pool("mean"))
    config = json.loads((folder / "config.json").read_text()) | {"hidden_act": activation}
    (folder / "config.json").write_text(json.dumps(config))
    assert_matches_reference(load(folder), folder, sample_texts)


def test_progress_is_told_up_to_the_last_byte(make_folder, pool, load):
    seen = []
    load(make_folder(pool("mean")), progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0
