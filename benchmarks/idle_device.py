"""Whether a GPU waits for the host between steps: `python benchmarks/idle_device.py FOLDER [--shape 1x128 4x512]`.

For each shape, steps without pause, two in flight, as the worker runs them, measured twice:

- by the kernels' timeline (CUPTI, through torch.profiler): the time between the last kernel of a step and
  the first of the next, less the copies in it. Tracing slows the host, so this is an upper bound;
- without a tracer: what a step takes in that loop beside what it takes where `--deep` of them are enqueued at
  once, so that the device never lacks work.

JSON lines on stdout, a table on stderr.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import machine
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from flowerbed import config
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.lazy import LazyTensor

NUM_STEPS, NUM_TRACED, NUM_ROUNDS = 150, 40, 3
MAX_IDLE = 0.03
MAX_HOST_SHARE = 0.9
"""Of a step's time, up to which the device surely had work while the host enqueued more."""
INPUT_COPY, ROWS_COPY = "Memcpy HtoD", "Memcpy DtoH"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that ran on the device, microseconds."""

    start: float
    end: float
    is_copy: bool
    is_input: bool = False  # the copy that begins a step


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where the time of a traced run of steps went, as shares of it."""

    kernels: float
    copies: float  # with no kernel beside them
    in_steps: float  # between the kernels of one step
    between_steps: float  # between two steps, the copies left out
    num_steps: int
    step_us: float


def timeline(spans: Sequence[Span]) -> Timeline:
    """Divides the time from the first whole step to the last.

    Args:
        spans: Of one stream; each step is a copy of its input, kernels, and a copy of its rows.
    """
    ordered = sorted(spans, key=lambda span: span.start)
    starts = [index for index, span in enumerate(ordered) if span.is_input]
    if len(starts) < 2:
        raise SystemExit("error: the tracer showed no two steps")
    ordered = ordered[starts[0] : starts[-1] + 1]
    first, last = ordered[0].start, ordered[-1].start
    busy = {True: 0.0, False: 0.0}
    gaps = {True: 0.0, False: 0.0}  # beside a copy, so between steps; and within one
    reached = first
    for before, span in zip([ordered[0], *ordered], ordered, strict=False):
        start, end = max(span.start, reached), min(span.end, last)
        gaps[span.is_copy or before.is_copy] += max(0.0, span.start - reached)
        busy[span.is_copy] += max(0.0, end - start)
        reached = max(reached, span.end)
    whole = last - first
    return Timeline(
        kernels=busy[False] / whole,
        copies=busy[True] / whole,
        in_steps=gaps[False] / whole,
        between_steps=gaps[True] / whole,
        num_steps=len(starts) - 1,
        step_us=whole / (len(starts) - 1),
    )


def traced(engine: Engine, batch: PackedBatch) -> Timeline:
    """Steps under the tracer."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run(engine, batch, NUM_TRACED)
        torch.cuda.synchronize()
    spans = [
        Span(
            event.time_range.start,
            event.time_range.end,
            event.name.startswith((INPUT_COPY, ROWS_COPY)),
            event.name.startswith(INPUT_COPY),
        )
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA" and event.time_range.end > event.time_range.start
    ]
    return timeline(spans)


def run(engine: Engine, batch: PackedBatch, count: int) -> float:
    """Microseconds a step, as many in flight as the engine allows."""
    in_flight: deque[LazyTensor] = deque()
    start = time.perf_counter()
    for _ in range(count):
        if len(in_flight) == engine.steps_in_flight:
            in_flight.popleft().wait()
        in_flight.append(engine.step(batch))
    while in_flight:
        in_flight.popleft().wait()
    return (time.perf_counter() - start) / count * 1e6


def enqueued(engine: Engine, batch: PackedBatch, count: int) -> float:
    """Microseconds a step, on the device's clock, of steps that were enqueued without a wait."""
    runner: Any = engine._runner
    [lane] = runner._lanes[batch.stream]
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start = time.perf_counter()
    results = [engine.step(batch)]
    first.record(lane._stream)
    results += [engine.step(batch) for _ in range(count)]
    last.record(lane._stream)
    host_us = (time.perf_counter() - start) / count * 1e6
    results[-1].wait()
    torch.cuda.synchronize()
    device_us = first.elapsed_time(last) / count * 1e3
    if host_us > device_us * MAX_HOST_SHARE:
        print(f"warning: the host took {host_us:.0f} of {device_us:.0f} µs a step", file=sys.stderr)
    return device_us


def measure(engine: Engine, shape: str, deep: int) -> Row:
    """Both measurements of one shape."""
    num_seqs, seq_len = map(int, shape.split("x"))
    rng = np.random.default_rng(0)
    ids = rng.integers(10, engine.vocab_rows, (num_seqs, seq_len)).tolist()
    batch = PackedBatch.build(ids, RowFormat(engine.folder.dimensions))
    run(engine, batch, NUM_STEPS)
    enqueued(engine, batch, deep)  # makes the host's buffers, which takes milliseconds
    pairs = [
        (run(engine, batch, NUM_STEPS), enqueued(engine, batch, deep)) for _ in range(NUM_ROUNDS)
    ]
    in_loop, alone = (statistics.median(times) for times in zip(*pairs, strict=True))
    traces = traced(engine, batch)
    return {
        "shape": shape,
        "num_tokens": num_seqs * seq_len,
        "mode": engine.step(batch).mode,
        "steps_in_flight": engine.steps_in_flight,
        "step_us": round(in_loop, 1),
        "step_us_each": [round(us, 1) for us, _ in pairs],
        "step_alone_us": round(alone, 1),
        "idle": round(1 - alone / in_loop, 4),
        "traced_steps": traces.num_steps,
        "traced_step_us": round(traces.step_us, 1),
        "traced_idle_between_steps": round(traces.between_steps, 4),
        "traced_copies": round(traces.copies, 4),
        "traced_gaps_in_steps": round(traces.in_steps, 4),
        "traced_kernels": round(traces.kernels, 4),
    }


def show(rows: Sequence[Row], console: Console) -> None:
    """One line a shape."""
    table = Table(title=f"the device between steps; target: idle ≤ {MAX_IDLE:.0%}")
    for column in ("shape", "mode", "step µs", "alone µs", "idle"):
        table.add_column(column)
    for column in ("traced: step µs", "idle between", "copies", "gaps in steps", "kernels"):
        table.add_column(column)
    for row in rows:
        shares = [
            f"{row[f'traced_{name}']:.2%}"
            for name in ("idle_between_steps", "copies", "gaps_in_steps", "kernels")
        ]
        table.add_row(
            row["shape"],
            row["mode"],
            f"{row['step_us']:.0f}",
            f"{row['step_alone_us']:.0f}",
            f"{row['idle']:.2%}",
            f"{row['traced_step_us']:.0f}",
            *shares,
        )
    console.print(table)


def main() -> None:
    """Measures each shape and prints."""
    parser = argparse.ArgumentParser(description="Measure how long a GPU waits between steps.")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--shape", nargs="+", default=["1x128", "4x512"])
    parser.add_argument("--dtype", type=config.DType, default=config.DType.AUTO)
    parser.add_argument("--deep", type=int, default=24, help="steps enqueued at once")
    parser.add_argument("--graph-capture", default="lazy", choices=["start", "lazy", "off"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("error: no GPU was found; on a CPU a step ends before the next begins")
    engine = Engine.load(read_folder(resolve(options.folder)), dtype=options.dtype)
    engine.capture(
        online_tokens=config.GPU_ONLINE_BATCH_TOKENS,
        normal_tokens=config.GPU_BATCH_TOKENS,
        when=config.GraphCapture(options.graph_capture),
        memory_limit=config.GRAPH_MEMORY_MB << 20,
    )
    where = machine.describe() | {
        "model": engine.folder.id,
        "dtype": str(engine.dtype),
        "attention": str(engine.attention),
    }
    rows: list[Row] = []
    for shape in options.shape:
        rows.append(measure(engine, shape, options.deep))
        print(json.dumps({"benchmark": "idle_device", **rows[-1], **where}), flush=True)
    show(rows, Console(stderr=True, width=150))


if __name__ == "__main__":
    main()
