"""Inputs and parameters from the field, sent to the real thing (classes IN and PA)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serve.callers import Http

pytestmark = pytest.mark.usefixtures("golden")


def test_IN_01_an_empty_text_follows_one_rule_everywhere(http: Http) -> None:
    alone = http.embed("")
    in_list = http.embed(["a", "", "b"])
    np.testing.assert_allclose(in_list[1:2], alone, atol=1e-5)
    np.testing.assert_allclose(http.embed([101, 102]), alone, atol=1e-5)


@pytest.mark.parametrize("text", ["   ", "\t\n", "\u3000", "\u200b", "...", "---", "\x00"])
def test_IN_02_blank_and_punctuation_texts_get_vectors_that_repeat(http: Http, text: str) -> None:
    np.testing.assert_array_equal(http.embed(text), http.embed(text))


def test_IN_06_token_arrays_give_the_texts_vector(http: Http) -> None:
    ids = [101, 7592, 2088, 102]
    expected = http.embed("hello world")
    np.testing.assert_array_equal(http.embed(ids), expected)
    both = http.embed([ids, [101, 102]])
    np.testing.assert_allclose(both[:1], expected, atol=1e-5)
    for bad, where in (([], "input"), ([[]], "input[0]"), ([[1], "a"], "input[1]")):
        error = http.refused({"input": bad})
        assert error["param"].partition("[")[0] == "input"
        assert where in error["message"]
    error = http.refused({"input": [[101, 30_521], [101, 30_522]]})
    assert "input[1]" in error["message"]
    assert "30522" in error["message"]


def test_IN_06_over_long_token_arrays_follow_the_truncation_rule(http: Http) -> None:
    ids = [101] + [7592] * 400 + [102]
    answer = http.post({"input": ids})
    assert answer.json()["usage"]["prompt_tokens"] == 256
    assert answer.headers["x-flowerbed-truncated"] == "1"
    np.testing.assert_array_equal(http.embed(ids), http.embed(ids[:256]))
    error = http.refused({"input": [[101, 102], ids], "truncate": False})
    assert "input[1]" in error["message"]
    assert "402" in error["message"]
    assert "256" in error["message"]


def test_IN_07_a_string_and_a_list_of_it_are_the_same(http: Http) -> None:
    np.testing.assert_array_equal(http.embed("x"), http.embed(["x"]))


@pytest.mark.parametrize("body", [{}, {"input": None}, {"input": []}, {"input": {}}, {"input": 3}])
def test_IN_08_nothing_to_embed_is_a_bad_request(http: Http, body: dict[str, object]) -> None:
    assert http.refused(body)["param"] == "input"


@pytest.mark.parametrize("item", [None, 3, {"text": "b"}, ["a"], True])
def test_IN_10_the_error_names_the_item(http: Http, item: object) -> None:
    assert "input[1]" in http.refused({"input": ["a", item]})["message"]


def test_IN_10_the_index_is_the_callers_in_a_long_list(http: Http) -> None:
    texts = ["short"] * 300
    texts[271] = "word " * 300
    error = http.refused({"input": texts, "truncate": False})
    assert "input[271]" in error["message"]
    assert "302" in error["message"]


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "1" * 500_000, "漢" * 70_000, "ab cd " * 100_000]
)
def test_IN_11_very_long_words_are_answered_in_bounded_time(http: Http, text: str) -> None:
    start = time.monotonic()
    http.embed(text)
    assert time.monotonic() - start < 10


def test_IN_12_huge_texts_do_not_hold_up_health_or_short_ones(http: Http) -> None:
    huge = "lorem ipsum " * 40_000
    with ThreadPoolExecutor(8) as pool:
        floods = [pool.submit(http.embed, huge) for _ in range(8)]
        slowest = 0.0
        while not all(flood.done() for flood in floods):
            start = time.monotonic()
            assert http.client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
            http.embed("five words are not many")
        for flood in floods:
            flood.result()
    assert slowest < 1  # a bound against hanging, not a measurement


def test_IN_17_equal_texts_get_equal_vectors_and_none_is_lost(http: Http) -> None:
    got = http.embed(["a", "b", "a", "a"])
    np.testing.assert_allclose(got[[2, 3]], got[[0, 0]], atol=1e-5)
    many = http.embed(["the same text"] * 1_000)
    assert many.shape == (1_000, 384)
    assert np.abs(many - many[0]).max() < 1e-5


def test_PA_04_the_native_size_is_no_parameter(http: Http) -> None:
    np.testing.assert_array_equal(http.embed("x", dimensions=384), http.embed("x"))
    for bad in (0, -1, 385, 10**12, 1.5, "64", True):
        assert http.refused({"input": "x", "dimensions": bad})["param"] == "dimensions"


def test_dimensions_out_of_range_are_refused_with_the_models_own_range(http: Http) -> None:
    for bad in (-1, 0, 385, 2**32, 2**64 - 1):
        message = http.refused({"input": "x", "dimensions": bad})["message"]
        assert (
            message == f"dimensions is {bad}; sentence-transformers/all-MiniLM-L6-v2 gives 1 to 384"
        )


@pytest.mark.parametrize("dimensions", [1, 32, 128, 256])
def test_PA_02_PA_05_cut_vectors_are_renormalised(http: Http, dimensions: int) -> None:
    full = http.embed("some text")[:, :dimensions]
    got = http.embed("some text", dimensions=dimensions)
    assert got.shape == (1, dimensions)
    np.testing.assert_allclose(got, full / np.linalg.norm(full), atol=1e-6)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("kind", ["text", "ids"])
def test_PA_07_truncation_is_one_table(http: Http, kind: str, as_list: bool) -> None:
    long = "hello " * 300 if kind == "text" else [101] + [7592] * 300 + [102]
    body = {"input": [long] if as_list else long}
    for extra in ({}, {"truncate": True}):
        answer = http.post({**body, **extra})
        assert answer.json()["usage"]["prompt_tokens"] == 256
        assert answer.headers["x-flowerbed-truncated"] == "1"
    error = http.refused({**body, "truncate": False})
    assert all(part in error["message"] for part in ("input[0]", "302", "256"))


def test_PA_08_lists_and_bodies_have_limits_that_are_told(http: Http) -> None:
    assert http.embed(["x"] * 2_048).shape == (2_048, 384)
    error = http.refused({"input": ["x"] * 2_049})
    assert "2048" in error["message"].replace(",", "")
    assert "2049" in error["message"].replace(",", "")
    error = http.refused({"input": "x" * (33 * 1024 * 1024)}, status=413)
    assert "33554432" in error["message"].replace(",", "")


def test_PA_10_an_unknown_prompt_is_refused_with_the_known_ones(http: Http) -> None:
    error = http.refused({"input": "x", "prompt_name": "summary"})
    assert error["param"] == "prompt_name"
    assert "document" in error["message"]
    assert "query" in error["message"]


@pytest.mark.parametrize(
    "name", [None, "default", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"]
)
def test_PA_11_served_names_are_accepted_and_the_id_comes_back(
    http: Http, name: str | None
) -> None:
    body = {"input": "x"} if name is None else {"input": "x", "model": name}
    assert http.post(body).json()["model"] == "sentence-transformers/all-MiniLM-L6-v2"


def test_PA_11_other_names_are_not_found(http: Http) -> None:
    error = http.refused({"input": "x", "model": "text-embedding-3-small"}, status=404)
    assert error["code"] == "model_not_found"
    assert "sentence-transformers/all-MiniLM-L6-v2" in error["message"]
    assert http.refused({"input": "x", "model": ""})["param"] == "model"


def test_PA_15_usage_counts_the_ids_fed_to_the_model(http: Http) -> None:
    answer = http.post({"input": ["hello world", "hello", "word " * 400]}).json()
    assert answer["usage"] == {"prompt_tokens": 4 + 3 + 256, "total_tokens": 4 + 3 + 256}


def test_unknown_fields_are_refused_by_name(http: Http) -> None:
    error = http.refused({"input": "x", "input_type": "query"})
    assert error["param"] == "input_type"
