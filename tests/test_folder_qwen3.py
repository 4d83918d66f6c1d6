"""Folders of Qwen3-Embedding and pplx-embed: what is read, what is refused. No torch."""

from __future__ import annotations

import pytest

import qwen
from flowerbed.errors import ModelError
from flowerbed.folder import Dense, Normalize, read_folder
from flowerbed.hub import resolve


@pytest.fixture
def embedding_folder(tmp_path, real_texts):
    qwen.write_qwen3_embedding(tmp_path / "qwen3", real_texts)
    (tmp_path / "qwen3/model.safetensors").write_bytes(b"weights")
    return tmp_path / "qwen3"


@pytest.fixture
def pplx_folder(tmp_path, real_texts):
    qwen.write_pplx_embed(tmp_path / "pplx", real_texts)
    (tmp_path / "pplx/model.safetensors").write_bytes(b"weights")
    return tmp_path / "pplx"


def read(path):
    return read_folder(resolve(str(path)))


def refuses(path, message):
    with pytest.raises(ModelError, match=message):
        read(path)


def test_qwen3_embedding_is_read_as_sentence_transformers_reads_it(embedding_folder):
    model = read(embedding_folder)
    assert (model.pooling, model.normalize, model.quantizer) == (("lasttoken",), True, None)
    assert (model.dimensions, model.allowed_dimensions) == (32, ())
    assert model.text.prompts == {"query": qwen.QUERY_PROMPT, "document": ""}
    assert (model.text.default_prompt, model.text.pool_prompt) == (None, True)
    assert model.text.max_length == qwen.MAX_POSITIONS


def test_pplx_embed_has_a_quantizer_and_no_normalize(pplx_folder):
    model = read(pplx_folder)
    assert (model.pooling, model.normalize, model.quantizer) == (("mean",), False, "tanh")
    assert (model.dimensions, model.after_pooling) == (32, ())
    assert model.text.prompts == {"query": "", "document": ""}


@pytest.mark.parametrize(
    ("positions", "own", "expected"),
    [(32_768, None, 32_768), (40_960, None, 32_768), (40_960, 512, 512), (256, None, 256)],
)
def test_NU_15_pplx_embed_takes_no_more_than_32k_tokens(pplx_folder, positions, own, expected):
    qwen.edit_json(pplx_folder / "config.json", max_position_embeddings=positions)
    qwen.write_json(pplx_folder / "sentence_bert_config.json", {"max_seq_length": own})
    assert read(pplx_folder).text.max_length == expected


def test_NU_15_qwen3_embedding_takes_what_it_has_positions_for(embedding_folder):
    qwen.edit_json(embedding_folder / "config.json", max_position_embeddings=40_960)
    assert read(embedding_folder).text.max_length == 40_960


def test_a_normalize_before_the_quantizer_is_no_choice_of_a_request(pplx_folder):
    qwen.write_modules(
        pplx_folder,
        qwen.module("Transformer", ""),
        qwen.module("Pooling", "1_Pooling"),
        qwen.module("Dense", "2_Dense"),
        qwen.module("Normalize", ""),
        qwen.QUANTIZER,
    )
    qwen.write_json(pplx_folder / "2_Dense/config.json", {"in_features": 32, "out_features": 8})
    (pplx_folder / "2_Dense/model.safetensors").write_bytes(b"")
    model = read(pplx_folder)
    assert model.after_pooling == (Dense("2_Dense/", 32, 8, True, "Tanh"), Normalize())
    assert (model.normalize, model.quantizer, model.dimensions) == (False, "tanh", 8)


def test_the_quantizer_and_the_direction_of_attention_are_part_of_the_space(
    pplx_folder, embedding_folder
):
    spaces = {read(pplx_folder).space("float32")}
    qwen.write_modules(
        pplx_folder, qwen.module("Transformer", ""), qwen.module("Pooling", "1_Pooling")
    )
    spaces.add(read(pplx_folder).space("float32"))
    spaces.add(read(embedding_folder).space("float32"))
    qwen.edit_json(embedding_folder / "config.json", is_causal=False)
    spaces.add(read(embedding_folder).space("float32"))
    assert len(spaces) == 4


def test_pplx_embed_without_a_list_of_modules_ends_as_its_own_code_does(pplx_folder):
    expected = read(pplx_folder)
    (pplx_folder / "modules.json").unlink()
    with_pooling = read(pplx_folder)
    (pplx_folder / "1_Pooling/config.json").unlink()
    bare = read(pplx_folder)
    for model in (with_pooling, bare):
        assert (model.pooling, model.quantizer) == (("mean",), "tanh")
        assert model.space("float32") == expected.space("float32")


def test_a_listed_pooling_module_without_its_file_is_not_guessed(pplx_folder):
    (pplx_folder / "1_Pooling/config.json").unlink()
    refuses(pplx_folder, "has no 1_Pooling/config.json: it says how tokens become one vector")


@pytest.mark.parametrize(
    ("kind", "kwargs", "message"),
    [
        ("st_quantize.FlexibleQuantizer", ["scale"], "kwargs=.*scale.* of st_quantize.* are not supported"),
        ("st_quantize.Other", [], "type 'st_quantize.Other' is not supported.*FlexibleQuantizer"),
        ("evil.st_quantize.FlexibleQuantizer", [], "'evil.st_quantize.Flex.* is not supported"),
    ],
)  # fmt: skip
def test_NU_13_other_custom_modules_are_refused(pplx_folder, kind, kwargs, message):
    qwen.write_modules(
        pplx_folder,
        qwen.module("Transformer", ""),
        qwen.module("Pooling", "1_Pooling"),
        {"type": kind, "path": "", "kwargs": kwargs},
    )
    refuses(pplx_folder, message)


def test_NU_13_a_quantizer_that_is_not_last_is_refused(pplx_folder):
    qwen.write_modules(
        pplx_folder,
        qwen.module("Transformer", ""),
        qwen.module("Pooling", "1_Pooling"),
        qwen.QUANTIZER,
        qwen.module("Normalize", ""),
    )
    refuses(pplx_folder, "as the last one st_quantize.FlexibleQuantizer")


def test_NU_13_a_quantizer_alone_is_refused(pplx_folder):
    qwen.write_modules(pplx_folder, qwen.module("Transformer", ""), qwen.QUANTIZER)
    refuses(pplx_folder, "modules.json lists Transformer; supported")
