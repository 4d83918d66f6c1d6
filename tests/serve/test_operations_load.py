"""OP-07, OP-09, OP-13 and OP-20: callers that hang up, callers that are too many, lengths of every
kind."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from urllib.parse import SplitResult, urlsplit

import httpx2
import numpy as np
import pytest

from flowerbed.background import RunningServer
from serve import systems
from serve.callers import Http
from serve.systems import System, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def system(server: RunningServer) -> System:
    return systems.of(server)


def executed_tokens(system: System) -> float:
    return system.metric("flowerbed_step_tokens_sum", kind="real")


def queued_tokens(system: System) -> float:
    return system.metric("flowerbed_queue_tokens")


TEXT = "word " * 125  # 127 tokens
NUM_TEXTS = 16
TOKENS_A_REQUEST = 127 * NUM_TEXTS


def request_head(body: bytes) -> bytes:
    head = "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode()


def test_OP_07_work_of_200_callers_who_hung_up_is_not_run(system: System, golden: None) -> None:
    body = json.dumps({"input": [TEXT] * NUM_TEXTS}).encode()
    head = request_head(body)
    url = urlsplit(system.address)
    phases = [head[:20], head + body[: len(body) // 2], head + body, head + body]
    before = executed_tokens(system)
    connections = []
    for number in range(200):
        connection = socket.create_connection((url.hostname, url.port))
        connection.sendall(phases[number % len(phases)])
        connections.append(connection)
    until(lambda: queued_tokens(system) > TOKENS_A_REQUEST)
    for connection in connections:
        connection.close()
    until(lambda: system.metric("flowerbed_requests_open") == 1)  # the scrape itself
    until(lambda: queued_tokens(system) == 0, 10.0)
    at_rest = executed_tokens(system)
    time.sleep(0.3)
    assert executed_tokens(system) - at_rest <= 1  # a probe's token
    assert at_rest - before < 0.25 * 100 * TOKENS_A_REQUEST, "gone callers' work was run"
    assert system.metric("flowerbed_chunks_shed_total", reason="cancelled") > 0


async def _post(url: SplitResult, body: bytes) -> tuple[int, int]:
    """Status and Retry-After (or 0). A cancelled call cuts its connection, which httpx does not."""
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(request_head(body) + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        return int(head.split()[1]), int(head.partition("retry-after: ")[2].split("\r")[0] or 0)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)  # the transport closes in the next turn


async def _crowd(
    system: System, num_callers: int, seconds: float
) -> tuple[Counter[str], list[float]]:
    """Callers that ask again as soon as they are answered, or when they are told to come back."""
    counts: Counter[str] = Counter()
    refusals_s: list[float] = []
    ends_at = time.monotonic() + seconds
    body = json.dumps({"input": [TEXT] * NUM_TEXTS, "encoding_format": "base64"}).encode()

    async def ask() -> None:
        while True:
            began = time.monotonic()
            status, retry_after_s = await _post(urlsplit(system.address), body)
            if time.monotonic() > ends_at:
                return
            counts[str(status)] += 1
            if status == 429:
                refusals_s.append(time.monotonic() - began)
                counts["without a wait"] += retry_after_s < 1
                await asyncio.sleep(retry_after_s)

    callers = [asyncio.create_task(ask()) for _ in range(num_callers)]
    await asyncio.sleep(seconds)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return counts, refusals_s


def test_OP_09_far_over_capacity_the_excess_is_refused_at_once_and_the_rest_gets_through(
    system: System, golden: None
) -> None:
    before = executed_tokens(system)
    # A queue holds 10 s of work; these bring many times that at once, on two cores and on sixteen.
    counts, refusals_s = asyncio.run(_crowd(system, num_callers=300, seconds=6.0))
    executed = executed_tokens(system) - before
    # The device was never idle, so what it executed is the capacity; one request may be half done.
    assert (counts["200"] + 1) * TOKENS_A_REQUEST >= 0.8 * executed, (counts, executed)
    assert counts["200"] > 0
    assert counts["429"] > 100, counts
    assert median(refusals_s) < 1.0  # these callers and the server share the same few cores
    assert counts["without a wait"] == 0
    assert set(counts) <= {"200", "429", "without a wait"}, counts
    until(lambda: queued_tokens(system) == 0, 10.0)


def test_OP_13_mixed_lengths_from_many_callers_are_all_answered(
    system: System, http: Http, golden: None
) -> None:
    lengths = (1, 20, 100, 1_000, 4_000)
    done: list[float] = []

    def call(seed: int) -> None:
        rng = random.Random(seed)
        with httpx2.Client(base_url=system.address, timeout=60) as client:
            for _ in range(3):
                num_inputs = rng.choice((1, 1, 2, 5, 16))
                inputs = ["word " * rng.choice(lengths) for _ in range(num_inputs)]
                while (answer := Http(client).post({"input": inputs})).status_code == 429:
                    done.append(time.monotonic())  # an answer too
                    time.sleep(int(answer.headers["retry-after"]))
                assert answer.status_code == 200, answer.text
                assert len(answer.json()["data"]) == num_inputs
                done.append(time.monotonic())

    started = time.monotonic()
    with ThreadPoolExecutor(24) as pool:
        for call_done in [pool.submit(call, seed) for seed in range(24)]:
            call_done.result()
    assert len(done) >= 72
    moments = [started, *sorted(done)]
    assert max(b - a for a, b in pairwise(moments)) < 5.0, "no progress"


def test_OP_20_31_short_texts_and_a_long_one_are_not_padded_to_one_length(
    system: System, http: Http, golden: None
) -> None:
    inputs = [*(f"a text of number {number}" for number in range(31)), "word " * 300]
    alone = np.concatenate([http.embed(text) for text in inputs])
    padding, steps = padding_and_steps(system)
    np.testing.assert_allclose(http.embed(inputs), alone, atol=1e-5)
    more_padding, more_steps = padding_and_steps(system)
    # A step is padded at its end to a multiple of 64 tokens; a common length would take 7,000.
    assert more_padding - padding < 64 * (more_steps - steps)


def padding_and_steps(system: System) -> tuple[float, float]:
    name = "flowerbed_step_tokens"
    return system.metric(f"{name}_sum", kind="padding"), system.metric(
        f"{name}_count", kind="padding"
    )
