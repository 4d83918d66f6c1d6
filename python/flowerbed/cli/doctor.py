"""`flowerbed doctor`: what this installation consists of, what is wrong with it, and its knee."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flowerbed import config, logs
from flowerbed.cli import options
from flowerbed.cli.engine import load_engine

if TYPE_CHECKING:  # loads torch
    from flowerbed.knee import Knee
    from flowerbed.measure import Point
    from flowerbed.report import Report
    from flowerbed.rose.ceilings import Ceilings


def doctor(
    model: options.Model = None,
    revision: options.Revision = None,
    device: options.Device = config.DEFAULT_DEVICE,
    dtype: options.Dtype = config.DType.AUTO,
    attention: options.Attention = config.Attention.AUTO,
    batch_invariant: options.BatchInvariant = config.BatchInvariant.AUTO,
    host: options.Host = config.DEFAULT_HOST,
    port: options.Port = config.DEFAULT_PORT,
    max_batch_tokens: options.MaxBatchTokens = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Load the model, time copies, products and whole steps of 32 to 4,096 tokens, on a GPU to 8,192, and keep the knee: "
            "workers of this model on this machine then go by it.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    log_format: options.Log = config.LogFormat.TEXT,
) -> None:
    """Say what is installed, what is found on this machine, and what would keep `serve` from working.

    Reads versions, devices, threads, budgets, the model but for its weights, limits. Without --measure it loads
    no model and uses no network: a hub id is only looked up in the cache.

    Exit codes: 0 if serving would work, 1 with the reasons if not, or if the machine was too busy to
    measure.
    """
    from flowerbed.doctor import examine

    logs.setup(log_format)
    if measure:  # before torch is loaded, which reads it once; as `serve` sets it for its workers
        from flowerbed import machine

        os.environ.setdefault(machine.THREADS_VARIABLE, str(machine.num_threads()))
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    report = examine(
        model,
        revision,
        device=device,
        host=host,
        port=port,
        dtype=dtype,
        attention=attention,
        batch_invariant=batch_invariant,
        max_batch_tokens=max_batch_tokens,
    )
    if not measure:
        print(json.dumps(report.as_dict(), indent=2) if as_json else _text(report))
        raise typer.Exit(0 if report.is_good else 1)
    if not as_json:
        print(_text(report))
    measured = _measure(model, revision, device, dtype, attention, batch_invariant, log_format)
    if as_json:
        print(json.dumps({**report.as_dict(), "measured": measured.as_dict()}, indent=2))
    else:
        print(measured.as_text())
    raise typer.Exit(0 if report.is_good and measured.is_kept else 1)


@dataclass(frozen=True)
class Measured:
    """What --measure found."""

    points: list[Point]
    knee: Knee
    budget: int  # that workers take by it
    is_kept: bool
    dtype: str  # of the steps; the products of the ceilings have that of its activations
    attention: str
    batch_invariant: bool
    ceilings: Ceilings

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "dtype": self.dtype,
            "attention": self.attention,
            "batch_invariant": self.batch_invariant,
            "ceilings": asdict(self.ceilings),
            "steps": [
                {"tokens": p.tokens, "ms": p.ms, "tokens_per_s": p.tokens_per_second}
                for p in self.points
            ],
            "knee": self.knee.tokens,
            "max_batch_tokens": self.budget,
            "space": self.knee.conditions.space,
            "kept": self.is_kept,
        }

    def as_text(self) -> str:
        """For people."""
        lines = ["", f"{self.knee.conditions.device}: {self.ceilings}"]
        how = f"in {self.dtype}, attention by {self.attention}"
        how += ", batch-invariant" if self.batch_invariant else ""
        lines += [f"whole steps of {self.knee.model} {how}", ""]
        lines.append(f"{'tokens':>8} {'ms':>10} {'tokens/s':>10}")
        for point in self.points:
            mark = "  <- knee" if point.tokens == self.knee.tokens else ""
            rate = point.tokens_per_second
            lines.append(f"{point.tokens:8,} {point.ms:10.2f} {rate:10,.0f}{mark}")
        lines += ["", f"--max-batch-tokens {self.budget}"]
        if self.budget > self.knee.tokens:
            lines.append("more than the knee, since queries have streams of their own here")
        lines.append(
            "workers of this model on this machine take it by themselves from now on"
            if self.is_kept
            else "not kept: steps of one size took very different times, so something else computes "
            "here; run it again when the machine is idle"
        )
        return "\n".join(lines)


def _measure(
    model: str | None,
    revision: str | None,
    device: str,
    dtype: config.DType,
    attention: config.Attention,
    batch_invariant: config.BatchInvariant,
    log_format: config.LogFormat,
) -> Measured:
    from flowerbed import devices, knee
    from flowerbed.errors import ConfigError
    from flowerbed.measure import as_knee, is_steady, measure, pick
    from flowerbed.rose.ceilings import ceilings
    from flowerbed.rose.device import TORCH_DTYPES

    first = devices.expand(device)[0]
    engine = load_engine(model, revision, first, dtype, attention, batch_invariant, log_format)
    best = ceilings(engine.device, TORCH_DTYPES[engine.dtype])
    points = measure(engine)
    found = as_knee(engine, pick(points))
    budget = knee.budget(first, engine.streams, found.tokens)
    is_kept = is_steady(points)
    if is_kept:
        try:
            knee.store(found)
        except OSError as error:
            raise ConfigError(
                f"cannot keep the knee of {found.tokens} tokens in {knee.cache_file()} "
                f"({error.strerror}): give --max-batch-tokens {budget} instead"
            ) from error
    return Measured(
        points=points,
        knee=found,
        budget=budget,
        is_kept=is_kept,
        dtype=engine.dtype,
        attention=engine.attention,
        batch_invariant=engine.batch_invariant,
        ceilings=best,
    )


def _text(report: Report) -> str:
    lines: list[str] = []
    for topic, facts in report.facts.items():
        lines.append(topic)
        width = max(map(len, facts))
        lines += [f"  {name:{width}}  {_word(value)}" for name, value in facts.items()]
    lines.append("")
    for problem in report.problems:
        lines.append(f"{problem.level}: {problem.what}")
        if problem.fix:
            lines.append(f"hint: {problem.fix}")
    lines.append("serving would work" if report.is_good else "serving would not work")
    return "\n".join(lines)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value is None else str(value)
