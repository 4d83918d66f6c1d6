"""The whole path under the loads of a search: `python benchmarks/loads.py FOLDER [--only NAME] [--quick] [worker's options]`.

FOLDER is a model of `random_models.py`, or one with a real tokenizer. NAME, all of them if none is given (repeat it for several):

- throughput: 4 client processes with batches of 100 over gRPC (`throughput.py`);
- text: texts over HTTP to bytes, a model's tokenizer included (`text_rate.py`);
- open_loop: queries and documents at shares of saturation, and the largest rate of queries (`open_loop.py`);
- scoring: queries beside a re-index and scoring (`scoring_beside.py`).

A worker and a gateway are started once, joined by TCP, so that clients can speak to either. Clients share the machine:
each row has their share of it, and says where they were the limit.

JSON lines on stdout as they come, a table on stderr.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import machine
import open_loop
import parts
import scoring_beside
import text_rate
import throughput
from loaded import Row, Server
from rich.console import Console
from rich.table import Table

from flowerbed.knee import default_spin
from flowerbed.machine import gpu_names

LOADS: dict[str, Callable[[Server], None]] = {
    "throughput": throughput.measure,
    "text": text_rate.measure,
    "open_loop": open_loop.measure,
    "scoring": scoring_beside.measure,
}
QUICK = 0.4


def show(rows: Sequence[Row], console: Console) -> None:
    """One line a stream."""
    table = Table(title="milliseconds from the intended time; rates a second")
    columns = ("figure", "requests/s", "texts/s", "tokens/s", "p50", "p99", "p99.9", "bad")
    for column in (*columns, "client cores", "gateway", "worker"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for row in rows:
        latency = row["latency_ms"]
        table.add_row(
            f"{row['figure']}: {row['name']}",
            *(f"{row[f'{what}_per_second']:,.0f}" for what in ("achieved", "rows", "tokens")),
            *(f"{latency[key]:.2f}" for key in ("p50", "p99", "p999")),
            f"{row['bad']}",
            f"{row['client_cores']:.2f}" + (" (limit)" if row["is_client_limit"] else ""),
            f"{row['gateway_cores']:.2f}",
            f"{row['worker_cores']:.2f}",
        )
    console.print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Load the whole path.", allow_abbrev=False)
    parser.add_argument("folder", nargs="?", help="needed before options of the worker")
    parser.add_argument("--only", choices=LOADS, action="append", help="repeat it for several")
    parser.add_argument("--scale", type=float, default=1.0, help="of all times")
    quick = f"the same as --scale {QUICK}"
    parser.add_argument("--quick", dest="scale", action="store_const", const=QUICK, help=quick)
    options, worker_options = parser.parse_known_args()
    model: str | None = options.folder
    spin = default_spin("cuda:0" if gpu_names() else "cpu", 1)
    where: dict[str, Any] = machine.describe() | {
        "options": " ".join(worker_options),
        "model": Path(model).name if model else "default",
        "scale": options.scale,
    }
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        print(json.dumps({**row, **where}), flush=True)

    started = time.perf_counter()
    with parts.running(parts.worker(model, worker_options)) as worker:
        front = parts.gateway(model, worker.address, ["--spin-ms", str(spin)])
        with parts.running(front) as gateway:
            parts.embed(gateway.address, ["w1 w2"])
            where["dtype"] = parts.info(gateway.address)["model_dtype"]
            where["ready_s"] = round(time.perf_counter() - started, 2)
            server = Server(model, worker, gateway, options.scale, keep)
            for name in options.only or LOADS:
                LOADS[name](server)
    show(rows, Console(stderr=True, width=180))


if __name__ == "__main__":
    main()
