"""Writes README's figures of an H200 from results/h200.jsonl: `python benchmarks/readme_table.py [--check]`.

They stand between two comments in README.md. Of each suite of a model the rows of the last commit count.
`--check` writes nothing and fails if the block is not what the rows say; `tests/test_readme_table.py` calls it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "h200.jsonl"
BEGIN = "<!-- figures: made by benchmarks/readme_table.py -->"
END = "<!-- end of figures -->"
FOLDER_COMMAND = "python benchmarks/random_models.py SHAPE FOLDER"
ENGINE_COMMAND = "flowerbed bench engine FOLDER --budget 4672 --budget 16384"
SERVING_COMMAND = "python benchmarks/serving_gpu.py FOLDER"
Row = dict[str, Any]


def newest(rows: Iterable[Row], *keys: str) -> list[Row]:
    """The rows of the last commit that measured each combination of these fields."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return [
        row for group in grouped.values() for row in group if row["commit"] == group[-1]["commit"]
    ]


def requests_table(rows: Sequence[Row]) -> list[str]:
    """One request after another: a line a model and format, a column a shape."""
    chosen = [row for row in rows if row["suite"] in {"latency", "scoring"}]
    # Of the budgets the smallest counts: that of a server while queries come.
    chosen.sort(key=lambda row: -row["batch_tokens"])
    shapes = sorted({(row["num_seqs"], row["seq_len"]) for row in chosen})
    columns = [f"{count} x {length:,}" for count, length in shapes]
    lines = table_head(["model", "tokens a step, up to", *columns])
    for name in unique(rows):
        own = {(row["num_seqs"], row["seq_len"]): row for row in chosen if title(row) == name}
        cells = [
            f"{own[shape]['p50_ms']:.2f} / {own[shape]['p99_ms']:.2f}" if shape in own else ""
            for shape in shapes
        ]
        budgets = sorted({row["batch_tokens"] for row in own.values()})
        lines.append(line([name, " or ".join(f"{one:,}" for one in budgets), *cells]))
    return lines


def throughput_table(rows: Sequence[Row]) -> list[str]:
    """Full steps without pause: a line a model, format and length."""
    throughput = [row for row in rows if row["suite"] == "throughput"]
    # Of the budgets the largest counts: that of bulk work alone.
    throughput.sort(key=lambda row: row["batch_tokens"])
    chosen = {(title(row), row["seq_len"]): row for row in throughput}
    columns = ("model", "tokens a step, up to", "a text", "texts/s", "million tokens/s")
    lines = table_head([*columns, "H200-hours a million texts", "lowest cosine to float32"])
    for name in unique(rows):
        for (model, _), row in chosen.items():
            if model == name:
                hours = 1e6 / row["emb_per_s"] / 3_600
                cells = [f"{row['batch_tokens']:,}"]
                cells += [f"{row['seq_len']:,}" if row["seq_len"] else "mix, mean 180"]
                cells += [f"{row['emb_per_s']:,.0f}", f"{row['tok_per_s'] / 1e6:.2f}"]
                lines.append(line([name, *cells, f"{hours:.3f}", cosine(row)]))
    return lines


def serving_table(rows: Sequence[Row]) -> list[str]:
    """The whole server, over HTTP: a line a figure."""
    lines = table_head(["over HTTP", "requests/s", "texts/s", "p50 ms", "p99 ms"])
    for row in rows:
        latency = row["latency_ms"]
        is_second = row["name"] == "re-index" and not row["figure"].startswith("re-index")
        figure = row["figure"] + (": the re-index" if is_second else "")
        cells = [f"{row['achieved_per_second']:,.0f}", f"{row['rows_per_second']:,.0f}"]
        lines.append(line([figure, *cells, f"{latency['p50']:.2f}", f"{latency['p99']:.2f}"]))
    return lines


def block(rows: Sequence[Row]) -> str:
    """All that stands between the comments."""
    own = (row for row in rows if row["benchmark"] == "engine" and row["suite"] != "curve")
    engine = [{"batch_invariant": False} | row for row in own]  # which older rows do not say
    engine = newest(engine, "model", "dtype", "batch_invariant", "suite")
    serving = newest([row for row in rows if row.get("benchmark") == "serving_gpu"])
    last = engine[-1]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in (*engine, *serving)))
    return "\n".join(
        [
            BEGIN,
            f"One {last['device']}, torch {last['torch']}, {last['attention']}; random weights of the real "
            f"shapes (`{FOLDER_COMMAND}`); commit {commits}.",
            "",
            f"`{ENGINE_COMMAND}` (and `--dtype`, `--batch-invariant` as each line says), from ids in host memory to vectors in host memory.",
            "One request of texts x tokens, p50 / p99 in milliseconds:",
            "",
            *requests_table(engine),
            "",
            "Full steps without pause; the cosine is the lowest of 64 sequences:",
            "",
            *throughput_table(engine),
            "",
            f"`{SERVING_COMMAND} {serving[-1]['options']}`: {serving[-1]['model']}, the client on the same machine, "
            "from the intended time of a request to its whole answer:",
            "",
            *serving_table(serving),
            END,
        ]
    )


def table_head(columns: Sequence[str]) -> list[str]:
    """The first two lines of a table."""
    return [line(columns), "|" + "---|" * len(columns)]


def line(cells: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"


def title(row: Row) -> str:
    """What ran."""
    mode = ", batch-invariant" if row.get("batch_invariant") else ""
    if row["dtype"] == "bfloat16" and not mode and not row["model"].startswith("qwen3"):
        mode = ", batch-invariant off"  # which is not what auto takes
    return f"{row['model'].removesuffix(' (random weights)')}, {row['dtype']}{mode}"


def unique(rows: Sequence[Row]) -> list[str]:
    """What ran, each once."""
    return list(dict.fromkeys(map(title, rows)))


def cosine(row: Row) -> str:
    """Rounded down, so that it promises no more than was measured."""
    found = row.get("min_cosine")
    return "" if found is None else f"{int(found * 1e5) / 1e5:.5f}"


def replaced(text: str, figures: str, begin: str = BEGIN, end: str = END) -> str:
    """The text with the block in place of the one in it."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"error: the lines {begin} and {end} are not there")
    return before + figures + after


def update(path: Path, wanted: str, *, by: str, is_check: bool) -> None:
    """Writes the file, or ends with an error if it is another one; `by`: the program that makes it."""
    if wanted == path.read_text(encoding="utf-8"):
        return
    if is_check:
        raise SystemExit(f"error: {path} is not what the results say: run benchmarks/{by}")
    path.write_text(wanted, encoding="utf-8")


def main() -> None:
    """Writes, or checks."""
    parser = argparse.ArgumentParser(description="Write README's figures from results/h200.jsonl.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it would")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--readme", type=Path, default=README)
    options = parser.parse_args()
    rows = [json.loads(text) for text in options.results.read_text(encoding="utf-8").splitlines()]
    wanted = replaced(options.readme.read_text(encoding="utf-8"), block(rows))
    update(options.readme, wanted, by=Path(__file__).name, is_check=options.check)


if __name__ == "__main__":
    main()
