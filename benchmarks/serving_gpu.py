"""The whole path on a GPU, HTTP in and out: queries alone, beside a re-index, and many callers at once.

`python benchmarks/serving_gpu.py FOLDER [--quick] [serve's options]`, where FOLDER is a model of
`random_models.py`: its tokenizer makes one id of each word, so that lengths are known. Server and
generator share the machine: take the generator's share of a core from each row.

JSON lines on stdout, a table on stderr.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import machine
from loadgen import Item, Report, Stream, run
from rich.console import Console
from rich.table import Table
from scrape import Scrape

from flowerbed.background import serving

QUERY_WORDS, DOCUMENT_WORDS = 11, 511  # and one special token
INDEX_ROWS, INDEX_CALLERS = 64, 8
BULK = {"x-flowerbed-lane": "bulk"}
RATES_BESIDE = (200.0, 3_000.0)  # queries a second
TAIL_PARTS = ("lag", "queue", "step", "rest")
"""Where the time of the slowest hundredth went: client, queue, step, and all else."""
Row = dict[str, Any]


def texts(count: int, num_words: int, seed: int) -> list[str]:
    """Random words of the model's vocabulary."""
    rng = random.Random(seed)  # noqa: S311 (texts, no secrets)
    return [" ".join(f"w{rng.randrange(20_000)}" for _ in range(num_words)) for _ in range(count)]


def embed(inputs: list[str], headers: dict[str, str] | None = None) -> Item:
    """A request for vectors in base64, as OpenAI's client asks for them."""
    body = {"input": inputs, "encoding_format": "base64"}
    return Item(body, rows=len(inputs), headers=headers or {})


class Bench:
    """Runs streams and keeps a row for each."""

    def __init__(self, address: str, scale: float) -> None:
        self.address = address
        self.scale = scale
        self.rows: list[Row] = []

    def load(
        self, figure: str, *streams: tuple[str, list[Item], str], seconds: float
    ) -> list[Report]:
        """Streams of (name, items, pace), side by side."""
        seconds *= self.scale
        named = [
            Stream(name, items, pace, seconds, "seed=5,check=no") for name, items, pace in streams
        ]
        before = Scrape.of(self.address)
        reports = run(self.address, named)
        after = Scrape.of(self.address)
        for stream, report in zip(named, reports, strict=True):
            if report["wrong"] or report["unexpected"] or report["errors"]:
                print(f"warning: {figure}: {report}", file=sys.stderr)
            lane = "bulk" if stream.items[0].headers == BULK else "online"
            in_gateway = {
                part: round(
                    1e3 * after.mean_since(before, f"flowerbed_{part}_seconds", **labels), 3
                )
                for part, labels in (("request", {"lane": lane}), ("tokenize", {}))
            }
            row = {"figure": figure, "pace": stream.pace, "in_gateway_ms": in_gateway, **report}
            self.rows.append(row)
        return reports

    def measure(self) -> None:
        """All figures of the whole path."""
        queries = [embed([text]) for text in texts(2_000, QUERY_WORDS, 1)]
        long_ones = [embed([text]) for text in texts(400, DOCUMENT_WORDS, 2)]
        rows = texts(INDEX_ROWS * 24, DOCUMENT_WORDS, 3)
        index = [embed(rows[at : at + INDEX_ROWS], BULK) for at in range(0, len(rows), INDEX_ROWS)]
        self.load("warm-up", ("queries", queries, "callers=4"), seconds=2)
        self.rows.clear()
        self.load("one query at a time", ("queries", queries, "callers=1"), seconds=4)
        self.load("16 callers, 512 tokens", ("texts", long_ones, "callers=16"), seconds=6)
        re_index = ("re-index", index, f"callers={INDEX_CALLERS}")
        alone = self.load("re-index alone", re_index, seconds=8)[0]
        for rate in RATES_BESIDE:
            asked = ("queries", queries, f"poisson={rate}")
            self.load(f"{rate:.0f} queries/s alone", asked, seconds=6)
            figure = f"{rate:.0f} queries/s beside the re-index"
            _, beside = self.load(figure, asked, re_index, seconds=8)
            lost = 1 - beside["tokens_per_second"] / alone["tokens_per_second"]
            self.rows[-1]["re_index_lost"] = round(lost, 4)


def show(rows: list[Row], console: Console) -> None:
    """One line a stream."""
    table = Table(title="milliseconds; rates a second")
    for column in ("figure", "n", "answers/s", "p50", "p95", "p99", "p99.9", "max", "rows/s"):
        table.add_column(column)
    for column in ("gateway", "queue", "step", "slowest 1%", "client cores", "lost"):
        table.add_column(column)
    for row in rows:
        latency = row["latency_ms"]
        spread = [f"{latency[key]:.2f}" for key in ("p50", "p95", "p99", "p999", "max")]
        parts = [f"{row[part]['p50']:.2f}" for part in ("queue_ms", "step_ms")]
        client = f"{row['client_cpu_seconds'] / max(row['seconds'], 1e-3):.2f}"
        counts = f"{row['sent']}", f"{row['achieved_per_second']:.1f}"
        lost = f"{row['re_index_lost']:.1%}" if "re_index_lost" in row else ""
        made = f"{row['rows_per_second']:.0f}"
        figure = f"{row['figure']}: {row['name']}"
        gateway = f"{row['in_gateway_ms']['request']:.2f}"
        tail = " + ".join(f"{row['tail'][f'{part}_ms']:.1f}" for part in TAIL_PARTS)
        table.add_row(figure, *counts, *spread, made, gateway, *parts, tail, client, lost)
    console.print(table)


def main() -> None:
    """Measures and prints."""
    model, *options = sys.argv[1:]
    scale = 0.4 if "--quick" in options else 1.0
    options = [option for option in options if option != "--quick"]
    start = time.perf_counter()
    with serving(model, *options) as server:
        ready_s = time.perf_counter() - start
        bench = Bench(server.address, scale)
        run(server.address, [Stream("first", [embed(["w1 w2"])], "callers=1", 0.01)])
        first_s = time.perf_counter() - start
        print(f"ready after {ready_s:.1f} s, first answer after {first_s:.1f} s", file=sys.stderr)
        bench.measure()
    where = machine.describe() | {"options": " ".join(options), "model": Path(model).name}
    for row in bench.rows:
        print(
            json.dumps({"benchmark": "serving_gpu", "ready_s": round(ready_s, 2), **row, **where})
        )
    show(bench.rows, Console(stderr=True, width=220))


if __name__ == "__main__":
    main()
