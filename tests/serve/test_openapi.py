"""`/openapi.json` is a valid OpenAPI 3.1 document, and real requests and answers fit its schemas."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from serve.callers import Tei

SENTENCES = {"source_sentence": "a", "sentences": ["b", "a"]}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "a", "model": "default", "user": "u"}),
    ("/embeddings", {"input": [101, 102], "encoding_format": "base64"}),
    ("/embed", {"inputs": ["a", "b"], "truncate": None, "truncation_direction": "Left"}),
    ("/embed", {"inputs": [[101, 102], [101]], "normalize": False, "dimensions": 8}),
    ("/embed_all", {"inputs": "a"}),
    ("/similarity", {"inputs": SENTENCES, "parameters": {"prompt_name": "query"}}),
    ("/", {"inputs": "a", "parameters": {"truncate": True}}),
    ("/", {"inputs": SENTENCES}),
    ("/invocations", {"inputs": ["a"]}),
    ("/tokenize", {"inputs": ["a", ""], "add_special_tokens": False}),
    ("/decode", {"ids": [101, 7592]}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"inputs": "a"}),
    ("/v1/embeddings", {"input": []}),
    ("/embed", {"inputs": ["a", 3]}),
    ("/embed", {"inputs": "a", "dimensions": 0}),
    ("/embed", {"inputs": "a", "truncation_direction": "up"}),
    ("/embed", {"inputs": SENTENCES}),
    ("/embed_all", {"inputs": "a", "normalize": True}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
    ("/", {"inputs": "a", "parameters": {"top_k": 1}}),
    ("/tokenize", {"inputs": [101]}),
    ("/decode", {"ids": "a"}),
    ("/decode", {}),
]


@pytest.fixture(scope="module")
def document(tei: Tei) -> dict[str, Any]:
    return tei.client.get("/openapi.json").json()


def schema_of(document: dict[str, Any], path: str, part: str) -> Draft202012Validator:
    """Of the request body of `path`, or of its answer of one status."""
    operation = document["paths"][path]["post"]
    holder = operation["requestBody"] if part == "body" else operation["responses"][part]
    schema = holder["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"].startswith("3.1")


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_good_requests_and_their_answers_fit(
    tei: Tei, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    schema_of(document, path, "body").validate(body)
    schema_of(document, path, "200").validate(tei.ask(path, body).json())


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_refused_requests_do_not_fit_and_their_errors_do(
    tei: Tei, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    assert not schema_of(document, path, "body").is_valid(body)
    response = tei.client.post(path, json=body)
    assert response.is_client_error
    schema_of(document, path, str(response.status_code)).validate(response.json())


def test_what_can_only_be_fetched_fits(tei: Tei, document: dict[str, Any]) -> None:
    for path in ("/info", "/v1/models", "/health", "/ready", "/openapi.json"):
        answer = document["paths"][path]["get"]["responses"]["200"]
        schema = answer["content"]["application/json"]["schema"]
        Draft202012Validator(schema).validate(tei.client.get(path).json())
