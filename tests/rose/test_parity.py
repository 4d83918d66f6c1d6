"""The packaged MiniLM against sentence-transformers, and vectors against their batches."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowerbed.config import DType
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from references import engine_rows, lowest_cosine, reference_ids, reference_model, reference_rows

MIN_COSINE = 0.99999

# The reference embeds 35,000 tokens one text at a time: 7 s alone, a minute on a busy machine.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def oracle(minilm_folder, real_texts):
    """Ids and vectors of the real texts, up to 512 tokens."""
    model = reference_model(minilm_folder, max_length=512)
    return reference_ids(model, real_texts), reference_rows(model, real_texts)


def test_texts_cover_short_and_long_ones(oracle):
    lengths = [len(ids) for ids in oracle[0]]
    assert len(lengths) == 200
    assert min(lengths) <= 3
    assert max(lengths) >= 500


def test_vectors_alone_match_sentence_transformers(minilm, oracle):
    ids, expected = oracle
    rows = np.concatenate([engine_rows(minilm, [sequence]) for sequence in ids])
    assert lowest_cosine(rows, expected) >= MIN_COSINE
    assert np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-5


def test_NU_07_vectors_in_random_batches_match_sentence_transformers(minilm, oracle):
    ids, expected = oracle
    dice = random.Random(7)
    order = dice.sample(range(len(ids)), len(ids))
    while order:
        size = dice.choice([2, 5, 16, 40])
        chosen, order = order[:size], order[size:]
        rows = engine_rows(minilm, [ids[i] for i in chosen])
        assert lowest_cosine(rows, expected[chosen]) >= MIN_COSINE


def test_NU_02_one_word_texts_have_good_vectors(minilm, minilm_folder):
    model = reference_model(minilm_folder)
    texts = ["trust", "5.2", "a", "0", "", "?", "ship", "naïve", "年", "🙂"]
    rows = engine_rows(minilm, reference_ids(model, texts))
    assert lowest_cosine(rows, reference_rows(model, texts)) >= MIN_COSINE


@pytest.mark.parametrize("num_tokens", [127, 129, 255, 257, 511, 513])
def test_NU_15_texts_are_cut_where_sentence_transformers_cuts(minilm, minilm_folder, num_tokens):
    model = reference_model(minilm_folder)
    text = " ".join(["tree"] * (num_tokens - 2))
    ids = model.tokenizer(text)["input_ids"]
    limit = minilm.folder.text.max_length
    cut = ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
    assert len(ids) == num_tokens
    assert limit == 256
    assert lowest_cosine(engine_rows(minilm, [cut]), reference_rows(model, [text])) >= MIN_COSINE


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_NU_07_a_vector_depends_neither_on_its_batch_nor_on_its_place(minilm, data):
    token = st.integers(0, 30521)
    sequences = data.draw(
        st.lists(st.lists(token, min_size=1, max_size=40), min_size=1, max_size=12)
    )
    order = data.draw(st.permutations(range(len(sequences))))
    alone = np.concatenate([engine_rows(minilm, [sequence]) for sequence in sequences])
    together = engine_rows(minilm, [sequences[i] for i in order])
    assert lowest_cosine(together, alone[list(order)]) >= MIN_COSINE


def test_NU_07_fifty_repeats_of_one_call_agree_to_the_bit(minilm):
    sequences = [[101, 2000 + i, 3000, 102] for i in range(9)]
    first = engine_rows(minilm, sequences)
    for _ in range(49):
        assert np.array_equal(engine_rows(minilm, sequences), first)


def test_NU_04_bfloat16_stays_near_float32_where_the_cpu_has_it(minilm, oracle):
    import torch

    if not torch.cpu.get_capabilities().get("avx512_bf16"):
        pytest.skip("this CPU has no bfloat16 arithmetic")
    engine = Engine.load(read_folder(resolve(None)), device="cpu", dtype=DType.BFLOAT16)
    ids, expected = oracle
    assert engine.info().dtype == "bfloat16"
    assert engine.info().space != minilm.info().space
    assert lowest_cosine(engine_rows(engine, ids[::5]), expected[::5]) >= 0.999


def test_info_describes_the_model(minilm):
    info = minilm.info()
    assert info.id == "sentence-transformers/all-MiniLM-L6-v2"
    assert (info.dimensions, info.max_length, info.vocab_rows) == (384, 256, 30522)
    assert (info.normalize, info.pooling, info.dtype, info.device) == (
        True,
        "mean",
        "float32",
        "cpu",
    )
    # 2 * (4 * 384^2 + 2 * 384 * 1536) FLOPs a token and layer, divided by 4 * 384
    assert info.attention_scale == 2304
