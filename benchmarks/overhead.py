"""What the request path costs besides the model, on a one-query request.

Own share = what the client waits for, less the model's step (`x-flowerbed-step-us`): HTTP, JSON,
tokenizing, gRPC, queue and scheduler, and the loopback network. Requests go over one keep-alive
connection, written and read with plain sockets, so that the client itself adds little. Also: time
from start to ready, and of `import flowerbed`.

One JSON object a line on stdout, a table on stderr.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import machine
import numpy as np
from rich.console import Console
from rich.table import Table

from flowerbed.background import serving

NUM_WARM_UP = 100
NUM_REQUESTS = 1000
NUM_IMPORTS = 7
QUERY = "how do I read a file with comma-separated values?"
MAX_OVERHEAD_P50_MS, MAX_READY_S, MAX_IMPORT_S = 1.0, 8.0, 0.2


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    name: str
    value: float
    unit: str
    limit: float | None = None  # the target, if it has one


@dataclass(frozen=True, slots=True)
class Timing:
    """One request, in microseconds."""

    total_us: float
    queue_us: float
    step_us: float


class Connection:
    """One keep-alive connection that sends the same request again and again."""

    def __init__(self, address: str, query: str) -> None:
        url = urlsplit(address)
        assert url.hostname
        assert url.port
        self._socket = socket.create_connection((url.hostname, url.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"input": query, "encoding_format": "base64"}).encode()
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nhost: {url.netloc}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body

    def time_one(self) -> Timing:
        """Sends the request and reads the whole answer."""
        started = time.perf_counter_ns()
        self._socket.sendall(self._request)
        answer = self._socket.recv(1 << 16)
        while b"\r\n\r\n" not in answer:
            answer += self._receive()
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        num_missing = int(headers["content-length"]) - len(body)
        while num_missing > 0:
            num_missing -= len(self._receive())
        total_us = (time.perf_counter_ns() - started) / 1e3
        if " 200 " not in f"{status} ":
            raise SystemExit(f"error: the server answered {status}: {body!r}")
        return Timing(
            total_us, float(headers["x-flowerbed-queue-us"]), float(headers["x-flowerbed-step-us"])
        )

    def _receive(self) -> bytes:
        received = self._socket.recv(1 << 16)
        if not received:
            raise SystemExit("error: the server closed the connection")
        return received


def request_rows(timings: list[Timing]) -> list[Row]:
    """p50 and p99 of each part, milliseconds."""
    parts = {
        "own share (total less step)": [t.total_us - t.step_us for t in timings],
        "queue": [t.queue_us for t in timings],
        "step": [t.step_us for t in timings],
        "total": [t.total_us for t in timings],
    }
    rows: list[Row] = []
    for name, values_us in parts.items():
        p50, p99 = np.percentile(values_us, [50, 99]) / 1e3
        limit = MAX_OVERHEAD_P50_MS if name.startswith("own share") else None
        rows += [Row(f"{name}, p50", p50, "ms", limit), Row(f"{name}, p99", p99, "ms")]
    return rows


def import_seconds() -> float:
    """Median of `import flowerbed` in fresh interpreters, the interpreter's own start left out."""
    code = "import time; t = time.perf_counter(); import flowerbed; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    runs = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(NUM_IMPORTS)
    ]
    return statistics.median(runs)


def measure() -> list[Row]:
    """All rows."""
    started = time.perf_counter()
    with serving() as server:
        ready_s = time.perf_counter() - started
        connection = Connection(server.address, QUERY)
        for _ in range(NUM_WARM_UP):
            connection.time_one()
        timings = [connection.time_one() for _ in range(NUM_REQUESTS)]
    return [
        *request_rows(timings),
        Row("start to ready", ready_s, "s", MAX_READY_S),
        Row("import flowerbed", import_seconds(), "s", MAX_IMPORT_S),
    ]


def main() -> None:
    """Measures and prints."""
    where = machine.describe()
    table = Table(title=f"one query, {NUM_REQUESTS} requests over one connection")
    for column in ("figure", "value", "unit", "target"):
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right")
    for row in measure():
        fields = {"benchmark": "overhead", "figure": row.name, "value": round(row.value, 4)}
        print(json.dumps({**fields, "unit": row.unit, "target": row.limit, **where}), flush=True)
        target = f"≤ {row.limit:g}" if row.limit is not None else ""
        style = "red" if row.limit is not None and row.value > row.limit else ""
        table.add_row(row.name, f"{row.value:.3f}", row.unit, target, style=style)
    console = Console(stderr=True)
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in where.items()), style="dim")


if __name__ == "__main__":
    main()
