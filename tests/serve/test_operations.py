"""OP-02 and OP-10: starting, restarting and ending, as clients and operators see it."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest

from flowerbed.hub import DEFAULT_MODEL_ID
from serve.callers import Http, cosines
from serve.systems import (
    System,
    families,
    flowerbed,
    free_port,
    hang_up,
    is_gone,
    running,
    serve,
    until,
)

pytestmark = pytest.mark.timeout(180)

LONG_WORK = ["word " * 250] * 32


class Callers:
    """Threads that ask for short texts all the time and keep every answer."""

    def __init__(self, system: System, num_threads: int = 4) -> None:
        self.codes: Counter[int | str] = Counter()
        self.num_wrong = 0
        self._system = system
        self._expected = self._vectors()
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(num_threads)
        self._jobs = [self._pool.submit(self._ask, seed) for seed in range(num_threads)]

    def _vectors(self) -> np.ndarray:
        with httpx2.Client(base_url=self._system.address, timeout=60) as client:
            return Http(client).embed([f"text {index}" for index in range(20)])

    def _ask(self, seed: int) -> None:
        with httpx2.Client(base_url=self._system.address, timeout=60) as client:
            index = seed
            while not self._ended.is_set():
                index = (index + 7) % 20
                body = {"input": f"text {index}"}
                try:
                    response = client.post("/v1/embeddings", json=body)
                except httpx2.TransportError as error:
                    self.codes[type(error).__name__] += 1
                    continue
                self.codes[response.status_code] += 1
                if response.status_code == 200:
                    row = np.array(response.json()["data"][0]["embedding"], dtype=np.float32)
                    self.num_wrong += bool(
                        cosines(row[None], self._expected[index][None])[0] < 0.9999
                    )

    def finish(self) -> None:
        self._ended.set()
        for job in self._jobs:
            job.result(timeout=60)
        self._pool.shutdown()


def test_a_rolling_restart_of_two_workers_under_load_loses_nothing(tmp_path: Path) -> None:
    with serve(tmp_path, "--workers", "2") as system:
        before = system.children()
        assert set(before) == {"gateway", "worker-0", "worker-1"}
        callers = Callers(system)
        hang_up(system)

        def is_done() -> bool:
            assert system.is_ready()
            now = system.children()
            is_new = all(
                now.get(name) not in (None, before[name]) for name in ("worker-0", "worker-1")
            )
            return is_new and system.log.read_text().count("was restarted") == 2

        until(is_done, 90.0)
        time.sleep(0.5)
        callers.finish()
        assert set(callers.codes) == {200}, callers.codes
        assert callers.codes[200] > 50
        assert callers.num_wrong == 0
        assert system.children()["gateway"] == before["gateway"]
        assert system.stop() == 0


def test_OP_02_ready_is_503_until_a_request_would_succeed_and_health_answers_at_once(
    tmp_path: Path,
) -> None:
    socket = f"unix:{tmp_path}/w.sock"
    command = flowerbed("gateway", "--worker", socket, "--port", "0")
    with running(command, tmp_path / "gateway.log") as gateway:
        assert httpx2.get(f"{gateway.address}/health").status_code == 200
        assert not gateway.is_ready()
        refused = gateway.embed("x")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        port = free_port()
        command = flowerbed("worker", "--listen", socket, "--metrics-port", str(port))
        with running(command, tmp_path / "worker.log") as worker:
            assert worker.facts == gateway.facts == f"model {DEFAULT_MODEL_ID}"
            until(gateway.is_ready)
            for _ in range(20):  # it does not flip back
                assert gateway.embed("x").status_code == 200
                assert gateway.is_ready()
            alone = httpx2.get(f"http://127.0.0.1:{port}/metrics").text
            assert families(alone)["flowerbed_step_seconds"] == "histogram"
            # The worker goes first; the gateway lives on, not ready, and ends by itself later.
            assert worker.stop() == 0
            until(lambda: not gateway.is_ready(), 5.0)
            assert gateway.embed("x").status_code == 503
        assert gateway.stop() == 0
        assert not Path(socket.removeprefix("unix:")).exists()


def test_OP_10_sigterm_under_load_finishes_what_was_accepted_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with serve(tmp_path) as system:
        children = system.children()
        socket = next(
            part.removeprefix("unix:")
            for part in Path(f"/proc/{children['worker-0']}/cmdline").read_text().split("\0")
            if part.startswith("unix:")
        )
        with ThreadPoolExecutor(4) as pool:
            accepted = [pool.submit(system.embed, LONG_WORK) for _ in range(4)]
            until(lambda: system.metric("flowerbed_requests_open") >= 5)  # the scrape is one
            system.process.send_signal(signal.SIGTERM)
            until(lambda: not system.is_ready(), 1.0)
            with pytest.raises(httpx2.TransportError):
                system.embed("too late")
            answers = [answer.result() for answer in accepted]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert [len(answer.json()["data"]) for answer in answers] == [len(LONG_WORK)] * 4
        assert system.process.wait(20) == 0
        assert all(is_gone(pid) for pid in children.values())
        assert not Path(socket).parent.exists()


def test_OP_10_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serve(tmp_path) as system:
        children = system.children()
        started = end_with_work_left(system, signal.SIGTERM, signal.SIGINT)
        assert system.process.wait(20) == 128 + signal.SIGINT
        assert time.monotonic() - started < 5
        assert all(is_gone(pid) for pid in children.values())


def end_with_work_left(system: System, *signals: signal.Signals) -> float:
    """Signals a system that has seconds of work; returns when. Its caller gets no answer."""
    with ThreadPoolExecutor(1) as pool:
        cut = pool.submit(system.embed, LONG_WORK * 16)
        until(lambda: system.metric("flowerbed_requests_open") >= 2)
        started = time.monotonic()
        for signum in signals:
            system.process.send_signal(signum)
            time.sleep(0.2)
        assert isinstance(cut.exception(), httpx2.TransportError)
    return started


SLOW_STEPS = """
import time
from flowerbed._core import Batch
from flowerbed.rose.engine import Engine
step = Engine.step
def slow(self, batch):
    if isinstance(batch, Batch) and batch.num_tokens > 1:  # no probe
        time.sleep(130)
    return step(self, batch)
Engine.step = slow
"""


@pytest.mark.nightly
def test_a_request_may_take_as_long_as_the_operator_allows(tmp_path: Path) -> None:
    allowed = ("--request-timeout", "300", "--step-timeout", "300")
    with serve(tmp_path, *allowed, patch=SLOW_STEPS) as system:
        assert system.embed("a text", timeout_s=300).status_code == 200


def test_prompts_and_aliases_of_a_config_file_reach_gateway_and_worker(
    tmp_path: Path, http: Http
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        '[gateway]\nlog_format = "json"\nlog_level = "debug"\ndrain_timeout_s = 0.5\n'
        '[[models]]\naliases = ["ada"]\nprompts = { query = "search: " }\n'
        "[worker]\nmax_batch_tokens = 256\n"
    )
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with serve(tmp_path, "--config", str(file)) as system:
        with httpx2.Client(base_url=system.address, timeout=60) as client:
            asked = Http(client).embed("a secret text", prompt_name="query", model="ada")
            named = {"x-request-id": "mine-7", "traceparent": trace}
            for headers in (named, {"traceparent": "made up"}):
                answer = client.post(
                    "/v1/embeddings", json={"input": "a secret text"}, headers=headers
                )
                assert answer.status_code == 200
        assert cosines(asked, http.embed("search: a secret text"))[0] > 0.99999
        assert (
            answer.headers["x-flowerbed-space"]
            != http.post({"input": "x"}).headers["x-flowerbed-space"]
        )
        # A drain that is too short for what is open ends it, and is no clean end.
        end_with_work_left(system, signal.SIGTERM)
        assert system.process.wait(20) == 1
    text = system.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"timestamp", "level", "message", "target"} <= set(line) for line in lines)
    requests = [
        line for line in lines if line["message"] == "request" and line["route"] == "/v1/embeddings"
    ]
    requests, [cut] = requests[:3], requests[3:]
    assert cut["code"] == 499
    assert [line.get("traceparent") for line in requests] == [None, trace, None]
    assert requests[1]["id"] == "mine-7"
    assert all(line["level"] == "DEBUG" and line["code"] == 200 for line in requests)
    assert "secret" not in text
