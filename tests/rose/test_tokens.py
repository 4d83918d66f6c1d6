"""The tokens head: hidden states of transformers, one row a token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels.pack import RowDtype
from references import lowest_cosine, reference_ids, reference_model

MIN_COSINE = 0.99999


def token_rows(engine, sequences, *, normalize=False, **options):
    width = engine.info().token_dimensions
    row = RowFormat(width, normalize=normalize)
    batch = PackedBatch.build(sequences, row, head="tokens", **options)
    data = engine.step(batch).numpy()
    assert data[batch.num_result_bytes :].max() == 0
    return data[: batch.num_result_bytes].view(np.float32).reshape(-1, width)


def hidden_states(folder, sequences):
    model = reference_model(folder)[0].model
    with torch.inference_mode():
        return np.concatenate([model(torch.tensor([ids]))[0][0].numpy() for ids in sequences])


def test_each_row_is_the_last_hidden_state_of_its_token(minilm, minilm_folder, sample_texts):
    ids = reference_ids(reference_model(minilm_folder), sample_texts)
    expected = hidden_states(minilm_folder, ids)
    together = token_rows(minilm, ids)
    assert together.shape == (sum(map(len, ids)), 384)
    assert lowest_cosine(together, expected) >= MIN_COSINE
    assert np.abs(together - expected).max() < 1e-3
    alone = np.concatenate([token_rows(minilm, [sequence]) for sequence in ids])
    assert lowest_cosine(alone, expected) >= MIN_COSINE


def test_modules_after_the_transformer_leave_tokens_alone(make_folder, pool, load, sample_texts):
    folder = make_folder(pool("mean", "max"), Dense(64, 20), Normalize(), truncate_dim=12)
    engine = load(folder)
    assert (engine.info().dimensions, engine.info().token_dimensions) == (12, 32)
    assert engine.info().heads == ("embed", "tokens")
    ids = reference_ids(reference_model(folder), sample_texts[:4])
    assert lowest_cosine(token_rows(engine, ids), hidden_states(folder, ids)) >= MIN_COSINE


def test_tokens_are_scaled_and_cut_when_asked(minilm):
    ids = [[101, 2000, 2001, 102], [101, 102]]
    plain, scaled = token_rows(minilm, ids), token_rows(minilm, ids, normalize=True)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).min() > 0.1
    assert np.allclose(scaled, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)
    batch = PackedBatch.build(ids, RowFormat(8, RowDtype.FLOAT16, normalize=False), head="tokens")
    cut = minilm.step(batch).numpy()[: batch.num_result_bytes].view(np.float16).reshape(6, 8)
    assert np.array_equal(cut, plain[:, :8].astype(np.float16))


def test_some_tokens_can_be_chosen(minilm):
    ids = [[101, 2000, 2001, 102], [101, 102], [101, 3000, 102]]
    chosen = token_rows(minilm, ids, spans=[(2, 1, 2), (0, 3, 4), (0, 0, 1)])
    assert np.array_equal(chosen, token_rows(minilm, ids)[[7, 3, 0]])


@pytest.mark.parametrize("span", [(0, 0, 2), (0, 1, 1)])
def test_a_segment_of_more_or_less_than_one_token_is_refused(minilm, span):
    with pytest.raises(ValueError, match="a segment of the head tokens is one token"):
        token_rows(minilm, [[101, 2000, 102]], spans=[span])
