"""huggingface_hub's InferenceClient works unchanged; it posts to `/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from tokenizers import Tokenizer

from flowerbed.background import RunningServer, serving
from references import reference_rows
from serve.callers import Tei, cosines

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@pytest.fixture
def client(server: RunningServer) -> InferenceClient:
    return InferenceClient(server.address, timeout=60)


def test_a_text_and_a_list_of_texts(
    client: InferenceClient, reference: SentenceTransformer
) -> None:
    texts = ["one text", "another"]
    expected = reference_rows(reference, texts)
    one = client.feature_extraction("one text")
    assert (one.dtype, one.shape) == (np.float32, (1, 384))
    np.testing.assert_allclose(one, expected[:1], atol=1e-5)
    np.testing.assert_allclose(client.feature_extraction(texts), expected, atol=1e-5)


def test_every_option(client: InferenceClient, tei: Tei) -> None:
    raw = client.feature_extraction("one text", normalize=False)
    np.testing.assert_array_equal(raw, tei.embed("one text", normalize=False))
    np.testing.assert_array_equal(
        client.feature_extraction("one text", normalize=True), tei.embed("one text")
    )
    cut = client.feature_extraction("one text", dimensions=32, encoding_format="float")
    np.testing.assert_array_equal(cut, tei.embed("one text", dimensions=32))


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncation(client: InferenceClient, tei: Tei, minilm_folder: Path, side: str) -> None:
    text = " ".join(f"word{number}" for number in range(300))
    tokenizer = Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256, direction=side)
    got = client.feature_extraction(text, truncate=True, truncation_direction=side)
    np.testing.assert_array_equal(got, tei.embed(tokenizer.encode(text).ids))
    with pytest.raises(HfHubHTTPError) as refused:
        client.feature_extraction(text, truncate=False)
    assert refused.value.response.status_code == 422
    assert "inputs[0]" in str(refused.value)


def test_sentence_similarity(client: InferenceClient, reference: SentenceTransformer) -> None:
    texts = ["Machine learning is easy.", "Deep learning is simple.", "It rains."]
    rows = reference_rows(reference, texts)
    got = client.sentence_similarity(texts[0], other_sentences=texts[1:])
    np.testing.assert_allclose(got, rows[1:] @ rows[0], atol=1e-5)


def test_errors_reach_the_caller(client: InferenceClient) -> None:
    with pytest.raises(HfHubHTTPError) as refused:
        client.feature_extraction("x", prompt_name="summary")
    assert refused.value.response.status_code == 422
    assert refused.value.response.json()["error_type"] == "Validation"
    assert "summary" in str(refused.value)


@pytest.mark.timeout(120)
def test_a_named_prompt_and_truncation_off_by_flag(tei: Tei) -> None:
    with serving("--prompt", "query=search: ", "--auto-truncate", "false") as server:
        client = InferenceClient(server.address, timeout=60)
        got = client.feature_extraction(["a text"], prompt_name="query")
        assert cosines(got, tei.embed("search: a text"))[0] > 0.99999
        answer = client.sentence_similarity("a text", other_sentences=["a text"])
        assert abs(answer[0] - 1) < 1e-5
        with pytest.raises(HfHubHTTPError) as refused:
            client.feature_extraction("word " * 300)
        assert refused.value.response.status_code == 422
        assert client.feature_extraction("word " * 300, truncate=True).shape == (1, 384)
