"""The routes of text-embeddings-inference give what the libraries behind the model give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from references import reference_rows
from serve.callers import Http, Tei

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

pytestmark = pytest.mark.usefixtures("golden")

TEXTS = [
    "hello world", "x", "", "   ", "Ünïcödé 漢字 and 👩\u200d🚀, mixed", "[SEP] typed by hand",
    "a longer text, with punctuation; and more of it.", "word " * 300,
]  # fmt: skip

HARD_TEXTS = [
    "Hokkaidō", "Việt Nam tiếng Việt", "한국어", "한국어", "ﬁnance", "Ｆｕｌｌ ｗｉｄｔｈ", "ἀλλ᾽ ὁ λόγος",
    "👨\u200d👩\u200d👧\u200d👦 family", "🇫🇷🇩🇪", "❤\ufe0f", "مرحبا \u202e بالعالم", "สวัสดีชาวโลก", "漢字" * 1_000,
    "\t\n", "\u3000", "\u200b", "...", "---", "\x00",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(minilm_folder: Path) -> Tokenizer:
    """The model's own, without the truncation and padding that its file asks for."""
    tokenizer = Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def raw_rows(reference: SentenceTransformer, texts: list[str]) -> np.ndarray:
    """Mean of the last hidden states, before the model's own Normalize."""
    return np.stack([rows.mean(axis=0) for rows in hidden_states(reference, texts)])


def hidden_states(reference: SentenceTransformer, texts: list[str]) -> list[np.ndarray]:
    """transformers' `last_hidden_state` of each text alone: [num_tokens, hidden]."""
    transformer = reference[0]
    states = []
    for text in texts:
        features = reference.tokenizer(
            text, truncation=True, max_length=reference.max_seq_length, return_tensors="pt"
        )
        with torch.inference_mode():
            states.append(transformer.auto_model(**features).last_hidden_state[0].numpy())
    return states


def test_embed_equals_sentence_transformers(
    tei: Tei, reference: SentenceTransformer, real_texts: list[str]
) -> None:
    texts = TEXTS + real_texts[::20]
    expected = reference_rows(reference, texts)
    np.testing.assert_allclose(tei.embed(texts), expected, atol=1e-5)
    for text, row in zip(TEXTS, expected, strict=False):
        np.testing.assert_allclose(tei.embed(text), row[None], atol=1e-5)


def test_PA_04_the_native_size_is_no_parameter(tei: Tei) -> None:
    np.testing.assert_array_equal(tei.embed("x", dimensions=384), tei.embed("x"))
    for bad in (0, -1, 385, 1.5, "64"):
        error, kind = tei.refused("/embed", {"inputs": "x", "dimensions": bad})
        assert (kind, "dimensions" in error) == ("Validation", True)


def test_PA_05_normalize_off_gives_what_the_model_pools_and_cuts_are_of_that(
    tei: Tei, reference: SentenceTransformer
) -> None:
    raw = raw_rows(reference, TEXTS)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-2)
    np.testing.assert_allclose(tei.embed(TEXTS, normalize=False), raw, atol=1e-5)
    for dimensions in (32, 128, 256, 384):
        cut = raw[:, :dimensions]
        off = tei.embed(TEXTS, normalize=False, dimensions=dimensions)
        np.testing.assert_allclose(off, cut, atol=1e-5)
        on = tei.embed(TEXTS, dimensions=dimensions)
        expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose(on, expected, atol=1e-5)


def test_embed_all_equals_the_last_hidden_states_of_transformers(
    tei: Tei, reference: SentenceTransformer
) -> None:
    answer = tei.ask("/embed_all", {"inputs": TEXTS}).json()
    expected = hidden_states(reference, TEXTS)
    assert [len(rows) for rows in answer] == [len(rows) for rows in expected]
    for rows, states in zip(answer, expected, strict=True):
        np.testing.assert_allclose(rows, states, atol=1e-5)
    [alone] = tei.ask("/embed_all", {"inputs": TEXTS[0]}).json()
    np.testing.assert_allclose(alone, expected[0], atol=1e-5)


def test_similarity_is_the_cosine(tei: Tei, reference: SentenceTransformer) -> None:
    source, *others = TEXTS
    inputs = {"source_sentence": source, "sentences": others}
    rows = reference_rows(reference, TEXTS).astype(np.float64)
    got = tei.ask("/similarity", {"inputs": inputs}).json()
    np.testing.assert_allclose(got, rows[1:] @ rows[0], atol=1e-5)


def test_IN_13_IN_15_tokenize_lists_what_the_tokenizer_gives(
    tei: Tei, tokenizer: Tokenizer
) -> None:
    texts = TEXTS + HARD_TEXTS
    for add in (True, False):
        body = {"inputs": texts, "add_special_tokens": add}
        answer = tei.ask("/tokenize", body).json()
        for text, tokens in zip(texts, answer, strict=True):
            encoding = tokenizer.encode(text, add_special_tokens=add)
            specials = [mask == 1 for mask in encoding.special_tokens_mask]
            assert [token["id"] for token in tokens] == encoding.ids
            assert [token["special"] for token in tokens] == specials
            for token, name, (start, stop) in zip(
                tokens, encoding.tokens, encoding.offsets, strict=True
            ):
                if token["special"]:
                    assert token["text"] == name
                    assert token["start"] is token["stop"] is None
                else:
                    assert (token["start"], token["stop"]) == (start, stop)
                    assert token["text"] == text[start:stop]


def test_IN_06_listed_ids_give_the_texts_vector(tei: Tei) -> None:
    short = TEXTS[:-1]
    listed = tei.ask("/tokenize", {"inputs": short}).json()
    ids = [[token["id"] for token in tokens] for tokens in listed]
    np.testing.assert_allclose(tei.embed(ids), tei.embed(short), atol=1e-6)
    for text, array in zip(short, ids, strict=True):
        np.testing.assert_array_equal(tei.embed(array), tei.embed(text))
        np.testing.assert_array_equal(tei.embed([array]), tei.embed(text))
    rows = tei.ask("/embed_all", {"inputs": ids[:2]}).json()
    assert [len(row) for row in rows] == [len(array) for array in ids[:2]]


def test_decode_gives_what_the_tokenizer_gives(tei: Tei, tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    for skip in (True, False):
        body = {"ids": ids, "skip_special_tokens": skip}
        expected = [tokenizer.decode(array, skip_special_tokens=skip) for array in ids]
        assert tei.ask("/decode", body).json() == expected
    assert tei.ask("/decode", {"ids": ids[0]}).json() == ["hello world"]


def test_IN_01_an_empty_text_follows_one_rule_on_every_route(tei: Tei, http: Http) -> None:
    [expected] = http.embed("")
    np.testing.assert_allclose(tei.embed(["a", "", "b"])[1], expected, atol=1e-5)
    np.testing.assert_allclose(tei.embed(""), [expected], atol=1e-6)
    assert len(tei.ask("/embed_all", {"inputs": ""}).json()[0]) == 2
    inputs = {"source_sentence": "", "sentences": ["", "x"]}
    assert abs(tei.ask("/similarity", {"inputs": inputs}).json()[0] - 1) < 1e-5
    [tokens] = tei.ask("/tokenize", {"inputs": ""}).json()
    assert [token["text"] for token in tokens] == ["[CLS]", "[SEP]"]


def test_IN_02_IN_13_IN_15_hard_texts_get_the_vectors_of_the_reference(
    tei: Tei, reference: SentenceTransformer
) -> None:
    expected = reference_rows(reference, HARD_TEXTS)
    np.testing.assert_allclose(tei.embed(HARD_TEXTS), expected, atol=1e-5)
    np.testing.assert_array_equal(tei.embed("..."), tei.embed("..."))


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/tokenize", "/"])
def test_IN_07_a_string_and_a_list_of_it_are_the_same(tei: Tei, path: str) -> None:
    one = tei.ask(path, {"inputs": "some text"}).json()
    assert tei.ask(path, {"inputs": ["some text"]}).json() == one
    assert len(one) == 1


def test_IN_08_IN_10_what_is_wrong_is_named(tei: Tei) -> None:
    for path in ("/embed", "/embed_all", "/tokenize", "/"):
        error, kind = tei.refused(path, {"inputs": []}, status=400)
        assert (kind, "inputs" in error) == ("Empty", True)
        for body in ({}, {"inputs": None}, {"inputs": 3}):
            error, kind = tei.refused(path, body)
            assert (kind, "inputs" in error) == ("Validation", True)
        error, kind = tei.refused(path, {"inputs": ["a", None]})
        assert (kind, "inputs[1]" in error) == ("Validation", True)
    texts = ["short"] * 300
    texts[271] = "word " * 300
    error, _ = tei.refused("/embed", {"inputs": texts, "truncate": False})
    assert all(part in error for part in ("inputs[271]", "302", "256"))
    error, _ = tei.refused("/embed", {"inputs": [[101, 30_522]]})
    assert all(part in error for part in ("inputs[0]", "30522"))
    error, _ = tei.refused("/decode", {"ids": [101, 30_522]})
    assert all(part in error for part in ("ids[1]", "30522"))
    error, _ = tei.refused("/decode", {"ids": [[101], [101, 30_522]]})
    assert all(part in error for part in ("ids[1]", "item 1 ", "30522"))


def test_IN_17_equal_texts_keep_their_rows(tei: Tei) -> None:
    got = tei.embed(["a", "b", "a", "a"])
    np.testing.assert_allclose(got[[2, 3]], got[[0, 0]], atol=1e-5)
    assert not np.allclose(got[0], got[1], atol=1e-2)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/embed_all", "/"])
@pytest.mark.parametrize("kind", ["text", "ids"])
@pytest.mark.parametrize("side", ["left", "right", None])
def test_PA_07_a_cut_text_has_the_vector_of_what_is_kept(
    tei: Tei, http: Http, tokenizer: Tokenizer, path: str, kind: str, side: str | None
) -> None:
    text = " ".join(f"word{number}" for number in range(300))
    ids = tokenizer.encode(text).ids
    if kind == "text":  # the tokenizer's own truncation says what is kept
        tokenizer.enable_truncation(256, direction=side or "right")
        kept = tokenizer.encode(text).ids
        tokenizer.no_truncation()
    else:
        kept = ids[-256:] if side == "left" else ids[:256]
    options = {} if side is None else {"truncation_direction": side}
    field = "input" if path == "/v1/embeddings" else "inputs"
    asked = {field: text if kind == "text" else ids, **options}
    answer = tei.ask(path, asked)
    assert answer.headers["x-flowerbed-truncated"] == "1"
    expected = tei.ask(path, {field: kept})
    assert expected.headers["x-flowerbed-truncated"] == "0"
    assert answer.json() == expected.json()
    refused = tei.client.post(path, json={**asked, "truncate": False})
    assert refused.status_code == (400 if path == "/v1/embeddings" else 422)
    assert str(len(ids)) in refused.text


def test_PA_08_NU_13_NU_14_NU_15_info_shows_limits_and_the_model(
    tei: Tei, minilm_folder: Path
) -> None:
    import hashlib

    info = tei.client.get("/info").json()
    assert info["model_id"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["max_input_length"], info["dimensions"]) == (256, 384)
    assert info["model_dtype"] == "float32"
    assert info["max_client_batch_size"] == 2_048
    assert info["max_body_bytes"] == 33_554_432
    assert info["auto_truncate"] is True
    assert info["model_sha"] == info["revision"]
    for field, name in (
        ("weights_sha256", "model.safetensors"),
        ("tokenizer_sha256", "tokenizer.json"),
    ):
        assert info[field] == hashlib.sha256((minilm_folder / name).read_bytes()).hexdigest()
    assert info["space"] == tei.ask("/embed", {"inputs": "x"}).headers["x-flowerbed-space"]


def test_PA_10_an_unknown_prompt_is_refused_with_the_known_ones(tei: Tei) -> None:
    for path in ("/embed", "/embed_all", "/tokenize", "/"):
        error, _ = tei.refused(path, {"inputs": "x", "prompt_name": "summary"})
        assert all(part in error for part in ("summary", "document", "query"))


def test_PA_15_tokens_are_counted_in_the_headers(tei: Tei) -> None:
    texts = ["hello world", "hello", "word " * 400]
    for path in ("/embed", "/embed_all", "/"):
        headers = tei.ask(path, {"inputs": texts}).headers
        assert headers["x-compute-tokens"] == str(4 + 3 + 256)
        assert headers["x-compute-characters"] == str(sum(map(len, texts)))
        assert headers["x-flowerbed-truncated"] == "1"
        assert int(headers["x-total-time"]) >= int(headers["x-inference-time"])


def test_a_reranker_is_asked_for_in_vain(tei: Tei) -> None:
    error, kind = tei.refused("/rerank", {"query": "a", "texts": ["b"]}, status=424)
    assert kind == "Backend"
    assert "/rerank" in error
