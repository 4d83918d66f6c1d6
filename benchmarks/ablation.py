"""What each part is worth: the same loads with one part at a time taken out or put in another's place.

`python benchmarks/ablation.py [FOLDER] [--seconds 3] [worker's options]`, where FOLDER is a model of
`random_models.py`; without it the packaged model and real English texts. The systems:

- all on: worker and gateway as they are;
- graphs off: `--graph-capture off`;
- blocking step: `altered_worker.py`, whose step waits for its rows before it returns, one at a time;
- FastAPI front: `peers/fastapi_front.py` in the gateway's place, by one process and by four.

All workers are started first, side by side, since that takes most of the time; one system is under load
at a time, so that the others' workers are idle. Each system's vectors are compared with those of the first.

JSON lines on stdout, a table on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import machine
import numpy as np
import parts
import serving_gpu
import texts
from loadgen import Item, Stream, run
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

NUM_TEXTS, NUM_COMPARED = 400, 8
QUERY_WORDS, LONG_TOKENS = 12, 512
WARM_UP_S = 0.3
FASTAPI_PROCESSES = (1, 4)
GRAPH_MEMORY = ("--graph-memory-mb", "16384")
"""Above the default, since what the other workers take while one captures seems to be its graphs'."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """What callers do."""

    name: str
    inputs: list[str]
    num_callers: int

    def stream(self, seconds: float) -> Stream:
        """One text a request, asked for again when it is answered."""
        items: list[Item] = [serving_gpu.embed([text]) for text in self.inputs]
        return Stream("texts", items, f"callers={self.num_callers}", seconds, "check=no")


def loads(model: str | None) -> list[Load]:
    """Texts of known lengths of a random model, which has one id a word and one at the end."""
    if model is None:
        queries = texts.queries(NUM_TEXTS, QUERY_WORDS)
        long_ones = texts.queries(NUM_TEXTS, LONG_TOKENS)
    else:
        queries = serving_gpu.texts(NUM_TEXTS, QUERY_WORDS, 1)
        long_ones = serving_gpu.texts(NUM_TEXTS, LONG_TOKENS - 1, 2)
    return [
        Load("16 callers, 512 tokens", long_ones, 16),
        Load("one 12-word query at a time", queries, 1),
        Load("64 callers, 12-word queries", queries, 64),
    ]


class Bench:
    """Puts a front before a worker, loads it, and keeps a row for each load."""

    def __init__(self, model: str | None, seconds: float) -> None:
        self.loads = loads(model)
        self.seconds = seconds
        self.rows: list[Row] = []
        self._first: NDArray[np.float32] | None = None
        self._where = machine.describe() | {"seconds": seconds, "model": model or "default"}

    def measure(self, system: str, front: Sequence[str]) -> None:
        """All loads of one system."""
        with parts.running(front) as part:
            compared = [text for load in self.loads for text in load.inputs[:NUM_COMPARED]]
            vectors = np.concatenate([parts.embed(part.address, [text]) for text in compared])
            if self._first is None:
                self._first = vectors
                self._where["dtype"] = parts.info(part.address)["model_dtype"]
            for load in self.loads:
                run(part.address, [load.stream(WARM_UP_S)])
                [report] = run(part.address, [load.stream(self.seconds)])
                if report["unexpected"] or report["errors"] or report["wrong"]:
                    print(f"warning: {system}, {load.name}: {report}", file=sys.stderr)
                latency = report["latency_ms"]
                self._keep(
                    {
                        "system": system,
                        "load": load.name,
                        "callers": load.num_callers,
                        "p50_ms": round(latency["p50"], 3),
                        "p99_ms": round(latency["p99"], 3),
                        "answers_per_s": round(report["achieved_per_second"], 1),
                        "queue_p50_ms": round(report["queue_ms"]["p50"], 3),
                        "step_p50_ms": round(report["step_ms"]["p50"], 3),
                        "client_cores": round(report["client_cpu_seconds"] / self.seconds, 3),
                        "min_cosine_to_first": round(_min_cosine(vectors, self._first), 6),
                    }
                )

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        print(json.dumps({"benchmark": "ablation", **row, **self._where}), flush=True)


def _min_cosine(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / norms).min())


def show(rows: Sequence[Row], console: Console) -> None:
    """One line a system."""
    names = list(dict.fromkeys(row["load"] for row in rows))
    table = Table(title="p50 / p99 ms, answers a second")
    for column in ("system", *names, "cosine"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for system in dict.fromkeys(row["system"] for row in rows):
        own = {row["load"]: row for row in rows if row["system"] == system}
        cells = [
            f"{row['p50_ms']:.2f} / {row['p99_ms']:.2f}, {row['answers_per_s']:.0f}"
            for row in (own[name] for name in names)
        ]
        table.add_row(system, *cells, f"{own[names[0]]['min_cosine_to_first']:.5f}")
    console.print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Take out one part at a time.", allow_abbrev=False)
    parser.add_argument("folder", nargs="?", help="needed before options of the worker")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--no-fastapi", action="store_true", help="leave its front out")
    options, worker_options = parser.parse_known_args()
    model = options.folder
    bench = Bench(model, options.seconds)
    started = [*GRAPH_MEMORY, *worker_options]
    blocking = (str(parts.HERE / "altered_worker.py"), "blocking")
    with ExitStack() as stack:
        commands = {
            "all on": parts.worker(model, started),
            "graphs off": parts.worker(model, [*started, "--graph-capture", "off"]),
            "blocking step": parts.worker(model, started, blocking),
        }
        workers = {
            system: stack.enter_context(parts.running(command))
            for system, command in commands.items()
        }
        for part in workers.values():
            assert part.address  # waits, so that no worker starts during a load
        for system, part in workers.items():
            bench.measure(system, parts.gateway(model, part.address))
        for count in () if options.no_fastapi else FASTAPI_PROCESSES:
            front = [str(parts.HERE / "peers" / "fastapi_front.py"), workers["all on"].address]
            front += [*([model] if model else []), "--processes", str(count)]
            bench.measure(f"FastAPI front, processes: {count}", front)
    show(bench.rows, Console(stderr=True, width=150))


if __name__ == "__main__":
    main()
