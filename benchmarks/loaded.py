"""A worker and its gateway under load: runs clients, and makes a row of what they and the processes say.

Called by the loads of `loads.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import parts
import texts
from cores import Usage, by_thread
from loadgen import Item, Process, Report, Stream
from tokenizers import Tokenizer

from flowerbed.hub import resolve

BULK = {"x-flowerbed-lane": "bulk"}
MAX_CLIENT_CORES = 0.8
"""Of one thread of a client: beyond it, what is measured may be the client."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Client:
    """One process of the load generator."""

    streams: Sequence[Stream]
    is_grpc: bool = False  # to the worker
    threads: int = 1


@dataclass(slots=True)
class Loaded:
    """What clients saw, and what they and the server took, in cores."""

    reports: list[list[Report]]  # of each client, of each stream
    client_cores: list[float]
    gateway_cores: float
    gateway_threads: dict[str, float]  # the same by name
    worker_cores: float
    is_client_limit: bool

    def row(self, report: Report, **facts: object) -> Row:
        """Of one stream."""
        bad = report["unexpected"] + report["wrong"] + sum(report["errors"].values())
        return {
            **facts,
            **report,
            "bad": bad,
            "client_cores": round(sum(self.client_cores), 3),
            "gateway_cores": round(self.gateway_cores, 3),
            "gateway_threads": self.gateway_threads,
            "worker_cores": round(self.worker_cores, 3),
            "is_client_limit": self.is_client_limit,
        }


@dataclass
class Server:
    """What is loaded."""

    model: str | None
    worker: parts.Part
    gateway: parts.Part
    scale: float  # of all times
    keep: Callable[[Row], None]
    rates: dict[str, float] = field(default_factory=dict[str, float])  # found by earlier loads

    def load(self, clients: Sequence[Client]) -> Loaded:
        """Runs clients side by side; warns on stderr of answers that are not as they should be."""
        pids = (self.gateway.process.pid, self.worker.process.pid)
        before = [Usage.now(pid) for pid in pids]
        threads_before = by_thread(pids[0])
        running = [
            Process(
                f"grpc://{self.worker.address}" if client.is_grpc else self.gateway.address,
                client.streams,
                threads=client.threads,
            )
            for client in clients
        ]
        reports = [process.reports() for process in running]
        after = [Usage.now(pid) for pid in pids]
        threads = {
            name: round((used - threads_before.get(name, 0.0)) / longest(reports), 3)
            for name, used in by_thread(pids[0]).items()
        }
        gateway, worker = (
            (now.ours_s - earlier.ours_s) / longest(reports)
            for now, earlier in zip(after, before, strict=True)
        )
        client_cores = [own[0]["client_cpu_seconds"] / max(longest([own]), 1e-3) for own in reports]
        pairs = zip(clients, client_cores, strict=True)
        is_limit = any(used > MAX_CLIENT_CORES * client.threads for client, used in pairs)
        for report in (report for own in reports for report in own):
            if report["unexpected"] or report["wrong"] or report["errors"]:
                few = {key: report[key] for key in ("by_status", "errors", "wrong_reasons")}
                print(f"warning: {report['name']}: {few}", file=sys.stderr)
        return Loaded(reports, client_cores, gateway, threads, worker, is_limit)

    @cached_property
    def folder(self) -> Path:
        """Of the model."""
        return resolve(self.model).path

    @cached_property
    def max_length(self) -> int:
        """Tokens of an input."""
        return parts.info(self.gateway.address)["max_input_length"]

    @cached_property
    def vocab_rows(self) -> int:
        """Every id is below."""
        return json.loads((self.folder / "config.json").read_text())["vocab_size"]

    def texts(self, count: int, num_tokens: int, seed: int) -> list[str]:
        """See `make_texts`."""
        return make_texts(self.folder, count, num_tokens, seed)


def open_tokenizer(folder: Path) -> Tokenizer:
    """As the gateway has it: nothing is cut."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def make_texts(folder: Path, count: int, num_tokens: int, seed: int) -> list[str]:
    """Texts of so many tokens, special ones included: real ones, where the tokenizer is real."""
    tokenizer = open_tokenizer(folder)
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    is_random = tokenizer.token_to_id("w17") is not None
    found: list[str] = []
    while len(found) < count:
        seed += 1
        if is_random:
            words = texts.random_words(num_tokens - special, seed)
        else:
            [words] = texts.queries(1, num_tokens, seed)
        encoding = tokenizer.encode(words, add_special_tokens=False)
        text = words[: encoding.offsets[num_tokens - special - 1][1]]
        # Cut within a word, it may have other tokens.
        if len(tokenizer.encode(text).ids) == num_tokens:
            found.append(text)
    return found


def longest(reports: Sequence[Sequence[Report]]) -> float:
    """Seconds from the first begin to the last end."""
    every = [report for own in reports for report in own]
    end = max(report["began_s"] + report["seconds"] for report in every)
    return max(end - min(report["began_s"] for report in every), 1e-3)


def together(reports: Sequence[Report]) -> Report:
    """One report of several processes that did the same; p50 is the median of theirs, all above it the largest."""
    seconds = longest([reports])
    whole: Report = {**reports[0], "seconds": round(seconds, 4), "processes": len(reports)}
    for count in ("sent", "ok", "unexpected", "wrong"):
        whole[count] = sum(report[count] for report in reports)
    for rate in ("achieved_per_second", "rows_per_second", "tokens_per_second"):
        whole[rate] = sum(report[rate] * report["seconds"] for report in reports) / seconds
    for spread in ("latency_ms", "queue_ms", "step_ms"):
        whole[spread] = {
            key: (median if key in {"mean", "p50"} else max)(
                report[spread][key] for report in reports
            )
            for key in reports[0][spread]
        }
    for counts in ("errors", "by_status"):
        names = {name for report in reports for name in report[counts]}
        whole[counts] = {
            name: sum(report[counts].get(name, 0) for report in reports) for name in sorted(names)
        }
    return whole


def embed(
    inputs: Sequence[str], headers: dict[str, str] | None = None, form: str = "base64"
) -> Item:
    """A request for vectors."""
    body = {"input": list(inputs), "encoding_format": form}
    return Item(body, rows=len(inputs), headers=headers or {})


def run_item(ids: Sequence[Sequence[int]], lane: str) -> Item:
    """A call of the worker."""
    return Item(run={"ids": ids, "lane": lane}, rows=len(ids))
