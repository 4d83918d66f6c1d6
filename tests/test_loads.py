"""`benchmarks/loads.py`: texts of known lengths, and reports of several processes as one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from flowerbed.hub import resolve

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import loaded

Row = dict[str, Any]


def report(began_s: float, seconds: float, rows: int, ms: float) -> Row:
    rates = ("achieved_per_second", "rows_per_second", "tokens_per_second")
    spread = dict.fromkeys(("mean", "p50", "p95", "p99", "p999", "max"), ms)
    return {
        "began_s": began_s,
        "seconds": seconds,
        **dict.fromkeys(("sent", "ok"), 1),
        **dict.fromkeys(("unexpected", "wrong"), 0),
        **dict.fromkeys(rates, rows / seconds),
        **dict.fromkeys(("latency_ms", "queue_ms", "step_ms"), spread),
        "errors": {"timeout": 1},
        "by_status": {"200": 1},
    }


def test_processes_that_end_one_after_another_do_not_add_up_their_rates() -> None:
    whole = loaded.together([report(10.0, 1.0, 100, 1_000), report(10.5, 1.5, 100, 1_500)])
    assert whole["seconds"] == 2.0
    assert whole["rows_per_second"] == pytest.approx(200 / 2.0)
    assert whole["latency_ms"]["p50"] == 1_250
    assert whole["latency_ms"]["p99"] == 1_500
    assert (whole["sent"], whole["errors"], whole["by_status"]) == (2, {"timeout": 2}, {"200": 2})


@pytest.mark.parametrize("num_tokens", [12, 50, 512])
def test_texts_have_as_many_tokens_as_were_asked_for(num_tokens: int) -> None:
    folder = resolve(None).path
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found = loaded.make_texts(folder, 20, num_tokens, seed=3)
    assert [len(one.ids) for one in tokenizer.encode_batch(found)] == [num_tokens] * 20
    assert len(set(found)) == 20
