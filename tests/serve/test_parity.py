"""What comes out over HTTP is what sentence-transformers computes, whatever the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from serve.callers import Http, cosines
from serve.parity import MIN_COSINE, check_ids, check_parity

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@pytest.mark.timeout(240)  # the reference is slow where the machine is busy
def test_NU_07_vectors_equal_sentence_transformers_alone_and_in_any_batch(
    http: Http, reference: SentenceTransformer, real_texts: list[str]
) -> None:
    assert len(real_texts) == 200
    check_parity(http, reference, real_texts)


@pytest.mark.timeout(240)
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
