"""Writes tables of docs/measured-facts.md from results/h200.jsonl: `python benchmarks/facts_tables.py [--check]`.

Those of `ablation.py`, `graph_modes.py`, `idle_device.py`, `loads.py` and `peers/run.py`, each between two comments; the text around
them is written by hand. Of each benchmark the rows of the last commit count, of `KEYS` of each part. `--check` writes nothing and fails if a
table is not what the rows say.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from graph_modes import MAX_PADDING, MAX_WAIT_MS, MIN_REPLAYS
from peers_table import peers
from readme_table import RESULTS, ROOT, Row, line, newest, replaced, table_head, update

FACTS = ROOT / "docs" / "measured-facts.md"


def ablation(rows: Sequence[Row]) -> list[str]:
    """A line a system: p50 / p99 milliseconds, answers a second of each load."""
    cells = {(row["system"], row["load"]): row for row in rows}
    loads = list(dict.fromkeys(row["load"] for row in rows))
    lines = table_head(["p50 / p99 ms, answers/s", *loads, "lowest cosine to the first"])
    for system in dict.fromkeys(row["system"] for row in rows):
        own = [cells[system, load] for load in loads if (system, load) in cells]
        figures = [
            f"{row['p50_ms']:.2f} / {row['p99_ms']:.2f}, {row['answers_per_s']:,.0f}" for row in own
        ]
        figures += [""] * (len(loads) - len(own))
        lines.append(line([system, *figures, f"{own[0]['min_cosine_to_first']:.6f}"]))
    return lines


def graph_modes(rows: Sequence[Row]) -> list[str]:
    """A line a figure, a column a mode."""
    lines = table_head(["`--graph-capture`", *(row["mode"] for row in rows), "target"])

    def add(figure: str, cell: Callable[[Row], str], target: str = "") -> None:
        lines.append(line([figure, *(cell(row) for row in rows), target]))

    add("start to first answer, s", lambda row: f"{row['ready_s']:.1f}")
    add("graphs, MB", lambda row: f"{row['num_graphs']}, {row['graph_mb']:,}")
    for phase, name in (
        ("first", "the first"),
        ("steady", "the next"),
        ("mix", "beside a re-index"),
    ):
        add(f"{name}: requests, p50 / p99 / max ms", lambda row, phase=phase: _phase(row, phase))
    add("the re-index, texts/s", lambda row: f"{row['mix']['index']['texts_per_s']:,.0f}")
    add(
        "captures under load, longest ms",
        lambda row: f"{row['captures_after_ready']}, {row['longest_capture_ms']:.1f}",
        f"{MAX_WAIT_MS:.0f} ms",
    )
    for share, target in (("replays", f"{MIN_REPLAYS:.0%}"), ("padding", f"{MAX_PADDING:.0%}")):
        add(f"{share}, at last", lambda row, share=share: f"{row['mix'][share]:.2%}", target)
    return lines


def idle_device(rows: Sequence[Row]) -> list[str]:
    """A line a shape."""
    columns = ["shape", "step µs", "step alone µs", "idle", "traced: step µs", "idle", "copies"]
    lines = table_head([*columns, "gaps in a step", "kernels"])
    for row in rows:
        times = [f"{row[key]:,.0f}" for key in ("step_us", "step_alone_us")]
        names = ("idle_between_steps", "copies", "gaps_in_steps", "kernels")
        shares = [f"{row[f'traced_{name}']:.2%}" for name in names]
        cells = [*times, f"{row['idle']:.2%}", f"{row['traced_step_us']:,.0f}", *shares]
        lines.append(line([row["shape"].replace("x", " x "), *cells]))
    return lines


def throughput(rows: Sequence[Row]) -> list[str]:
    """A line a length."""
    columns = [
        "tokens a text",
        "emb/s",
        "tokens/s",
        "p50 / p99 ms of a call",
        "client cores",
        "worker",
    ]
    lines = table_head(columns)
    for row in rows:
        length = f"{row['length']:,}" if row["length"] else row["name"]
        rates = [f"{row[f'{what}_per_second']:,.0f}" for what in ("rows", "tokens")]
        lines.append(
            line([length, *rates, _spread(row), _client(row), f"{row['worker_cores']:.2f}"])
        )
    return lines


def text_rate(rows: Sequence[Row]) -> list[str]:
    """A line a form and length."""
    columns = ["", "tokens a text", "texts/s", "million tokens/s", "p50 / p99 ms of 100 texts"]
    lines = table_head(
        [*columns, "gateway µs a text", "of it tokenizing", "gateway cores", "worker", "client"]
    )
    for row in rows:
        cells = [row["figure"], f"{row['length']:,}", f"{row['rows_per_second']:,.0f}"]
        cells += [f"{row['tokens_per_second'] / 1e6:.2f}", _spread(row)]
        for what in ("gateway", "tokenizing"):
            cells += ["" if "gRPC" in row["figure"] else f"{row[f'{what}_us_per_text']:.1f}"]
        cells += [f"{row[f'{part}_cores']:.2f}" for part in ("gateway", "worker")]
        lines.append(line([*cells, _client(row)]))
    return lines


def open_loop(rows: Sequence[Row]) -> list[str]:
    """A line a rate."""
    columns = [
        "",
        "",
        "asked a second",
        "answered",
        "p50 ms",
        "p95",
        "p99",
        "p99.9",
        "bad",
        "of",
        "client cores",
    ]
    lines = table_head(columns)
    for row in rows:
        asked = f"{row['asked_per_second']:,.0f}" if "asked_per_second" in row else ""
        cells = [row["name"], row["figure"], asked, f"{row['achieved_per_second']:,.0f}"]
        cells += [f"{row['latency_ms'][key]:.2f}" for key in ("p50", "p95", "p99", "p999")]
        lines.append(line([*cells, f"{row['bad']:,}", f"{row['sent']:,}", _client(row)]))
    return lines


def scoring_beside(rows: Sequence[Row]) -> list[str]:
    """A line a stream."""
    lines = table_head(
        ["", "", "requests/s", "texts/s", "p50 ms", "p99", "max", "of", "bad", "lost"]
    )
    for row in rows:
        cells = [row["figure"], row["name"]]
        cells += [f"{row[f'{what}_per_second']:,.1f}" for what in ("achieved", "rows")]
        cells += [f"{row['latency_ms'][key]:.2f}" for key in ("p50", "p99", "max")]
        lost = f"{row['re_index_lost']:.1%}" if "re_index_lost" in row else ""
        lines.append(line([*cells, f"{row['sent']:,}", f"{row['bad']:,}", lost]))
    return lines


def _spread(row: Row) -> str:
    return " / ".join(f"{row['latency_ms'][key]:.1f}" for key in ("p50", "p99"))


def _client(row: Row) -> str:
    return f"{row['client_cores']:.2f}" + (", the limit" if row["is_client_limit"] else "")


def _phase(row: Row, phase: str) -> str:
    texts = row[phase]["texts"]
    spread = " / ".join(f"{texts['ms'][key]:.2f}" for key in ("p50", "p99", "max"))
    return f"{texts['n']:,}, {spread}"


TABLES: dict[str, Callable[[Sequence[Row]], list[str]]] = {
    "ablation": ablation,
    "graph_modes": graph_modes,
    "idle_device": idle_device,
    "throughput": throughput,
    "text_rate": text_rate,
    "open_loop": open_loop,
    "scoring_beside": scoring_beside,
    "peers": peers,
}

KEYS: dict[str, tuple[str, ...]] = {"graph_modes": ("mode",), "peers": ("model", "system")}
"""What may be measured without the others: of each the rows of its last commit count."""


def block(benchmark: str, rows: Sequence[Row], begin: str, end: str) -> str:
    """All that stands between the comments."""
    found = newest([row for row in rows if row["benchmark"] == benchmark], *KEYS.get(benchmark, ()))
    if not found:
        return f"{begin}\n{end}"
    first = found[0]
    gpu = first["gpu"] if "gpu" in first else first["device"]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in found))
    where = ", ".join([gpu, *(str(first[key]) for key in ("model", "dtype")), commits])
    return "\n".join([begin, f"{where}:", "", *TABLES[benchmark](found), end])


def main() -> None:
    """Writes, or checks."""
    parser = argparse.ArgumentParser(description="Write tables of docs/measured-facts.md.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it would")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--facts", type=Path, default=FACTS)
    options = parser.parse_args()
    rows = [json.loads(text) for text in options.results.read_text(encoding="utf-8").splitlines()]
    wanted = options.facts.read_text(encoding="utf-8")
    for benchmark in TABLES:
        begin = f"<!-- {benchmark}: made by benchmarks/facts_tables.py -->"
        end = f"<!-- end of {benchmark} -->"
        wanted = replaced(wanted, block(benchmark, rows, begin, end), begin, end)
    update(options.facts, wanted, by=Path(__file__).name, is_check=options.check)


if __name__ == "__main__":
    main()
