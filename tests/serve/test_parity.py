"""What comes out over HTTP is what sentence-transformers computes, whatever the batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from serve.callers import Http, cosines

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MIN_COSINE = 0.99999


@pytest.fixture(scope="module")
def reference(minilm_folder: Path) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder), device="cpu")


def check_parity(http: Http, reference: SentenceTransformer, texts: list[str]) -> None:
    expected = np.stack([reference.encode(text) for text in texts])
    alone = np.concatenate([http.embed(text) for text in texts])
    assert cosines(alone, expected).min() >= MIN_COSINE

    order = list(range(len(texts)))
    rng = random.Random(7)
    for _ in range(3):
        rng.shuffle(order)
        start = 0
        while start < len(order):
            batch = order[start : start + rng.randint(1, 40)]
            got = http.embed([texts[index] for index in batch])
            assert cosines(got, expected[batch]).min() >= MIN_COSINE
            start += len(batch)


def check_ids(http: Http, reference: SentenceTransformer, texts: list[str]) -> None:
    """The gateway's ids are the model's own: same count, and the same vector as those ids give."""
    tokenizer = reference.tokenizer
    max_length = reference.max_seq_length
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=max_length)["input_ids"]
        answer = http.post({"input": text}).json()
        assert answer["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
        from_ids = http.embed(ids)
        from_text = np.array([answer["data"][0]["embedding"]], dtype=np.float32)
        np.testing.assert_array_equal(from_ids, from_text)


def test_NU_07_vectors_equal_sentence_transformers_alone_and_in_any_batch(
    http: Http, reference: SentenceTransformer, real_texts: list[str]
) -> None:
    assert len(real_texts) == 200
    check_parity(http, reference, real_texts)


def test_ids_equal_the_models_own_tokenizer(
    http: Http, reference: SentenceTransformer, real_texts: list[str]
) -> None:
    check_ids(http, reference, real_texts)


@pytest.mark.nightly
def test_a_thousand_texts_keep_parity(
    http: Http, reference: SentenceTransformer, many_real_texts: list[str]
) -> None:
    assert len(many_real_texts) == 1_000
    check_parity(http, reference, many_real_texts)
    check_ids(http, reference, many_real_texts)


def test_IN_13_accents_and_forms_keep_parity(http: Http, reference: SentenceTransformer) -> None:
    texts = [
        "Hokkaidō", "Hokkaido", "Kantō", "Việt Nam tiếng Việt", "한국어", "한국어",
        "ﬁnance", "Ｆｕｌｌ ｗｉｄｔｈ", "naïve café", "ἀλλ᾽ ὁ λόγος",
    ]  # fmt: skip
    check_ids(http, reference, texts)
    got = http.embed(texts)
    assert cosines(got, reference.encode(texts)).min() >= MIN_COSINE
    assert cosines(got[:1], got[3:4])[0] < 0.95


def test_IN_15_emoji_right_to_left_and_han_keep_parity(
    http: Http, reference: SentenceTransformer
) -> None:
    texts = [
        "👨\u200d👩\u200d👧\u200d👦 family", "🇫🇷🇩🇪", "❤\ufe0f", "مرحبا \u202e بالعالم", "שלום\u200f עולם",
        "สวัสดีชาวโลก", "漢字" * 1_000,
    ]  # fmt: skip
    check_ids(http, reference, texts)
    assert cosines(http.embed(texts), reference.encode(texts)).min() >= MIN_COSINE


def test_NU_15_the_models_own_maximum_length_counts(
    http: Http, reference: SentenceTransformer
) -> None:
    for num_tokens in (127, 129, 255, 257, 511, 513):
        text = " ".join(["word"] * (num_tokens - 2))
        answer = http.post({"input": text})
        assert answer.json()["usage"]["prompt_tokens"] == min(num_tokens, 256)
        assert answer.headers["x-flowerbed-truncated"] == str(int(num_tokens > 256))
        got = http.embed(text)
        assert cosines(got, reference.encode([text])).min() >= MIN_COSINE
