"""The joint on an NVIDIA GPU: events and pinned rows of two streams, and a device that fails.

The engine is a stub of torch calls that keeps a stream busy for as long as a test wants; no model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch

from serve.joint import WIDTH, joint

pytestmark = pytest.mark.gpu

LONG_S = 0.6
FAULT = 700
"""Id that makes a kernel of the step fail."""


BUFFER_BYTES, NUM_BUFFERS = 1 << 14, 256


@cache
def _buffers() -> Iterator[torch.Tensor]:
    """Pinned memory, one buffer after another: allocating it waits for the device, and it is never freed."""
    memory = torch.zeros(NUM_BUFFERS, BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
    return cycle(memory)


def _pinned(size: int, dtype: torch.dtype) -> torch.Tensor:
    return next(_buffers())[: size * dtype.itemsize].view(dtype)


class Rows:
    """On their way through pinned memory; implements `Rows` of `flowerbed._core`."""

    mode = "eager"

    def __init__(self, device: torch.Tensor) -> None:
        self.padding_tokens = 3
        self._host = _pinned(device.numel(), torch.uint8)
        self._host.copy_(device, non_blocking=True)
        self._event = torch.cuda.Event(blocking=True)
        self._event.record()

    def device_rows(self) -> tuple[int, int, int, int]:
        host = self._host
        return self._event.cuda_event, host.data_ptr(), host.numel(), torch.cuda.current_device()

    def host(self) -> memoryview:
        raise AssertionError("the rows are taken by their event")


class Engine:
    """A row is the sum of its sequence's ids, WIDTH times. Steps of the normal stream take LONG_S."""

    streams = ("online", "normal")
    steps_in_flight = 2

    def __init__(self) -> None:
        self.launched: list[str] = []
        self._streams = {
            "online": torch.cuda.Stream(priority=-1),
            "normal": torch.cuda.Stream(priority=0),
        }
        # The first launch of a kernel may wait for what runs, and so may memory that a stream has not
        # had before.
        for stream in self._streams.values():
            with torch.cuda.stream(stream):
                held = [
                    _rows([1] * sum(lengths), [0, *np.cumsum(lengths).tolist()])
                    for lengths in ([1], [3], [64], [300], [2, 30]) * 2
                ]
                torch.zeros(1, device="cuda")[_to_device([0, 0])]  # as a fault's kernel
            stream.synchronize()
            held.clear()
        self._cycles = cycles_a_second()

    def step(self, batch: Any) -> Rows:
        ids = np.frombuffer(batch.ids(), np.int32).tolist()
        bounds = np.frombuffer(batch.cu_seqlens(), np.int32).tolist()
        with torch.cuda.stream(self._streams[batch.stream]):
            if batch.stream == "normal":
                torch.cuda._sleep(int(LONG_S * self._cycles))
            self.launched.append(batch.stream)
            return _rows(ids, bounds)


def _rows(ids: list[int], bounds: list[int]) -> Rows:
    on_device, ends = (_to_device(values) for values in (ids, bounds))
    if FAULT in ids:
        torch.zeros(1, device="cuda")[on_device]  # its bounds are checked there
    sums = torch.zeros(len(ids) + 1, dtype=torch.int64, device="cuda")
    sums[1:] = on_device.cumsum(0)
    totals = sums[ends].diff().float()
    rows = totals[:, None].expand(-1, WIDTH).contiguous().view(torch.uint8).flatten()
    statuses = torch.zeros(len(bounds) - 1, dtype=torch.uint8, device="cuda")
    return Rows(torch.cat([rows, statuses]))


def _to_device(values: list[int]) -> torch.Tensor:
    """Does not wait for the stream, as a copy from pageable memory would."""
    host = _pinned(len(values), torch.int64)
    host.copy_(torch.tensor(values))
    return host.to("cuda", non_blocking=True)


def cycles_a_second() -> float:
    """Of a device that has left its idle clock."""
    cycles = 500_000_000
    torch.cuda._sleep(cycles)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / (start.elapsed_time(end) / 1_000)


def test_queries_are_answered_beside_two_long_steps_in_flight(tmp_path) -> None:
    engine = Engine()
    sizes = {"max_batch_tokens": 64, "saturation_batch_tokens": 64, "cost_per_second": 1_000.0}
    with joint(tmp_path, engine, **sizes) as running:
        assert set(engine.launched) == {"online"}, "probes are queries"
        started = time.perf_counter()
        bulk: dict[int, tuple[float, float]] = {}

        def re_index(number: int) -> None:
            row = running.embed([[number] * 64], "bulk")[0]
            bulk[number] = (float(row[0]), time.perf_counter() - started)

        threads = [threading.Thread(target=re_index, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        while engine.launched.count("normal") < 2:
            assert time.perf_counter() - started < LONG_S, (
                "the second waits for no end of the first"
            )
            time.sleep(0.001)
        time.sleep(LONG_S / 6)
        assert engine.launched.count("normal") == 2, "two in flight, and no third"
        latencies = []
        for number in range(20):
            sent = time.perf_counter()
            rows = running.embed([[number, 1], [2] * 30])
            latencies.append(time.perf_counter() - sent)
            np.testing.assert_array_equal(rows, [[number + 1.0] * WIDTH, [60.0] * WIDTH])
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - started
        assert max(latencies) < LONG_S, "no query waits for a step of the other stream"
        assert {number: total for number, (total, _) in bulk.items()} == {
            number: 64.0 * number for number in range(1, 5)
        }
        assert elapsed >= 4 * LONG_S * 0.8
        metrics = running.metrics()
        step_s = value(metrics, "flowerbed_step_seconds_sum", 'mode="eager"')
        copy_s = value(metrics, "flowerbed_result_copy_seconds_sum", "")
        assert 4 * LONG_S * 0.8 <= step_s <= elapsed + sum(latencies) + 1.0
        assert 0 < copy_s < 0.1
        print(
            f"queries beside long steps, by HTTP: p50 {1e3 * float(np.median(latencies)):.2f} ms,",
            f"worst {1e3 * max(latencies):.2f} ms",
        )


def test_many_small_steps_keep_their_rows_apart(tmp_path) -> None:
    engine = Engine()
    with joint(tmp_path, engine) as running:

        def ask(first: int) -> None:
            for number in range(first, first + 50):
                try:
                    rows = running.embed([[number, 2, 3]])
                    np.testing.assert_array_equal(rows, [[number + 5.0] * WIDTH])
                except AssertionError as failure:
                    failures.append(failure)

        failures: list[AssertionError] = []
        threads = [threading.Thread(target=ask, args=(50 * index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]


FAULTY = """
import json, sys, threading, time
from pathlib import Path
from serve.joint import joint
from serve.test_joint_gpu import FAULT, Engine
found = []
with joint(Path(sys.argv[1]), Engine()) as running:
    bulk = threading.Thread(target=lambda: found.append(running.ask([[1] * 64], "bulk")[0]))
    bulk.start()
    time.sleep(0.1)
    found.append(running.ask([[FAULT]])[0])
    bulk.join()
    running.pulling.join(20.0)
    found += [running.server.is_faulted, not running.pulling.is_alive()]
print(json.dumps(found), flush=True)
"""
"""In a process of its own, since no kernel runs in it afterwards."""


def test_a_fault_of_the_device_fails_both_streams_and_ends_the_worker(tmp_path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FAULTY, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines, done.stderr
    assert json.loads(lines[0]) == [503, 503, True, True]


def value(metrics: str, name: str, label: str) -> float:
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in metrics.splitlines()
        if line.startswith(name + "{") and label in line
    )
