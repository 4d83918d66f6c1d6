"""Latency under load, lanes, and where the time goes: the whole server on this machine's CPU.

Saturation is found by a closed loop; then an open loop sends at shares of it, with Poisson arrivals
(crates/loadgen). The generator shares the cores with the server: it is one thread, and every row
tells its share of one core and how late it was itself.

Rows are appended as JSON lines to benchmarks/results/cpu.jsonl, and printed as tables on stderr.
`--quick` takes a fifth of the time, `--lanes` measures nothing but the lanes. Other options go to `flowerbed serve`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import texts
from cores import Usage
from loadgen import Item, Report, Stream, run
from rich.console import Console
from rich.table import Table
from scrape import Scrape

from flowerbed.background import serving
from flowerbed.config import CPU_BATCH_TOKENS

RESULTS = Path(__file__).parent / "results" / "cpu.jsonl"
SHARES = (0.25, 0.5, 0.75, 0.9)
NUM_CALLERS = 16
LARGE_ROWS, NUM_LARGE = 512, 8
QUERIES_BESIDE_INDEX = 10.0  # a second
INDEX_ROWS, INDEX_CALLERS = 32, 4
MAX_OTHERS, MAX_TRIES = 0.15, 3  # cores that others may use
BULK = {"x-flowerbed-lane": "bulk"}
Row = dict[str, Any]


def embed(inputs: Sequence[str], headers: dict[str, str] | None = None) -> Item:
    """A request for vectors in base64, as OpenAI's client asks for them."""
    body = {"input": list(inputs), "encoding_format": "base64"}
    return Item(body, rows=len(inputs), headers=headers or {})


def batches(rows: list[str], size: int, headers: dict[str, str] | None = None) -> list[Item]:
    """Requests of `size` texts."""
    return [embed(rows[at : at + size], headers) for at in range(0, len(rows), size)]


@dataclass(frozen=True, slots=True)
class Try:
    """One run of some streams."""

    reports: list[Report]
    in_gateway_ms: dict[str, float]  # means, by the gateway's metrics
    others: float  # cores


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs streams against one server and keeps what they show."""

    address: str
    pid: int  # of the server
    budget: int  # of a step, tokens
    scale: float  # of all times
    rows: list[Row]

    def load(self, name: str, streams: Sequence[Stream], **facts: object) -> list[Report]:
        """A row for each of the streams, which run at once.

        A run that others disturbed is made again; the row says what they used in the best one.
        """
        tries = [self._load(streams)]
        while tries[-1].others > MAX_OTHERS and len(tries) < MAX_TRIES:
            tries.append(self._load(streams))
        best = min(tries, key=lambda one: one.others)
        for stream, report in zip(streams, best.reports, strict=True):
            share = report["client_cpu_seconds"] / max(report["seconds"], 1e-3)
            cores = {"client_cores": round(share, 3), "others_cores": round(best.others, 3)}
            row = {"figure": name, "pace": stream.pace, **facts, **cores, **report}
            self.rows.append(row | {"in_gateway_ms": best.in_gateway_ms, "tries": len(tries)})
            if report["wrong"] or report["unexpected"] or report["errors"]:
                print(f"warning: {name}: {report}", file=sys.stderr)
        return best.reports

    def _load(self, streams: Sequence[Stream]) -> Try:
        before, used_before = Scrape.of(self.address), Usage.now(self.pid)
        reports = run(self.address, streams)
        after, used = Scrape.of(self.address), Usage.now(self.pid)

        def grew(name: str, **labels: str) -> float:
            return round(1e3 * after.mean_since(before, f"flowerbed_{name}_seconds", **labels), 3)

        in_gateway_ms = {
            "whole": grew("request", route="/v1/embeddings"),
            "tokenize": grew("tokenize"),
        }
        others = used.others_since(used_before, reports[0]["client_cpu_seconds"])
        return Try(reports, in_gateway_ms, others)

    def ladder(self, name: str, items: list[Item], num_callers: int, seconds: float) -> None:
        """Saturation by a closed loop, then an open loop at shares of it."""
        seconds *= self.scale
        saturated = Stream(name, items, f"callers={num_callers}", seconds)
        rate = self.load(f"{name}, saturation", [saturated])[0]["achieved_per_second"]
        for share in SHARES:
            pace = f"poisson={rate * share:.4f}"
            stream = Stream(name, items, pace, seconds, f"seed={int(100 * share)}")
            self.load(f"{name}, {share:.0%}", [stream], share=share)

    def lanes(self, queries: list[Item], documents: list[Item]) -> None:
        """Queries and a re-index, each alone and then side by side."""
        seconds = 30 * self.scale
        asked = Stream("queries", queries, f"poisson={QUERIES_BESIDE_INDEX}", seconds, "seed=3")
        index = Stream("re-index", documents, f"callers={INDEX_CALLERS}", seconds)
        one_step = Stream("one bulk step", [_one_step(self.budget)], "callers=1", 3 * self.scale)
        step_ms = self.load("one bulk step", [one_step])[0]["step_ms"]["p50"]
        alone = self.load("queries alone", [asked])[0]
        index_alone = self.load("re-index alone", [index])[0]
        beside, index_beside = self.load("queries beside the re-index", [asked, index])
        limit = step_ms + alone["step_ms"]["p50"] + alone["latency_ms"]["p99"]
        lost = 1 - index_beside["tokens_per_second"] / index_alone["tokens_per_second"]
        self.rows.append(
            {
                "figure": "lanes",
                "bulk_step_ms": step_ms,
                "query_step_ms": alone["step_ms"]["p50"],
                "query_p99_alone_ms": alone["latency_ms"]["p99"],
                "query_p99_limit_ms": round(limit, 3),
                "query_p50_beside_ms": beside["latency_ms"]["p50"],
                "query_p99_beside_ms": beside["latency_ms"]["p99"],
                "re_index_lost": round(lost, 4),
                "re_index_longest_gap_s": index_beside["longest_gap_s"],
            }
        )


def _one_step(budget: int) -> Item:
    """Bulk work that just fills one step: what a query may have to wait for."""
    ids = [101] + [7592] * 14 + [102]
    inputs = [ids] * (budget // 17)  # 16 tokens cost less than 17, attention included
    return Item({"input": inputs, "encoding_format": "base64"}, rows=len(inputs), headers=BULK)


def parts(bench: Bench, name: str, item: Item) -> None:
    """Where the time of one request goes on an idle server: means in milliseconds.

    Parse is what a request for an unknown model takes; encode what all dimensions take more than
    one; the rest are the server's own times.
    """
    assert isinstance(item.body, dict)
    unknown = Item(item.body | {"model": "unknown"}, expect=(404,))
    narrow = Item(item.body | {"dimensions": 1}, rows=item.rows)
    seconds = 6 * bench.scale
    found = {
        kind: bench.load(f"{name}: {kind}", [Stream(name, [asked], "callers=1", seconds, "seed=1")])
        for kind, asked in (("unknown model", unknown), ("one dimension", narrow), ("whole", item))
    }
    whole, row = found["whole"][0], bench.rows[-1]
    in_gateway = row["in_gateway_ms"]
    assert isinstance(in_gateway, dict)
    latency, step = whole["latency_ms"]["p50"], whole["step_ms"]["p50"]
    parse = found["unknown model"][0]["latency_ms"]["p50"]
    narrow_less_step = found["one dimension"][0]["latency_ms"]["p50"]
    narrow_less_step -= found["one dimension"][0]["step_ms"]["p50"]
    encode = latency - step - narrow_less_step
    # A request of many steps waits in the queue for its own ones too; alone, for nothing else.
    queue = whole["queue_ms"]["p50"] if item.rows == 1 else 0.0
    tokenize = in_gateway["tokenize"]
    rest = latency - step - parse - tokenize - queue - encode
    named = {"parse and HTTP": parse, "tokenize": tokenize, "queue": queue, "wire": rest}
    named |= {"step": step, "encode and send": encode}
    rounded = {part: round(value, 3) for part, value in named.items()}
    bench.rows.append({"figure": f"{name}: where the time goes", "total_ms": latency} | rounded)


def show(rows: list[Row], console: Console) -> None:
    """The ladder's rows, then the others."""
    table = Table(title="milliseconds from the intended time; rates a second")
    columns = ("figure", "n", "answers/s", "p50", "p95", "p99", "p99.9", "max", "rows/s")
    for column in (*columns, "queue", "step", "client lag p99", "client cores", "others"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for row in rows:
        if "latency_ms" not in row:
            console.print_json(json.dumps(row))
            continue
        latency = row["latency_ms"]
        assert isinstance(latency, dict)
        spread = [f"{latency[key]:.1f}" for key in ("p50", "p95", "p99", "p999", "max")]
        means = [f"{row[part]['mean']:.1f}" for part in ("queue_ms", "step_ms")]
        rate, made = f"{row['achieved_per_second']:.2f}", f"{row['rows_per_second']:.0f}"
        cells = [f"{row['figure']}: {row['name']}", f"{row['sent']}", rate, *spread, made, *means]
        cells += [f"{row['lag_ms']['p99']:.2f}", f"{row['client_cores']}", f"{row['others_cores']}"]
        table.add_row(*cells)
    console.print(table)


def main() -> None:
    """Measures, appends, prints."""
    options = sys.argv[1:]
    scale = 0.2 if "--quick" in options else 1.0
    only_lanes = "--lanes" in options
    options = [option for option in options if option not in ("--quick", "--lanes")]
    at = options.index("--max-batch-tokens") + 1 if "--max-batch-tokens" in options else None
    budget = int(options[at]) if at else CPU_BATCH_TOKENS
    where = machine.describe() | {"load_before": round(os.getloadavg()[0], 2)}
    where |= {"options": " ".join(options)}
    queries = [embed([text]) for text in texts.queries(2_000)]
    large = batches(texts.queries(LARGE_ROWS * NUM_LARGE, seed=4), LARGE_ROWS)
    documents = batches(texts.documents(INDEX_ROWS * 96), INDEX_ROWS, BULK)
    rows: list[Row] = []
    try:
        with serving(*options) as server:
            bench = Bench(server.address, server.process.pid, budget, scale, rows)
            run(server.address, [Stream("warm-up", queries, "callers=4", 3)])
            bench.lanes(queries, documents)
            if only_lanes:
                return
            bench.ladder("12-word query", queries, NUM_CALLERS, 20)
            parts(bench, "12-word query", queries[0])
            parts(bench, "512-text request", large[0])
            bench.ladder("512-text request", large, 2, 40)
    finally:
        show(rows, Console(stderr=True, width=200))
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            for row in rows:
                file.write(json.dumps({"benchmark": "serving", **row, **where}) + "\n")


if __name__ == "__main__":
    main()
