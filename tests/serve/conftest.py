"""One whole system for the tests of this folder: supervisor, Ivy, Tulip, ROSE, on the packaged model."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import numpy as np
import pytest

from flowerbed.background import RunningServer, serving
from serve.callers import Http, Tei

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@pytest.fixture(scope="session")
def server() -> Generator[RunningServer]:
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def http(server: RunningServer) -> Generator[Http]:
    with httpx2.Client(base_url=server.address, timeout=60) as client:
        yield Http(client)


@pytest.fixture(scope="session")
def tei(http: Http) -> Tei:
    return Tei(http.client)


@pytest.fixture(scope="session")
def reference(minilm_folder: Path) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder), device="cpu")


@pytest.fixture
def golden(http: Http) -> Generator[None]:
    """ALIVE: straight after the test, a known request still gets the vector that it got before."""
    before = http.embed("a golden request")
    yield
    np.testing.assert_allclose(http.embed("a golden request"), before, atol=1e-6)
    assert http.client.get("/ready").status_code == 200
