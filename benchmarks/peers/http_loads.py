"""The same load on any server of `/v1/embeddings`: one query at a time, many callers, a re-index.

`python benchmarks/peers/http_loads.py FOLDER [serve's options]` puts it on `flowerbed serve`; `vllm_serve.py` puts it
on vLLM. The texts and the generator are those of `serving_gpu.py`, on the same machine as the server.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import numpy as np
import rows
from loadgen import Stream, run
from numpy.typing import NDArray
from rows import Ids, Report
from serving_gpu import (
    BULK,
    DOCUMENT_WORDS,
    INDEX_CALLERS,
    INDEX_ROWS,
    QUERY_WORDS,
    embed,
    texts,
)

from flowerbed.background import serving

WARM_UP_S, TIMEOUT_S = 2.0, 120.0
NUM_QUERIES, NUM_DOCUMENTS = 2_000, 400


@dataclass(frozen=True, slots=True)
class Load:
    """Callers that ask again when they are answered."""

    name: str
    num_words: int
    num_texts: int  # of a request
    callers: int
    seconds: float

    def stream(self, scale: float) -> Stream:
        """As the generator takes it."""
        is_bulk = self.num_texts > 1
        count = INDEX_ROWS * 24 if is_bulk else NUM_DOCUMENTS
        count = NUM_QUERIES if self.num_words == QUERY_WORDS else count
        given = texts(count, self.num_words, seed=self.num_words)
        parts = [given[at : at + self.num_texts] for at in range(0, count, self.num_texts)]
        items = [embed(part, BULK if is_bulk else None) for part in parts]
        pace = f"callers={self.callers}"
        return Stream("texts", items, pace, self.seconds * scale, "check=no")


LOADS = (
    Load("one query at a time", QUERY_WORDS, 1, 1, 4.0),
    Load("16 callers of 512 tokens", DOCUMENT_WORDS, 1, 16, 5.0),
    Load("64 callers of queries", QUERY_WORDS, 1, 64, 4.0),
    Load("re-index", DOCUMENT_WORDS, INDEX_ROWS, INDEX_CALLERS, 6.0),
)


def drive(report: Report, address: str, scale: float = 1.0) -> None:
    """Prints a row a load.

    Args:
        report: Takes the rows.
        address: Of the server, http://host:port.
        scale: Of the seconds that each load lasts.
    """
    most = rows.longest(report.options.folder)
    for load in (load for load in LOADS if load.num_words < most):
        stream = load.stream(scale)
        warm_up = Stream(stream.name, stream.items, stream.pace, WARM_UP_S * scale, stream.options)
        run(address, [warm_up])
        found = run(address, [stream])[0]
        spread = {f"{key}_ms": found["latency_ms"][key] for key in ("p50", "p99")}
        report.print(
            "http",
            load.num_texts,
            load.num_words + 1,
            load=load.name,
            callers=load.callers,
            **spread,
            **rows.rates(found["rows_per_second"], found["tokens_per_second"]),
            requests_per_s=found["achieved_per_second"],
            errors=found["errors"],
            unexpected=found["unexpected"],  # answers of another status than 200
            client_cores=found["client_cpu_seconds"] / max(found["seconds"], 1e-3),
        )


def vectors(address: str, given: list[Ids]) -> NDArray[np.float32]:
    """[num_texts, dimensions] float32, of a request for every text."""
    found: list[NDArray[np.float32]] = []
    for ids in given:
        body = json.dumps({"input": [rows.text(ids)], "encoding_format": "base64"}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{address}/v1/embeddings", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                encoded: Any = json.load(answer)["data"][0]["embedding"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"error: {error}: {error.read(500).decode()}") from None
        found.append(np.frombuffer(base64.b64decode(encoded), "<f4"))
    return np.stack(found)


def main() -> None:
    """Drives our own server."""
    parser = rows.parser("HTTP load on flowerbed serve; further options go to it.")
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds of each load")
    options, more = parser.parse_known_args()
    started = time.perf_counter()
    with serving(str(options.folder), *more) as server:
        dtype = more[more.index("--dtype") + 1] if "--dtype" in more else "auto"
        report = Report("flowerbed serve", "flowerbed", options, dtype, {"options": more})
        report.ready(started, lambda given: vectors(server.address, given))
        drive(report, server.address, options.scale)
        rows.done()


if __name__ == "__main__":
    main()
