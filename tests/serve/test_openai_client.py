"""The official OpenAI client works unchanged; its default asks for base64."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import openai
import pytest

from flowerbed.background import RunningServer
from serve.callers import Http


@pytest.fixture
def client(server: RunningServer) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_PA_01_default_arguments_give_floats(client: openai.OpenAI, http: Http) -> None:
    answer = client.embeddings.create(model="all-MiniLM-L6-v2", input=["one text", "another"])
    assert answer.object == "list"
    assert answer.model == "sentence-transformers/all-MiniLM-L6-v2"
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 4 + 3
    got = np.array([item.embedding for item in answer.data], dtype=np.float32)
    np.testing.assert_array_equal(got, http.embed(["one text", "another"]))


def test_PA_01_float_and_base64_are_the_same_numbers(client: openai.OpenAI) -> None:
    asks = {"model": "default", "input": "one text"}
    plain = client.embeddings.create(**asks, encoding_format="float")
    packed = client.embeddings.create(**asks, encoding_format="base64")
    raw = packed.data[0].embedding
    assert isinstance(raw, str)
    import base64

    decoded = np.frombuffer(base64.b64decode(raw), dtype="<f4")
    np.testing.assert_array_equal(decoded, np.array(plain.data[0].embedding, dtype=np.float32))


def test_errors_have_the_shape_that_the_client_reads(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="no-such-model", input="x")
    assert "sentence-transformers/all-MiniLM-L6-v2" in missing.value.message
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.embeddings.create(model="default", input=[])
    assert bad.value.param == "input"


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [
        "sentence-transformers/all-MiniLM-L6-v2"
    ]


def test_dimensions_are_cut_and_renormalised(client: openai.OpenAI, http: Http) -> None:
    answer = client.embeddings.create(model="default", input="one text", dimensions=64)
    full = http.embed("one text")[0, :64]
    np.testing.assert_allclose(answer.data[0].embedding, full / np.linalg.norm(full), atol=1e-6)
