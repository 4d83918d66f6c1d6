"""OP-06 and its kin: an engine that raises, hangs or loses its device. Each breaks the engine by a
patch in the worker's process; nothing in the product knows of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest

from serve.callers import Http
from serve.systems import System, serve, until

BREAK = """
import time
from collections import deque
from flowerbed import worker
from flowerbed.errors import DeviceError
from flowerbed.rose.engine import Engine
step = Engine.step
POISON, HANG, FAULT, LATE = 10_000, 10_001, 10_002, 10_003  # ids of words that the tests send
HANG_AFTER = 10_004
class Held(deque):
    def append(self, rows):
        super().append(rows)
        if getattr(rows, "mode", "") == "hang":
            time.sleep(3600)
worker.deque = Held
def broken(self, batch):
    ids = set(memoryview(batch.ids()).cast("i"))
    if POISON in ids:
        raise RuntimeError("a step that raises")
    if HANG in ids:
        time.sleep(3600)
    if FAULT in ids:
        raise DeviceError("an illegal memory access was encountered")
    rows = step(self, batch)
    if LATE in ids:
        rows.host = rows_that_raise
    if HANG_AFTER in ids:
        rows.mode = "hang"
    return rows
def rows_that_raise():
    raise RuntimeError("a step that raises")
Engine.step = broken
"""
POISON, HANG, FAULT, LATE, HANG_AFTER = [10_000], [10_001], [10_002], [10_003], [10_004]
GOOD = [f"a good text of number {number}" for number in range(32)]


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with serve(folder, "--step-timeout", "2", "--log-format", "json", patch=BREAK) as running:
        yield running


def embed(system: System, inputs: object) -> np.ndarray:
    with httpx2.Client(base_url=system.address, timeout=60) as client:
        return Http(client).embed(inputs)


@pytest.mark.parametrize("poison", [POISON, LATE], ids=["forward", "rows"])
def test_OP_06_a_step_that_raises_for_one_item_fails_that_one_alone(
    system: System, poison: list[int]
) -> None:
    worker = system.children()["worker-0"]
    expected = embed(system, GOOD)
    with ThreadPoolExecutor(33) as pool:
        poisoned = [pool.submit(system.embed, [poison, poison]) for _ in range(3)]
        good = [pool.submit(embed, system, text) for text in GOOD]
        for number, answer in enumerate(good):
            np.testing.assert_allclose(answer.result()[0], expected[number], atol=1e-5)
        for answer in poisoned:
            assert answer.result().status_code == 500
            error = answer.result().json()["error"]
            assert error["code"] == "engine_failed"
            assert "a step that raises" not in error["message"]
    assert system.is_ready()
    assert system.children()["worker-0"] == worker
    np.testing.assert_allclose(embed(system, GOOD[0])[0], expected[0], atol=1e-5)


def test_OP_06_a_step_that_hangs_is_noticed_and_the_worker_started_again(system: System) -> None:
    expected = embed(system, GOOD[0])
    worker = system.children()["worker-0"]
    with ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(system.embed, [HANG])
        answer = hanging.result(timeout=10)  # silence is no answer
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    until(lambda: not system.is_ready(), 5.0)
    until(system.is_ready)
    assert system.children()["worker-0"] != worker
    np.testing.assert_allclose(embed(system, GOOD[0]), expected, atol=1e-6)
    log = system.log.read_text()
    assert "a step takes longer than its limit" in log
    assert "worker-0 ended" in log
    assert "killed by SIGKILL" in log


def test_OP_06_a_worker_that_hangs_between_two_steps_is_noticed_and_started_again(
    system: System,
) -> None:
    expected = embed(system, GOOD[0])
    worker = system.children()["worker-0"]
    assert embed(system, [HANG_AFTER]).shape == (1, 384)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(system.embed, GOOD[0]).result(timeout=10)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    until(lambda: system.children().get("worker-0") not in (None, worker), 10.0)
    until(system.is_ready)
    np.testing.assert_allclose(embed(system, GOOD[0]), expected, atol=1e-6)
    assert "the thread that pulls batches does not come for it" in system.log.read_text()


def test_a_device_fault_ends_the_worker_and_is_told_with_its_reason(system: System) -> None:
    answer = system.embed([FAULT])
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    until(lambda: "exit code 70: its device failed" in system.log.read_text(), 10.0)
    assert not system.is_ready()
    until(system.is_ready)
    assert embed(system, GOOD[0]).shape == (1, 384)


def test_nothing_of_a_text_is_logged(system: System) -> None:
    log = Path(system.log).read_text()
    assert "a good text" not in log
