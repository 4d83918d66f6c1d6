"""One whole system for the tests of this folder: supervisor, Ivy, Tulip, ROSE, on the packaged model."""

from __future__ import annotations

from collections.abc import Generator

import httpx2
import numpy as np
import pytest

from flowerbed.background import RunningServer, serving
from serve.callers import Http


@pytest.fixture(scope="session")
def server() -> Generator[RunningServer]:
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def http(server: RunningServer) -> Generator[Http]:
    with httpx2.Client(base_url=server.address, timeout=60) as client:
        yield Http(client)


@pytest.fixture
def golden(http: Http) -> Generator[None]:
    """ALIVE: straight after the test, a known request still gets the vector that it got before."""
    before = http.embed("a golden request")
    yield
    np.testing.assert_allclose(http.embed("a golden request"), before, atol=1e-6)
    assert http.client.get("/ready").status_code == 200
