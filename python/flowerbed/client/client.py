"""The synchronous client. One instance keeps its connections open and may be used by many threads."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import httpx2
import numpy as np
from numpy.typing import NDArray

from flowerbed.client.errors import Problem, RequestError, read_problem
from flowerbed.client.retry import RETRIED_STATUSES, RetryPolicy
from flowerbed.config import DEFAULT_HOST, DEFAULT_PORT, REQUEST_TIMEOUT_S

_NETWORK_MARGIN_S = 5.0
"""The server's own timeout answers first, and says more."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors and what the server told about them."""

    vectors: NDArray[np.float32]  # [num_texts, dimensions] float32
    model: str
    num_tokens: int
    num_truncated: int  # texts that were longer than the model's maximum
    space: str | None  # vectors may be compared only within one space
    queue_us: int | None  # time the request waited
    step_us: int | None  # time of the model's forward passes
    request_id: str | None


class Client:
    """Talks to a running gateway.

        with flowerbed.Client("http://127.0.0.1:8000") as client:
            vectors = client.embed(["a text", "another"])  # float32 [2, dimensions]

    Args:
        base_url: Address of the gateway.
        model: Served id; None for the one that is served.
        api_key: Sent as a bearer token.
        timeout_s: Longest wait for one answer, retries not counted.
        retry: What happens on 429 and 503.
    """

    def __init__(
        self,
        base_url: str = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S + _NETWORK_MARGIN_S,
        retry: RetryPolicy | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx2.Client(base_url=base_url, headers=headers, timeout=timeout_s)
        self._base_url = base_url
        self._model = model
        self._retry = retry or RetryPolicy()

    def embed(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """Embeds texts; row i belongs to text i.

        Args:
            texts: None at all gives [0, dimensions].
            prompt_name: One of the model's prompts, such as `query`.
            dimensions: Leading values to keep; the model's own number if None.

        Returns:
            float32 [num_texts, dimensions].

        Raises:
            RequestError: The server refused the request or cannot be reached.
        """
        return self.embed_detailed(texts, prompt_name=prompt_name, dimensions=dimensions).vectors

    def embed_detailed(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
    ) -> Embeddings:
        """As `embed`, with token counts and the server's timings."""
        if isinstance(texts, str):
            raise TypeError("texts is one string: put it in a list")
        if not texts:
            # Only an answer tells the model's number of dimensions.
            probe = self.embed_detailed(["-"], prompt_name=prompt_name, dimensions=dimensions)
            return replace(probe, vectors=probe.vectors[:0], num_tokens=0, num_truncated=0)
        body: dict[str, object] = {"input": list(texts), "encoding_format": "base64"}
        optional = {"model": self._model, "prompt_name": prompt_name, "dimensions": dimensions}
        body.update({key: value for key, value in optional.items() if value is not None})
        return _read_embeddings(self._send("POST", "/v1/embeddings", body), len(texts))

    def models(self) -> list[str]:
        """Ids of the served models."""
        answer: Any = self._send("GET", "/v1/models").json()
        return [str(model["id"]) for model in answer["data"]]

    def ready(self) -> bool:
        """Whether a worker has answered a real step lately. Never raises for a server that is down."""
        try:
            return self._http.get("/ready").is_success
        except httpx2.TransportError:
            return False

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> httpx2.Response:
        num_retries = 0
        while True:
            try:
                response = self._http.request(method, path, json=body)
            except httpx2.TimeoutException as error:
                problem = Problem(f"{self._base_url} did not answer in time: {error}")
                raise RequestError(problem) from error
            except httpx2.TransportError as error:
                problem = Problem(f"cannot reach {self._base_url}: {error}; is the server running?")
                raise RequestError(problem) from error
            if response.is_success:
                return response
            if (
                response.status_code not in RETRIED_STATUSES
                or num_retries >= self._retry.max_retries
            ):
                raise RequestError(
                    read_problem(response.status_code, response.content),
                    status=response.status_code,
                    request_id=response.headers.get("x-request-id"),
                )
            time.sleep(self._retry.delay_s(num_retries, response.headers.get("retry-after")))
            num_retries += 1


def _read_embeddings(response: httpx2.Response, num_texts: int) -> Embeddings:
    answer: Any = response.json()
    rows: list[Any] = sorted(answer["data"], key=lambda row: int(row["index"]))
    if [row["index"] for row in rows] != list(range(num_texts)):
        raise RequestError(
            Problem(f"the server answered {len(rows)} rows for {num_texts} texts"),
            status=response.status_code,
            request_id=response.headers.get("x-request-id"),
        )
    packed = b"".join(base64.b64decode(row["embedding"]) for row in rows)
    vectors = np.frombuffer(packed, dtype="<f4").reshape(num_texts, -1).astype(np.float32)
    headers = response.headers
    return Embeddings(
        vectors=vectors,
        model=str(answer["model"]),
        num_tokens=int(answer["usage"]["prompt_tokens"]),
        num_truncated=int(headers.get("x-flowerbed-truncated", 0)),
        space=headers.get("x-flowerbed-space"),
        queue_us=_integer(headers.get("x-flowerbed-queue-us")),
        step_us=_integer(headers.get("x-flowerbed-step-us")),
        request_id=headers.get("x-request-id"),
    )


def _integer(header: str | None) -> int | None:
    return int(header) if header is not None else None
