"""Rows that come by an event, on two streams with two steps in flight: the whole server, with the
packaged model on the CPU and a library in place of the GPU's driver that copies them when the test says.
"""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from serve.systems import System, serve, until

LONG_S = 0.4
FAULT = [10_002]  # id of a word
QUERY, DOCUMENT = "a query", "a document of a re-index"

ON_A_GPU = f"""
import ctypes
from collections import deque
import numpy as np
from flowerbed._core import Batch
from flowerbed.rose.engine import Engine

class Event(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("after_us", "status", "source", "target", "size")]

class Rows:
    mode, padding_tokens = "replay", 5
    def __init__(self, done, after_us, status):
        self.source = np.array(done.numpy())
        self.target = np.zeros_like(self.source)
        source, target = (array.ctypes.data for array in (self.source, self.target))
        self.event = Event(after_us, status, source, target, self.source.nbytes)
    def device_rows(self):
        return ctypes.addressof(self.event), self.target.ctypes.data, self.target.nbytes, 0
    def host(self):
        raise AssertionError("the rows are taken by their event")

def on_a_gpu(self, batch):
    if not isinstance(batch, Batch):  # of the start
        return step(self, batch)
    ids = np.frombuffer(batch.ids(), np.int32)
    long = batch.stream == "normal"
    return Rows(step(self, batch), {int(LONG_S * 1e6)} if long else 0, 700 if {FAULT[0]} in ids else 0)

step, Engine.step = Engine.step, on_a_gpu
Engine.streams, Engine.steps_in_flight = ("online", "normal"), 2
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("device-rows")
    driver = folder / "libcuda.so.1"
    source = Path(__file__).with_name("fake_cuda.rs")
    command = ["rustc", "--edition", "2024", "--crate-type", "cdylib", "-A", "warnings"]
    subprocess.run([*command, "-o", driver, source], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(folder))
        with serve(folder, "--max-batch-tokens", "64", patch=ON_A_GPU) as running:
            yield running


def embed(system: System, text: object, **headers: str) -> np.ndarray:
    answer = system.embed(text, **headers)
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]])


def test_a_query_is_answered_beside_long_steps_and_every_row_is_the_models(system: System) -> None:
    expected = embed(system, [QUERY, DOCUMENT])
    assert np.linalg.norm(expected, axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)
    ended: list[float] = []

    def re_index() -> None:
        rows = embed(system, [DOCUMENT] * 32, **{"x-flowerbed-lane": "bulk"})
        np.testing.assert_allclose(rows, np.repeat(expected[1:], 32, axis=0), atol=1e-5)
        ended.append(time.perf_counter())

    thread = threading.Thread(target=re_index)
    started = time.perf_counter()
    thread.start()
    time.sleep(LONG_S / 2)
    np.testing.assert_allclose(embed(system, QUERY), expected[:1], atol=1e-5)
    answered = time.perf_counter()
    thread.join()
    num_steps = 4  # 8 tokens each, 64 a step
    assert ended, "the re-index was answered, and rightly"
    assert ended[0] - started >= num_steps * LONG_S
    assert answered < ended[0]
    assert system.metric("flowerbed_step_seconds_sum", mode="replay") >= num_steps * LONG_S
    assert system.metric("flowerbed_step_tokens_sum", kind="padding") >= 5 * num_steps


def test_a_fault_that_comes_by_an_event_restarts_the_worker(system: System) -> None:
    expected = embed(system, QUERY)
    answers: list[int] = []
    bulk = {"x-flowerbed-lane": "bulk"}
    threads = [
        threading.Thread(
            target=lambda: answers.append(system.embed([DOCUMENT] * 8, **bulk).status_code)
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    time.sleep(LONG_S / 2)
    answers.append(system.embed(FAULT).status_code)
    for thread in threads:
        thread.join()
    assert answers == [503] * 4, "steps in flight on both streams, and what is queued"
    until(lambda: "exit code 70: its device failed" in system.log.read_text(), 10.0)
    assert "cuEventSynchronize gave CUDA_ERROR_ILLEGAL_ADDRESS (700)" in system.log.read_text()
    until(system.is_ready)
    np.testing.assert_allclose(embed(system, QUERY), expected, atol=1e-6)
