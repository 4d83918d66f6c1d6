"""Latency at shares of saturation, and the largest rate of queries that keeps its p99: arrivals at random times.

Saturation is what a closed loop reaches. Called by `loads.py`.
"""

from __future__ import annotations

import sys

from loaded import Client, Loaded, Server, embed
from loadgen import Item, Report, Stream

QUERY_TOKENS, DOCUMENT_TOKENS = 12, 512
QUERIES, DOCUMENTS = f"{QUERY_TOKENS}-token queries", f"{DOCUMENT_TOKENS}-token texts"
QUERY_CALLERS, DOCUMENT_CALLERS = 256, 64
SHARES = (0.25, 0.5, 0.75, 0.9)
SECONDS, WARM_UP_S = 7.0, 1.5
CLIENT_THREADS = 3
MAX_OPEN = 900
"""Connections, within the usual limit of open files; so many queries open at once are far behind any limit here."""
CONNECTIONS = 256
"""Open before the schedule begins: opening them at these rates is a load of its own."""
MAX_P99_MS = 10.0
SEARCH_TRIES, SEARCH_S = 7, 4.0
MIN_KEPT = 0.98
"""Of the asked rate; a server that answers less is behind."""


def measure(server: Server) -> None:
    """Ladders of queries and of documents, then the search."""
    queries = [embed([text]) for text in server.texts(2_000, QUERY_TOKENS, 1)]
    documents = [
        embed([text]) for text in server.texts(400, min(DOCUMENT_TOKENS, server.max_length), 2)
    ]
    saturated = _ladder(server, QUERIES, queries, QUERY_CALLERS)
    _search(server, queries, saturated)
    _ladder(server, DOCUMENTS, documents, DOCUMENT_CALLERS)


def _ladder(server: Server, name: str, items: list[Item], callers: int) -> float:
    """Saturation in requests a second."""
    closed = f"callers={callers}"
    _load(server, name, items, closed, WARM_UP_S)
    loaded, report = _load(server, name, items, closed, SECONDS)
    rate: float = report["achieved_per_second"]
    facts = {"benchmark": "open_loop"}
    server.keep(loaded.row(report, **facts, figure=f"saturation, {callers} callers", share=1.0))
    for share in SHARES:
        loaded, report = _load(server, name, items, f"poisson={rate * share:.3f}", SECONDS)
        row = loaded.row(report, **facts, figure=f"{share:.0%} of saturation", share=share)
        server.keep(row | {"asked_per_second": round(rate * share, 1)})
    return rate


def _search(server: Server, queries: list[Item], saturated: float) -> None:
    """Halves the interval between a rate that keeps the limit and one that does not."""
    kept, broken, rate = 0.0, None, 0.9 * saturated
    tries: list[dict[str, float | bool]] = []
    best: tuple[Loaded, Report] | None = None
    for _ in range(SEARCH_TRIES):
        loaded, report = _load(server, QUERIES, queries, f"poisson={rate:.3f}", SEARCH_S)
        p99 = report["latency_ms"]["p99"]
        is_answered = report["ok"] == report["sent"] and not report["errors"]
        is_kept = (
            is_answered and p99 <= MAX_P99_MS and report["achieved_per_second"] >= MIN_KEPT * rate
        )
        tries.append({"rate": round(rate, 1), "p99_ms": p99, "is_kept": is_kept})
        if is_kept:
            kept, best = rate, (loaded, report)
        else:
            broken = rate
        rate = 1.25 * rate if broken is None else (kept + broken) / 2
    if best is None:
        print(f"warning: no rate kept p99 within {MAX_P99_MS} ms: {tries}", file=sys.stderr)
        return
    loaded, report = best
    facts = {"benchmark": "open_loop", "asked_per_second": round(kept, 1)}
    figure = f"largest rate with p99 up to {MAX_P99_MS:.0f} ms"
    server.keep(loaded.row(report, **facts, figure=figure, share=None, tries=tries))


def _load(
    server: Server, name: str, items: list[Item], pace: str, seconds: float
) -> tuple[Loaded, Report]:
    stream = Stream(
        name,
        items,
        pace,
        seconds * server.scale,
        f"seed=11,check=no,max_open={MAX_OPEN},warm_up={CONNECTIONS}",
    )
    loaded = server.load([Client([stream], threads=CLIENT_THREADS)])
    return loaded, loaded.reports[0][0]
