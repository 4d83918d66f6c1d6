"""What CUDA graphs cost and save, for each `--graph-capture`: start, first requests, steady state, a length mix.

`python benchmarks/graph_modes.py [FOLDER] [--mode start --mode lazy] [--rate 600] [--seconds 60]
[worker's options]`, where FOLDER is a model of `random_models.py`; without it the packaged model. For each
mode a worker and a gateway start, and then come

- first: the first 1,000 requests after the start, one text each of the length mix;
- steady: the next 5,000;
- mix: such texts beside a re-index in requests of 32, until `--seconds` are over since the first request.

Graphs and the time of each capture come from the worker (`altered_worker.py counted`), shares of replays and
of padding from /metrics, latencies from the load generator. Without a GPU there are no graphs: all steps are eager.

JSON lines on stdout, a table on stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import machine
import parts
import texts
from loadgen import Report, Stream, run
from rich.console import Console
from rich.table import Table
from scrape import Scrape
from serving_gpu import BULK, embed

MODES = ("start", "lazy", "off")
NUM_FIRST, NUM_STEADY = 1_000, 5_000
MEAN_LENGTH, LENGTH_SPREAD, MIN_LENGTH, MAX_LENGTH = 180, 0.8, 4, 512
"""Of the length mix of `flowerbed.bench`, tokens; that module loads torch."""
INDEX_ROWS, INDEX_CALLERS, NUM_INDEX_REQUESTS = 32, 2, 64
MIN_MIX_S = 1.0
MAX_WAIT_MS, MIN_REPLAYS, MAX_PADDING = 50.0, 0.99, 0.10
Row = dict[str, Any]


@dataclass(slots=True)
class Measured:
    """One mode."""

    mode: str
    ready_s: float = 0.0
    dtype: str = ""
    phases: dict[str, Row] = field(default_factory=dict[str, Row])
    captures: list[Row] = field(default_factory=list[Row])
    first_request_at: float = 0.0  # s since 1970

    def keep(self, phase: str, figures: Row) -> None:
        """Adds a phase, and tells it at once: a run that is cut short loses nothing."""
        self.phases[phase] = figures
        print(f"{self.mode}, {phase}: {json.dumps(figures)}", file=sys.stderr)

    def row(self) -> Row:
        """As it is printed."""
        later = [one for one in self.captures if one["at"] > self.first_request_at]
        waits = [one["ms"] for one in later]
        num_bytes = sum(one["num_bytes"] for one in self.captures)
        return {
            "mode": self.mode,
            "ready_s": round(self.ready_s, 2),
            "dtype": self.dtype,
            "num_graphs": len(self.captures),
            "graph_mb": round(num_bytes / (1 << 20)),
            "captures_after_ready": len(later),
            "longest_capture_ms": max(waits, default=0.0),
            "captures_over_50_ms": sum(ms > MAX_WAIT_MS for ms in waits),
            **self.phases,
        }


def mixed_texts(model: str | None, count: int, seed: int) -> list[str]:
    """Texts of lognormal lengths; a random model has one id a word and one at the end."""
    if model is None:
        return texts.documents(count, MEAN_LENGTH, seed)
    rng = random.Random(seed)  # noqa: S311 (texts, no secrets)
    lengths = mixed_lengths(count, rng)
    return [" ".join(f"w{rng.randrange(20_000)}" for _ in range(length - 1)) for length in lengths]


def mixed_lengths(count: int, rng: random.Random) -> list[int]:
    """Tokens of each text."""
    mean = math.log(MEAN_LENGTH) - LENGTH_SPREAD**2 / 2
    drawn = (int(rng.lognormvariate(mean, LENGTH_SPREAD)) for _ in range(count))
    return [min(max(length, MIN_LENGTH), MAX_LENGTH) for length in drawn]


class Bench:
    """Loads one running server in phases."""

    def __init__(self, address: str, model: str | None, rate: float) -> None:
        self.address = address
        self.model = model
        self.rate = rate

    def requests(self, count: int, seed: int) -> Row:
        """So many texts of the mix, one a request, at random times."""
        items = [embed([text]) for text in mixed_texts(self.model, count, seed)]
        limits = f"max_requests={count},check=no,seed={seed}"
        seconds = 2 * count / self.rate
        return self._phase([Stream("texts", items, f"poisson={self.rate}", seconds, limits)])

    def mix(self, seconds: float) -> Row:
        """Such texts beside a re-index."""
        items = [embed([text]) for text in mixed_texts(self.model, NUM_STEADY, 7)]
        rows = mixed_texts(self.model, NUM_INDEX_REQUESTS * INDEX_ROWS, 8)
        index = [embed(rows[at : at + INDEX_ROWS], BULK) for at in range(0, len(rows), INDEX_ROWS)]
        return self._phase(
            [
                Stream("texts", items, f"poisson={self.rate}", seconds, "check=no"),
                Stream("index", index, f"callers={INDEX_CALLERS}", seconds, "check=no"),
            ]
        )

    def _phase(self, streams: Sequence[Stream]) -> Row:
        before = Scrape.of(self.address)
        reports = run(self.address, streams)
        after = Scrape.of(self.address)
        for report in reports:
            if report["unexpected"] or report["errors"] or report["wrong"]:
                print(f"warning: {report}", file=sys.stderr)

        def grew(name: str, **labels: str) -> float:
            return after.total(name, **labels) - before.total(name, **labels)

        steps = {
            mode: grew("flowerbed_step_seconds_count", mode=mode)
            for mode in ("replay", "capture", "eager")
        }
        real, padding = (
            grew("flowerbed_step_tokens_sum", kind=kind) for kind in ("real", "padding")
        )
        return {
            "seconds": round(reports[0]["seconds"], 2),
            "steps": {mode: int(count) for mode, count in steps.items()},
            "replays": round(steps["replay"] / max(1.0, sum(steps.values())), 5),
            "padding": round(padding / max(1.0, real + padding), 5),
            **{report["name"]: _figures(report) for report in reports},
        }


def _figures(report: Report) -> Row:
    latency = {key: round(report["latency_ms"][key], 3) for key in ("p50", "p99", "max")}
    rates = {
        "ok": report["ok"],
        "texts_per_s": round(report["rows_per_second"], 1),
        "tokens_per_s": round(report["tokens_per_second"]),
    }
    return {"n": report["sent"], "ms": latency, **rates}


def measure(
    mode: str, model: str | None, rate: float, seconds: float, options: list[str]
) -> Measured:
    """Starts, loads and stops one server."""
    measured = Measured(mode)
    program = (str(parts.HERE / "altered_worker.py"), "counted")
    command = parts.worker(model, [*options, "--graph-capture", mode], program)
    with ExitStack() as stack:
        start = time.perf_counter()
        worker = parts.Part(command)
        stack.callback(worker.process.kill)  # if something fails before it is stopped
        gateway = stack.enter_context(parts.running(parts.gateway(model, worker.address)))
        parts.embed(gateway.address, ["w1 w2"])
        measured.ready_s = time.perf_counter() - start
        measured.dtype = parts.info(gateway.address)["model_dtype"]
        bench = Bench(gateway.address, model, rate)
        measured.first_request_at, begun = time.time(), time.perf_counter()
        measured.keep("first", bench.requests(NUM_FIRST, 1))
        measured.keep("steady", bench.requests(NUM_STEADY, 2))
        left = seconds - (time.perf_counter() - begun)
        measured.keep("mix", bench.mix(max(left, MIN_MIX_S)))
        gateway.stop()
        measured.captures = json.loads(worker.stop().splitlines()[-1])
    return measured


def show(rows: Sequence[Row], console: Console) -> None:
    """One column a mode."""
    table = Table(title="graphs: milliseconds from the intended arrival")
    for column in ("figure", *(row["mode"] for row in rows), "target"):
        table.add_column(column, justify="left" if column == "figure" else "right")

    def line(figure: str, cell: Any, target: str = "") -> None:
        table.add_row(figure, *(str(cell(row)) for row in rows), target)

    line("seconds to ready", lambda row: row["ready_s"])
    line("graphs, MB", lambda row: f"{row['num_graphs']}, {row['graph_mb']}")
    for phase in ("first", "steady", "mix"):
        line(
            f"{phase}: n, p50 / p99 / max",
            lambda row, phase=phase: "{n}, {ms[p50]:.2f} / {ms[p99]:.2f} / {ms[max]:.1f}".format(
                **row[phase]["texts"]
            ),
        )
    line("mix: re-index, texts/s", lambda row: row["mix"]["index"]["texts_per_s"])
    line("captures after ready", lambda row: row["captures_after_ready"])
    line("longest of them, ms", lambda row: row["longest_capture_ms"], f"≤ {MAX_WAIT_MS:.0f}")
    line("mix: replays", lambda row: f"{row['mix']['replays']:.2%}", f"≥ {MIN_REPLAYS:.0%}")
    line("mix: padding", lambda row: f"{row['mix']['padding']:.2%}", f"≤ {MAX_PADDING:.0%}")
    console.print(table)


def main() -> None:
    """Measures each mode and prints."""
    parser = argparse.ArgumentParser(
        description="Compare the modes of graph capture.", allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", help="needed before options of the worker")
    parser.add_argument("--mode", choices=MODES, action="append", help="repeat it for each")
    parser.add_argument("--rate", type=float, default=600.0, help="of texts, a second")
    parser.add_argument(
        "--seconds", type=float, action="append", help="of load; repeat it for each mode"
    )
    options, worker_options = parser.parse_known_args()
    modes = options.mode or ["start", "lazy"]
    seconds = options.seconds or [60.0] * len(modes)
    if len(seconds) != len(modes):
        raise SystemExit("error: give --seconds once for each --mode")
    where = machine.describe() | {
        "rate": options.rate,
        "options": " ".join(worker_options),
        "model": options.folder or "default",
    }
    rows: list[Row] = []
    for mode, length in zip(modes, seconds, strict=True):
        rows.append(measure(mode, options.folder, options.rate, length, worker_options).row())
        print(json.dumps({"benchmark": "graph_modes", **rows[-1], **where}), flush=True)
    show(rows, Console(stderr=True, width=150))


if __name__ == "__main__":
    main()
