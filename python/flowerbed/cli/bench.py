"""`flowerbed bench`: how fast a model runs on this machine, with how exact its vectors are beside it."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowerbed import config, logs
from flowerbed.cli import options
from flowerbed.cli.engine import load_engine

if TYPE_CHECKING:  # loads torch
    from flowerbed.bench import Row
    from flowerbed.rose.engine import Engine

log = logging.getLogger(__name__)
app = typer.Typer(name="bench", help="Measure this machine.", no_args_is_help=True)


class Suite(StrEnum):
    """What `flowerbed bench engine` measures."""

    LATENCY = "latency"  # one request of one text
    SCORING = "scoring"  # one request of 5, 25 and 50 texts
    RERANK = (
        "rerank"  # one of 10, 100 and 500 pairs of query and text: the steps that a reranker needs
    )
    THROUGHPUT = "throughput"  # full steps without pause, at fixed lengths and at a real mix
    CURVE = "curve"  # latency over tokens, at fixed counts of sequences, and the reverse


@app.command()
def engine(
    model: options.Model = None,
    revision: options.Revision = None,
    device: options.Device = config.DEFAULT_DEVICE,
    dtype: options.Dtype = config.DType.AUTO,
    attention: options.Attention = config.Attention.AUTO,
    batch_invariant: options.BatchInvariant = config.BatchInvariant.AUTO,
    graph_capture: options.GraphCapture = config.GraphCapture.START,
    budgets: Annotated[
        list[int] | None,
        typer.Option("--budget", min=1, help="Tokens of a step; repeat it for each."),
    ] = None,
    suites: Annotated[
        list[Suite] | None,
        typer.Option(
            "--suite",
            help="What is measured; repeat it for each.",
            show_default="all but rerank and curve",
        ),
    ] = None,
    is_reference: Annotated[
        bool, typer.Option("--reference/--no-reference", help="Compare with float32.")
    ] = True,
    max_batch_sequences: options.MaxBatchSequences = config.MAX_BATCH_SEQUENCES,
    label: Annotated[str, typer.Option(help="Name of the row's commit.")] = "",
) -> None:
    """Time whole steps of a model, from ids in host memory to vectors in host memory.

    Prints one JSON object a line: latency of one request, of 5, 25 and 50 texts to score, and
    throughput at fixed lengths and at a real mix (seq_len 0); each with the worst cosine to float32.
    """
    from flowerbed import bench, devices, knee

    logs.setup(config.LogFormat.TEXT)
    first = devices.expand(device)[0]
    measured = load_engine(
        model, revision, first, dtype, attention, batch_invariant, config.LogFormat.TEXT
    )
    by_default = knee.default_budget(first, measured.space, measured.attention, measured.streams)
    chosen = budgets or sorted({by_default, knee.default_saturation(first)})
    measured.capture(
        online_tokens=config.GPU_ONLINE_BATCH_TOKENS,
        normal_tokens=max(chosen),
        when=graph_capture,
        memory_limit=config.GRAPH_MEMORY_MB << 20,
    )
    cosine = _cosine(measured, first, max(chosen)) if is_reference else None
    shared = _conditions(measured, first, label) | {"min_cosine": cosine}
    longest = measured.folder.text.max_length
    shapes = {
        Suite.LATENCY: bench.LATENCY_SHAPES,
        Suite.SCORING: bench.SCORING_SHAPES,
        Suite.RERANK: bench.RERANK_SHAPES,
        Suite.CURVE: bench.curve_shapes(longest),
    }
    for budget in chosen:
        for suite in suites or (Suite.LATENCY, Suite.SCORING, Suite.THROUGHPUT):
            if suite is Suite.THROUGHPUT:
                lengths = [n for n in bench.THROUGHPUT_LENGTHS if n <= longest]
                rows = bench.throughput(measured, [*lengths, 0], budget, max_batch_sequences)
            else:
                seconds = bench.CURVE_S if suite is Suite.CURVE else bench.LATENCY_S
                fitting = [shape for shape in shapes[suite] if shape[1] <= longest]
                if not fitting:
                    log.warning(
                        "%s: its texts are longer than the model's %d tokens", suite, longest
                    )
                rows = bench.latency(measured, fitting, budget, suite, seconds)
            for row in rows:
                _print(row, shared)


def _cosine(measured: Engine, device: str, budget: int) -> float:
    from flowerbed import bench
    from flowerbed.rose.engine import Engine

    reference = Engine.load(measured.folder, device=device, dtype=config.DType.FLOAT32)
    longest = min(measured.folder.text.max_length, 2_048)
    lengths = [1, 2, 7, longest, *bench.mixed_lengths(60, longest)]
    return round(bench.min_cosine(measured, reference, lengths, budget), 6)


def _conditions(measured: Engine, device: str, label: str) -> dict[str, Any]:
    from flowerbed import knee

    found = knee.conditions(device, measured.space, measured.attention)
    return {
        "system": "flowerbed",
        "version": found.flowerbed,
        "torch": found.torch,
        "device": found.device,
        "model": measured.folder.id,
        "dtype": str(measured.dtype),
        "attention": found.attention,
        "batch_invariant": measured.batch_invariant,
        "commit": label,
    }


def _print(row: Row, shared: dict[str, Any]) -> None:
    from flowerbed import bench

    values = {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(row).items()}
    hours = bench.hours_per_million(row)
    if hours is not None:
        values["device_hours_per_million_texts"] = round(hours, 4)
    print(json.dumps(values | shared), flush=True)
    print(
        f"{row.suite:>11} {row.num_seqs:>4}x{row.seq_len or 'mix':<5} budget {row.batch_tokens:>6} "
        f"p50 {row.p50_ms:9.3f} p99 {row.p99_ms:9.3f} ms {row.emb_per_s:10,.0f} emb/s "
        f"{row.tok_per_s:12,.0f} tok/s {row.mode}"
        + (f" {hours:8.3f} device hours a million texts" if hours is not None else "")
        + (f" {row.sm_clock_mhz} MHz {row.power_w} W" if row.sm_clock_mhz is not None else ""),
        file=sys.stderr,
    )
