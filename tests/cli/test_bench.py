"""`flowerbed bench engine` on a CPU: one JSON object a row."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(120)
def test_rows_tell_what_was_measured_and_where() -> None:
    command = [sys.executable, "-m", "flowerbed", "bench", "engine", "--device", "cpu"]
    command += ["--suite", "latency", "--budget", "128", "--label", "abc123", "--no-reference"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    rows = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert [(row["num_seqs"], row["seq_len"]) for row in rows] == [(1, 32), (1, 128)]
    for row in rows:
        assert row["suite"] == "latency"
        assert row["system"] == "flowerbed"
        assert row["model"].endswith("all-MiniLM-L6-v2")
        assert (row["dtype"], row["attention"], row["mode"]) == ("float32", "sdpa", "eager")
        assert row["commit"] == "abc123"
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["emb_per_s"] * row["p50_ms"] == pytest.approx(1_000, rel=0.01)
        assert row["min_cosine"] is None
