"""`benchmarks/idle_device.py` divides a traced run of steps into kernels, copies and gaps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from idle_device import Span, timeline


def steps(count: int) -> list[Span]:
    """Each 27.5 µs: a copy, two kernels with half a microsecond between them, a copy, 3 µs of nothing."""
    spans: list[Span] = []
    for step in range(count):
        at = 27.5 * step
        spans += [
            Span(at, at + 1, is_copy=True, is_input=True),
            Span(at + 2, at + 12, is_copy=False),
            Span(at + 12.5, at + 22.5, is_copy=False),
            Span(at + 23.5, at + 24.5, is_copy=True),
        ]
    return spans


def test_gaps_beside_copies_lie_between_steps() -> None:
    found = timeline(list(reversed(steps(4))))
    assert found.num_steps == 3
    assert found.step_us == pytest.approx(27.5)
    assert found.kernels == pytest.approx(20 / 27.5)
    assert found.copies == pytest.approx(2 / 27.5)
    assert found.in_steps == pytest.approx(0.5 / 27.5)
    assert found.between_steps == pytest.approx(5 / 27.5)


def test_kernels_that_overlap_count_once() -> None:
    spans = [*steps(2), Span(11.0, 12.5, is_copy=False)]
    found = timeline(spans)
    assert found.in_steps == 0
    assert found.kernels == pytest.approx(20.5 / 27.5)


def test_one_step_has_no_next() -> None:
    with pytest.raises(SystemExit, match="no two steps"):
        timeline(steps(1))
