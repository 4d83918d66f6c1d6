"""Draws what a step takes: `python benchmarks/plots.py`, from results/h200.jsonl into docs/plots/*.svg.

Rows come from `flowerbed bench engine FOLDER --suite curve --budget 16384`, once with graphs and once with
`--graph-capture off`. Of equal shapes the last row counts. Needs matplotlib, of the extra bench.

The background is transparent and the ink grey, so that plots can be read on white and on black.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200.jsonl"
PLOTS = ROOT / "docs" / "plots"
INK = "#7d8590"
LINES = ("#2f81f7", "#d29922", "#3fb950", "#db61a2")
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "flowerbed",  # the same file from the same rows
    "font.family": "sans-serif",
    "font.size": 10,
    **{f"axes.{name}": INK for name in ("edgecolor", "labelcolor", "titlecolor")},
    **{f"{axis}tick.color": INK for axis in "xy"},
    "text.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
SEQUENCES = (1, 8, 32)
TOKENS = (512, 2_048, 8_192)
TICKS_TOKENS = (32, 128, 512, 2_048, 8_192)
TICKS_SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
TICKS_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
Row = dict[str, Any]
Line = tuple[str, list[tuple[int, float]], str]  # name, points, style


def read(path: Path, model: str) -> list[Row]:
    """The rows of the curves of one model, the last of each shape and mode."""
    found: dict[tuple[int, int, bool], Row] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        if row.get("suite") == "curve" and row["model"].startswith(model):
            found[row["num_seqs"], row["seq_len"], row["mode"] == "eager"] = row
    if not found:
        raise SystemExit(f"error: {path} has no rows of the suite curve for {model}")
    return list(found.values())


def over_tokens(rows: Sequence[Row], num_seqs: int, *, is_eager: bool) -> list[tuple[int, float]]:
    """(tokens, milliseconds) of steps with so many sequences."""
    return sorted(
        (row["num_seqs"] * row["seq_len"], row["p50_ms"])
        for row in rows
        if row["num_seqs"] == num_seqs and (row["mode"] == "eager") == is_eager
    )


def over_sequences(rows: Sequence[Row], num_tokens: int) -> list[tuple[int, float]]:
    """(sequences, milliseconds) of steps with so many tokens."""
    return sorted(
        (row["num_seqs"], row["p50_ms"])
        for row in rows
        if row["num_seqs"] * row["seq_len"] == num_tokens and row["mode"] != "eager"
    )


def proportional(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """What steps would take at the rate of the largest one."""
    tokens, milliseconds = max(over_tokens(rows, SEQUENCES[-1], is_eager=False))
    return [(size, milliseconds * size / tokens) for size in (TICKS_TOKENS[0], tokens)]


def draw(path: Path, title: str, lines: Sequence[Line], label: str, ticks: Sequence[int]) -> None:
    """Writes one plot, both axes logarithmic."""
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    for name, points, style in lines:
        x, y = zip(*points, strict=True)
        color = {"color": INK} if style == ":" else {}
        marker = None if style == ":" else "o"
        axes.plot(x, y, style, label=name, marker=marker, markersize=3.5, linewidth=1.5, **color)
    axes.set(
        title=title, xlabel=label, ylabel="step, p50, milliseconds", xscale="log", yscale="log"
    )
    low, high = axes.get_ylim()
    for axis, values in ((axes.xaxis, ticks), (axes.yaxis, TICKS_MS)):
        shown = [one for one in values if axis is axes.xaxis or low <= one <= high]
        axis.set_ticks(shown, labels=[f"{one:,g}" for one in shown])
        axis.set_ticks([], minor=True)
    axes.grid(visible=True)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Draws all plots of one model."""
    parser = argparse.ArgumentParser(description="Draw the curves of results/h200.jsonl.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, default=PLOTS)
    parser.add_argument("--model", default="qwen3-0.6b", help="how its name begins")
    options = parser.parse_args()
    import_module("matplotlib").use("svg")
    import_module("matplotlib").rcParams.update(_style())
    rows = read(options.results, options.model)
    device, model = rows[-1]["device"], rows[-1]["model"]
    where = f"{model}, {rows[-1]['dtype']}, {device}"
    by_tokens = [
        (f"sequences: {count}", over_tokens(rows, count, is_eager=False), "-")
        for count in SEQUENCES
    ]
    ideal = ("proportional to tokens", proportional(rows), ":")
    by_sequences = [(f"{size:,} tokens", over_sequences(rows, size), "-") for size in TOKENS]
    modes = [
        (f"{mode}, sequences: {count}", over_tokens(rows, count, is_eager=is_eager), "-")
        for mode, is_eager in (("graph", False), ("eager", True))
        for count in (SEQUENCES[0], SEQUENCES[-1])
    ]
    for name, lines, label, ticks in (
        ("step_tokens", [*by_tokens, ideal], "tokens of a step", TICKS_TOKENS),
        ("step_sequences", by_sequences, "sequences of a step", TICKS_SEQUENCES),
        ("eager_graph", modes, "tokens of a step", TICKS_TOKENS),
    ):
        measured = [line for line in lines if line[1]]
        if measured:
            path = options.folder / f"{name}.svg"
            draw(path, where, measured, label, ticks)
            print(f"{path}: {path.stat().st_size / 1e3:.0f} kB, {len(measured)} lines")


def _style() -> dict[str, Any]:
    cycler = import_module("cycler").cycler
    return {**STYLE, "axes.prop_cycle": cycler(color=LINES)}


if __name__ == "__main__":
    main()
