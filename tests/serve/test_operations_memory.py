"""OP-01 and OP-03: a start that leaves nothing for the first request, steps without memory, and uploads
that hold it.

What a step finds is patched into the worker's process: where it has more tokens than may fit, torch's
own allocator is asked for more than any machine has.
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest

from flowerbed.rose.engine import WARM_UP_TOKENS
from serve.callers import Http
from serve.load import resident_bytes
from serve.systems import System, serve, until

RECORD = """
import sys
from flowerbed.rose.engine import Engine
step = Engine.step
def told(self, batch):
    print("STEP", type(batch).__name__, batch.num_tokens, file=sys.stderr, flush=True)
    return step(self, batch)
Engine.step = told
"""
SQUEEZE = """
import torch
from flowerbed._core import Batch
from flowerbed.rose.engine import Engine
step = Engine.step
def squeezed(self, batch):
    if isinstance(batch, Batch) and batch.num_tokens > 100:
        torch.empty(1 << 50, dtype=torch.uint8)
    return step(self, batch)
Engine.step = squeezed
"""
GOOD = [f"a text of number {number} that fits" for number in range(64)]
NEVER_FITS = "word " * 200
MAX_BODIES = 256 << 20
"""Bytes of request bodies that a gateway holds; see crates/ivy/src/body.rs."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    folder = tmp_path_factory.mktemp("memory")
    with serve(folder, "--max-batch-tokens", "384", patch=SQUEEZE) as running:
        yield running


def embed(system: System, inputs: object) -> np.ndarray:
    with httpx2.Client(base_url=system.address, timeout=60) as client:
        return Http(client).embed(inputs)


def num_without_memory(system: System) -> float:
    return system.metric("flowerbed_chunks_shed_total", reason="out_of_memory")


def test_OP_01_ready_comes_after_steps_of_every_size_and_one_through_the_whole_worker(
    tmp_path: Path,
) -> None:
    budgets = ("--max-batch-tokens", "100", "--saturation-batch-tokens", "700")
    with serve(tmp_path, *budgets, patch=RECORD) as system:
        lines = [line.split() for line in system.log.read_text().splitlines()]
        steps = [(line[1], int(line[2])) for line in lines if line[:1] == ["STEP"]]
        own = [num_tokens for kind, num_tokens in steps if kind == "PackedBatch"]
        assert set(own) == {*WARM_UP_TOKENS, 100, 700}
        assert steps[len(own)] == ("Batch", 1)  # Tulip's probe


def test_OP_03_a_batch_without_enough_memory_is_run_in_halves(system: System) -> None:
    worker = system.children()["worker-0"]
    expected = np.concatenate([embed(system, text) for text in GOOD])
    np.testing.assert_allclose(embed(system, GOOD), expected, atol=1e-5)
    assert "can't allocate memory" in system.log.read_text()
    assert num_without_memory(system) == 0
    assert system.is_ready()
    assert system.children()["worker-0"] == worker


def test_OP_03_an_input_that_never_fits_fails_alone_and_says_so_and_twice_restarts_the_worker(
    system: System,
) -> None:
    worker = system.children()["worker-0"]
    expected = embed(system, GOOD[:16])
    with ThreadPoolExecutor(17) as pool:
        too_long = pool.submit(system.embed, ["short", NEVER_FITS])
        good = [pool.submit(embed, system, text) for text in GOOD[:16]]
        for number, answer in enumerate(good):
            np.testing.assert_allclose(answer.result()[0], expected[number], atol=1e-5)
    check_refusal(too_long.result())
    assert num_without_memory(system) == 1
    np.testing.assert_allclose(embed(system, GOOD[:16]), expected, atol=1e-5)
    assert system.children()["worker-0"] == worker

    check_refusal(system.embed(["short", NEVER_FITS]))
    until(lambda: "exit code 70: its device failed" in system.log.read_text(), 10.0)
    until(system.is_ready)
    assert "out of memory twice within a minute" in system.log.read_text()
    assert system.children()["worker-0"] != worker
    np.testing.assert_allclose(embed(system, GOOD[:16]), expected, atol=1e-5)


def test_uploads_that_stall_hold_no_more_than_their_share_and_give_it_back(
    system: System,
) -> None:
    gateway = system.children()["gateway"]
    assert system.embed("short").status_code == 200
    before = resident_bytes(gateway)
    for _ in range(2):
        stalled = [upload(system.address, 40 << 20) for _ in range(2)]  # too large
        stalled += [upload(system.address, 30 << 20) for _ in range(38)]
        assert system.embed("short").status_code == 200
        held = resident_bytes(gateway) - before
        for connection in stalled:
            connection.close()
        assert MAX_BODIES / 2 < held < MAX_BODIES * 1.25
        until(lambda: resident_bytes(gateway) - before < MAX_BODIES / 4)


def upload(address: str, num_bytes: int) -> socket.socket:
    """A request whose body lacks its end."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: {num_bytes + 1}\r\n\r\n"
    connection.sendall(head.encode() + b"{" + b" " * (num_bytes - 1))
    return connection


def check_refusal(answer: httpx2.Response) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unavailable", "input[1]")
    assert "not enough memory for this input, even alone" in error["message"]
