"""vLLM in process, token ids in, vectors out: its offline engine, its asynchronous one, and several processes.

`python benchmarks/peers/vllm_engine.py FOLDER` runs `LLM.encode`; `--async` runs `AsyncLLM`, where each text
is a request of its own; `--processes N` runs N offline engines on one GPU at once. `--one-process` keeps
the offline engine's core in this process, so that a request of many texts is one step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import rows
import vllm_options
from rows import Ids, Report

from flowerbed.bench import LATENCY_SHAPES, SCORING_SHAPES, THROUGHPUT_LENGTHS

CALLERS, CALLER_TOKENS, CALLER_REQUESTS = (4, 16, 64), 512, 40
NUM_CLIENTS, CLIENT_BATCH = 4, 100
PROCESS_TEXTS = {50: 8_192, 512: 1_200}


def offline(options: argparse.Namespace) -> None:
    """Latency, scoring and throughput of the offline engine."""
    if options.one_process:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    started = time.perf_counter()
    found = vllm_options.engine_options(options)
    engine = vllm_options.offline_engine(options.folder, found)

    def run(given: list[Ids]) -> list[Any]:
        answers = engine.encode(vllm_options.prompts(given), pooling_task="embed", use_tqdm=False)
        return [answer.outputs.data for answer in answers]

    system = "vllm, one process" if options.one_process else "vllm"
    report = Report(system, "vllm", options, options.dtype, vllm_options.shown(found))
    report.ready(started, lambda given: [one.float().numpy() for one in run(given)])
    most = found["max_model_len"]
    for suite, shapes in (("latency", LATENCY_SHAPES), ("scoring", SCORING_SHAPES)):
        fitting = [shape for shape in shapes if shape[1] <= most]
        for num_seqs, seq_len, row in rows.latency(run, fitting):
            report.print(suite, num_seqs, seq_len, **row)
    if not options.one_process:  # full steps are the same work
        lengths = [*(length for length in THROUGHPUT_LENGTHS if length <= most), 0]
        for num_seqs, seq_len, row in rows.throughput(run, lengths, most):
            report.print("throughput", num_seqs, seq_len, **row)
    rows.done()


class Asynchronous:
    """`AsyncLLM`, and a loop that runs while someone waits for it."""

    def __init__(self, options: argparse.Namespace) -> None:
        os.environ.update(vllm_options.ENVIRONMENT | os.environ)
        from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
        from vllm.pooling_params import PoolingParams  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

        self.loop = asyncio.new_event_loop()
        self.options = vllm_options.engine_options(options)
        arguments = AsyncEngineArgs(model=str(options.folder), **self.options)
        self.loop.run_until_complete(self._start(AsyncLLM, arguments))
        self.parameters = PoolingParams
        self.count = 0

    async def _start(self, kind: Any, arguments: Any) -> None:
        self.engine = kind.from_engine_args(arguments)

    async def one(self, ids: Ids) -> tuple[Any, float]:
        """The vector of one request, and its seconds."""
        self.count += 1
        start = time.perf_counter()
        stream = self.engine.encode(
            vllm_options.prompts([ids])[0], self.parameters(task="embed"), str(self.count)
        )
        answers = [answer async for answer in stream]
        return answers[-1].outputs.data, time.perf_counter() - start

    def run(self, given: list[Ids]) -> list[Any]:
        """All at once, each a request."""

        async def all_of_them() -> list[Any]:
            return [vector for vector, _ in await asyncio.gather(*map(self.one, given))]

        return self.loop.run_until_complete(all_of_them())

    def callers(self, count: int, requests: Sequence[list[Ids]]) -> tuple[list[float], float]:
        """Each caller sends every request, one after another, its texts at once.

        Returns:
            Seconds of each request, and of all together.
        """

        async def caller() -> list[float]:
            taken: list[float] = []
            for request in requests:
                start = time.perf_counter()
                await asyncio.gather(*map(self.one, request))
                taken.append(time.perf_counter() - start)
            return taken

        async def all_of_them() -> list[list[float]]:
            return await asyncio.gather(*(caller() for _ in range(count)))

        start = time.perf_counter()
        taken = self.loop.run_until_complete(all_of_them())
        return [one for each in taken for one in each], time.perf_counter() - start


def asynchronous(options: argparse.Namespace) -> None:
    """Latency, callers of one text each, and clients of batches."""
    started = time.perf_counter()
    engine = Asynchronous(options)
    flags = vllm_options.shown(engine.options)
    report = Report("vllm AsyncLLM", "vllm", options, options.dtype, flags)
    report.ready(started, lambda given: [one.float().numpy() for one in engine.run(given)])
    most = engine.options["max_model_len"]
    fitting = [shape for shape in LATENCY_SHAPES if shape[1] <= most]
    for num_seqs, seq_len, row in rows.latency(engine.run, fitting):
        report.print("latency", num_seqs, seq_len, **row)
    single = [rows.sequences([CALLER_TOKENS], seed) for seed in range(CALLER_REQUESTS)]
    for count in CALLERS if most >= CALLER_TOKENS else ():
        taken, seconds = engine.callers(count, single)
        rate = len(taken) / seconds
        figures = rows.spread(taken) | rows.rates(rate, rate * CALLER_TOKENS)
        report.print("callers", 1, CALLER_TOKENS, callers=count, **figures)
    for length in (length for length in THROUGHPUT_LENGTHS if length <= most):
        rounds = 4 if length < 1_024 else 1
        batches = [rows.sequences([length] * CLIENT_BATCH, seed) for seed in range(rounds + 1)]
        engine.callers(1, batches[:1])
        taken, seconds = engine.callers(NUM_CLIENTS, batches[1:])
        rate = len(taken) * CLIENT_BATCH / seconds
        figures = rows.spread(taken) | rows.rates(rate, rate * length)
        report.print("clients", CLIENT_BATCH, length, callers=NUM_CLIENTS, **figures)
    rows.done()
    engine.engine.shutdown()


def processes(options: argparse.Namespace) -> None:
    """Throughput of several offline engines on one GPU."""
    started = time.perf_counter()
    command = [sys.executable, __file__, str(options.folder), "--dtype", options.dtype]
    command += [part for key, value in options.set for part in ("--set", key, value)]
    children = [
        subprocess.Popen(
            [*command, "--one-of-several"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(options.processes)
    ]
    for child in children:
        _answer(child)
    flags = vllm_options.shown(vllm_options.engine_options(options))
    name = f"vllm, {options.processes} processes"
    report = Report(name, "vllm", options, options.dtype, flags)
    report.ready(started)
    for length, count in PROCESS_TEXTS.items():
        for child in children:
            _tell(child, f"{length} {count}")
        spans = [_answer(child) for child in children]
        seconds = max(end for _, end in spans) - min(start for start, _ in spans)
        rate = count * len(children) / seconds
        figures = rows.spread([end - start for start, end in spans])
        report.print("throughput", count, length, **figures, **rows.rates(rate, rate * length))
    rows.done()
    for child in children:
        child.communicate("\n")


def one_of_several(options: argparse.Namespace) -> None:
    """A child of `processes`: runs what it is told and says when it began and ended."""
    found = vllm_options.engine_options(options)
    engine = vllm_options.offline_engine(options.folder, found)

    def run(given: list[dict[str, Ids]]) -> None:
        engine.encode(given, pooling_task="embed", use_tqdm=False)

    made = {
        length: vllm_options.prompts(rows.sequences([length] * count))
        for length, count in PROCESS_TEXTS.items()
    }
    for given in made.values():
        run(given[: len(given) // 8])
    print(json.dumps([0.0, 0.0]), flush=True)
    while line := sys.stdin.readline().split():
        given = made[int(line[0])][: int(line[1])]
        start = time.monotonic()
        run(given)
        print(json.dumps([start, time.monotonic()]), flush=True)


def _tell(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def _answer(child: subprocess.Popen[str]) -> list[float]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("["):
            return json.loads(line)
    raise SystemExit(f"error: an engine ended with {child.wait()}")


def main() -> None:
    """Measures one way of running it."""
    parser = rows.parser("vLLM in process.")
    vllm_options.add_to(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--one-process", action="store_true")
    way.add_argument("--async", action="store_true", dest="is_async")
    way.add_argument("--processes", type=int)
    way.add_argument("--one-of-several", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processes:
        processes(options)
    elif options.one_of_several:
        one_of_several(options)
    elif options.is_async:
        asynchronous(options)
    else:
        offline(options)


if __name__ == "__main__":
    main()
