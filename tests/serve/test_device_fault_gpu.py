"""A device of a whole system that fails for real: an illegal address in a kernel, memory that is not there.

Each is done by a patch in the worker's process; nothing in the product knows of it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from flowerbed.config import DType
from flowerbed.folder import ModelFolder
from flowerbed.rose.engine import Engine
from references import engine_rows, lowest_cosine
from serve.systems import System, serve, until
from small_models import VOCAB_ROWS, small_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

BREAK = """
import torch
import triton
import triton.language as tl
from flowerbed.rose.engine import Engine
step = Engine.step
NOW, LATER, HUGE = 997, 998, 999  # ids that the tests send
@triton.jit
def write_anywhere(address):
    tl.store(address.to(tl.pointer_type(tl.int32)), 1)
def broken(self, batch):
    ids = set(memoryview(batch.ids()).cast("i"))
    if HUGE in ids:
        free, _ = torch.cuda.mem_get_info()
        torch.empty(2 * free, dtype=torch.uint8, device="cuda")
    if ids & {NOW, LATER}:
        for lane in self._runner._lanes[batch.stream]:
            with torch.cuda.stream(lane._stream):
                if LATER in ids:
                    torch.cuda._sleep(400_000_000)  # until the step is enqueued behind it
                write_anywhere[(1,)](1 << 46)
        if NOW in ids:
            torch.cuda.synchronize()
    return step(self, batch)
Engine.step = broken
"""
NOW, LATER, HUGE = 997, 998, 999
POISON = {"while the step is enqueued": NOW, "while it runs": LATER}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return small_model("bert", tmp_path_factory.mktemp("fault") / "bert")


@pytest.fixture(scope="module")
def system(folder: ModelFolder, tmp_path_factory: pytest.TempPathFactory):
    logs = tmp_path_factory.mktemp("logs")
    with serve(logs, str(folder.path), "--device", "cuda", patch=BREAK) as running:
        yield running
        print(running.log.read_text())


@pytest.fixture(scope="module")
def inputs() -> list[list[int]]:
    rng = np.random.default_rng(4)
    return [rng.integers(0, VOCAB_ROWS - 10, length).tolist() for length in (3, 9, 30, 200)]


@pytest.fixture(scope="module")
def expected(folder: ModelFolder, inputs: list[list[int]]) -> NDArray[np.float32]:
    """In float32, on the CPU."""
    return engine_rows(Engine.load(folder, device="cpu", dtype=DType.FLOAT32), inputs)


def rows(answer: httpx2.Response) -> NDArray[np.float32]:
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


@pytest.mark.parametrize("when", POISON)
def test_an_illegal_address_fails_its_flight_and_the_next_request_is_answered_right(
    system: System, inputs: list[list[int]], expected: NDArray[np.float32], when: str
) -> None:
    assert lowest_cosine(rows(system.embed(inputs)), expected) >= 0.999
    worker = system.children()["worker-0"]
    ended = system.log.read_text().count("exit code 70: its device failed")
    answer = system.embed([[5, POISON[when], 6]])
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "unavailable"
    until(lambda: not system.is_ready(), 5.0)
    refused = system.embed(inputs)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    until(lambda: system.log.read_text().count("exit code 70: its device failed") > ended, 10.0)
    until(system.is_ready, 60.0)
    assert lowest_cosine(rows(system.embed(inputs)), expected) >= 0.999
    assert system.children()["worker-0"] != worker


def test_OP_03_what_lacks_memory_fails_alone_and_its_neighbours_are_right(
    system: System, inputs: list[list[int]], expected: NDArray[np.float32]
) -> None:
    worker = system.children()["worker-0"]
    with ThreadPoolExecutor(len(inputs) + 1) as pool:
        huge = pool.submit(system.embed, [[5, HUGE]])
        good = [pool.submit(system.embed, [ids]) for ids in inputs]
        found = np.concatenate([rows(answer.result()) for answer in good])
    answer = huge.result()
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "not enough memory" in answer.json()["error"]["message"]
    assert lowest_cosine(found, expected) >= 0.999
    assert system.children()["worker-0"] == worker
    assert system.is_ready()
