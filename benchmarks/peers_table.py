"""The tables of `peers/run.py` in docs/measured-facts.md, for `facts_tables.py`: a line a figure, a column a system."""

from __future__ import annotations

from collections.abc import Sequence

from readme_table import Row, cosine, line, table_head

BY_RATE = {"throughput", "clients"}
"""Suites of which the rate counts; of the others the latency does."""


def peers(rows: Sequence[Row]) -> list[str]:
    """A table a model; of several rows of a figure, as of two budgets, the better one."""
    lines: list[str] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        lines += ["", f"{model}:", "", *_table(own)] if lines else _table(own)
    return lines


def _table(rows: Sequence[Row]) -> list[str]:
    keys = ("system", "version", "dtype", "commit")
    systems = list(dict.fromkeys(tuple(str(row[key]) for key in keys) for row in rows))
    has_one_commit = len({row["commit"] for row in rows}) == 1
    names = [
        f"{name} {version}, {dtype}" + ("" if has_one_commit else f", {commit}")
        for name, version, dtype, commit in systems
    ]
    lines = table_head(["", *names])
    best: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells = best.setdefault(_figure(row), {})
        other = cells.get(row["system"])
        if other is None or _merit(row) > _merit(other):
            cells[row["system"]] = row
    for figure, cells in best.items():
        found = (cells.get(name) for name, *_ in systems)
        lines.append(line([figure, *(_cell(row) if row else "" for row in found)]))
    last = {row["system"]: row for row in rows}
    lines.append(line(["lowest cosine to float32", *(cosine(last[name]) for name, *_ in systems)]))
    return lines


def _figure(row: Row) -> str:
    length = f"{row['seq_len']:,} tokens" if row["seq_len"] else "a mix of mean 180"
    match row["suite"]:
        case "throughput":
            return f"texts of {length}, emb/s"
        case "clients":
            return f"{row['callers']} clients x {row['num_seqs']} texts of {length}, emb/s"
        case "callers":
            return f"{row['callers']} callers, a text of {length}, p50 / p99 ms"
        case "http":
            return f"HTTP: {row['load']}, p50 / p99 ms, texts/s"
        case "rerank" | "rerank-text" as suite:
            given = "ids" if suite == "rerank" else "texts"
            return f"{row['num_seqs']} pairs of {length}, as {given}, p50 / p99 ms, docs/s"
        case _:
            return f"{row['num_seqs']} x {row['seq_len']:,}, p50 / p99 ms"


def _cell(row: Row) -> str:
    spread = f"{row['p50_ms']:.2f} / {row['p99_ms']:.2f}"
    if row["suite"] in BY_RATE:
        return f"{row['emb_per_s']:,.0f}"
    if row["suite"] in {"http", "rerank", "rerank-text"}:
        return f"{spread}, {row['emb_per_s']:,.0f}"
    return spread


def _merit(row: Row) -> float:
    return row["emb_per_s"] if row["suite"] in BY_RATE else -row["p50_ms"]
