"""kill -9 of workers at random instants under load: one answer a request, none of them wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve.load import alone, loadgen, texts
from serve.systems import System, until

MAX_PAUSE_S = 1.0
PATIENT_SHARE = 0.8  # of the kills: they wait until something serves
PATIENCE_S = 60.0
ROUND_S = 10
STATUSES = (200, 503, 429)  # one worker alone may have too much to do


@contextmanager
def two_workers() -> Generator[System]:
    program = Path(__file__).with_name("two_workers.py")
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield System(process, process.stdout.readline().strip(), Path(os.devnull))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def plan(pool: list[str], sizes: tuple[int, int], seed: int) -> list[loadgen.Item]:
    rng = random.Random(seed)
    items = []
    for _ in range(300):
        inputs = rng.choices(pool, k=rng.randint(*sizes))
        body = {"input": inputs, "encoding_format": "base64"}
        items.append(loadgen.Item(body, rows=len(inputs), expect=STATUSES, golden=tuple(inputs)))
    return items


def kill_again_and_again(server: System, num_kills: int) -> None:
    """Kills one worker or the other at random instants, mostly while the server serves."""
    rng = random.Random(17)
    for _ in range(num_kills):
        if rng.random() < PATIENT_SHARE:
            until(server.is_ready, PATIENCE_S)
        time.sleep(rng.uniform(0, MAX_PAUSE_S))
        until(lambda: bool(server.workers()))
        os.kill(rng.choice(server.workers()), signal.SIGKILL)


def kill_under_load(num_kills: int) -> list[loadgen.Report]:
    pool = texts.queries(40, seed=21) + texts.documents(40, mean_words=30, seed=22)
    with two_workers() as server, ThreadPoolExecutor() as threads:
        golden = alone(server.address, pool)
        # Open loops: callers of a closed one would only hear more 503s the sooner they come.
        streams = [
            loadgen.Stream("queries", plan(pool, (1, 2), 1), "poisson=20", ROUND_S),
            loadgen.Stream("documents", plan(pool, (16, 40), 2), "poisson=3", ROUND_S, "seed=2"),
        ]
        killing = threads.submit(kill_again_and_again, server, num_kills)
        reports = []
        while not killing.done():
            reports += loadgen.run(server.address, streams, golden)
        killing.result()
        until(server.is_ready, PATIENCE_S)
        again = alone(server.address, pool[:3])
        assert all(abs(again[text] - golden[text]).max() < 1e-4 for text in again)
    return reports


def check(reports: list[loadgen.Report]) -> None:
    statuses: Counter[str] = Counter()
    for report in reports:
        statuses.update(report["by_status"])
    print(statuses)  # `pytest -s` shows how much was served between the kills
    for report in reports:
        # No answer, half an answer and more than one would stand here.
        assert report["errors"] == {}
        assert report["connections_broken"] == 0
        assert sum(report["by_status"].values()) == report["sent"]
        # A wrong vector, a refusal without Retry-After, another status.
        assert report["wrong_reasons"] == []
        assert report["unexpected"] == 0
    assert statuses["200"] > 0


@pytest.mark.timeout(180)
def test_5_kills_of_workers_lose_and_forge_no_answer() -> None:
    check(kill_under_load(5))


@pytest.mark.nightly
def test_200_kills_of_workers_lose_and_forge_no_answer() -> None:
    check(kill_under_load(200))
