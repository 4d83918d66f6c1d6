"""multilingual-e5-small, served: a BERT with XLM-R's tokenizer, without a pooler, with prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from models.texts import multilingual_texts
from references import lowest_cosine
from serve.callers import Http
from serve.parity import MIN_COSINE, check_ids, check_parity

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# The first one makes the folder and starts the server.
pytestmark = pytest.mark.timeout(300)


def test_some_texts_have_the_ids_and_vectors_of_the_reference(
    e5_http: Http, e5_reference: SentenceTransformer
) -> None:
    texts = multilingual_texts()[::23]
    check_ids(e5_http, e5_reference, texts)
    check_parity(e5_http, e5_reference, texts)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_two_hundred_texts_have_the_ids_and_vectors_of_the_reference(
    e5_http: Http, e5_reference: SentenceTransformer
) -> None:
    texts = multilingual_texts()
    assert len(texts) == 200
    lengths = [len(e5_reference.tokenizer(text)["input_ids"]) for text in texts]
    assert min(lengths) <= 4
    assert max(lengths) > 512
    check_ids(e5_http, e5_reference, texts)
    check_parity(e5_http, e5_reference, texts)


@pytest.mark.parametrize("prompt", ["query", "passage"])
def test_PA_10_a_prompts_name_means_its_text(
    e5_http: Http, e5_reference: SentenceTransformer, prompt: str
) -> None:
    texts = multilingual_texts()[::60]
    by_name = np.concatenate([e5_http.embed(text, prompt_name=prompt) for text in texts])
    by_hand = np.concatenate([e5_http.embed(f"{prompt}: {text}") for text in texts])
    np.testing.assert_array_equal(by_name, by_hand)
    expected = np.stack([e5_reference.encode(text, prompt_name=prompt) for text in texts])
    assert lowest_cosine(by_name, expected) >= MIN_COSINE
    plain = np.concatenate([e5_http.embed(text) for text in texts])
    assert lowest_cosine(by_name, plain) < 0.99


def test_PA_10_an_unknown_prompt_is_refused_and_the_known_ones_are_told(e5_http: Http) -> None:
    error = e5_http.refused({"input": "a text", "prompt_name": "document2"})
    assert error["param"] == "prompt_name"
    assert "passage" in error["message"]
