"""How the tests of this folder speak to the server: plain HTTP, and what every answer must hold."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Http:
    """Plain HTTP to the server, as a caller without our client would speak it."""

    client: httpx2.Client

    def post(self, body: object) -> httpx2.Response:
        return self.client.post("/v1/embeddings", json=body)

    def refused(self, body: object, status: int = 400) -> dict[str, Any]:
        """The error object of a request that must be refused with `status`."""
        response = self.post(body)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "code", "param"}
        return error

    def embed(self, inputs: object, **options: object) -> Floats:
        """Vectors of a request that must succeed, checked for order, finiteness and length 1."""
        response = self.post({"input": inputs, "encoding_format": "base64", **options})
        assert response.status_code == 200, response.text
        data = response.json()["data"]
        assert [item["index"] for item in data] == list(range(len(data)))
        raw = [base64.b64decode(item["embedding"], validate=True) for item in data]
        vectors = np.stack([np.frombuffer(row, dtype="<f4") for row in raw])
        assert np.isfinite(vectors).all()
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
        return vectors


@dataclass(frozen=True)
class Tei:
    """The routes of text-embeddings-inference, as plain HTTP."""

    client: httpx2.Client

    def ask(self, path: str, body: object) -> httpx2.Response:
        """A good answer."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response

    def refused(self, path: str, body: object, status: int = 422) -> tuple[str, str]:
        """`error` and `error_type` of a request that must be refused with `status`."""
        response = self.client.post(path, json=body)
        assert response.status_code == status, response.text
        envelope = response.json()
        assert set(envelope) == {"error", "error_type"}
        return envelope["error"], envelope["error_type"]

    def embed(self, inputs: object, **options: object) -> Floats:
        """Vectors of `/embed`, one a row."""
        rows = self.ask("/embed", {"inputs": inputs, **options}).json()
        vectors = np.array(rows, dtype=np.float32)
        assert vectors.ndim == 2
        assert np.isfinite(vectors).all()
        return vectors


def cosines(a: Floats, b: Floats) -> Floats:
    """Row by row, [num_rows]."""
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
