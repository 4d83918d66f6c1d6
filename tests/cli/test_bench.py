"""`flowerbed bench engine` on a CPU: one JSON object a row."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(120)
def test_rows_tell_what_was_measured_and_where() -> None:
    command = [sys.executable, "-m", "flowerbed", "bench", "engine", "--device", "cpu"]
    command += ["--suite", "latency", "--budget", "128", "--label", "abc123", "--no-reference"]
    command += ["--suite", "scoring"]  # of texts of 512 tokens, which the model does not take
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
    assert "scoring: its texts are longer than the model's 256 tokens" in outcome.stderr


def test_curves_go_over_tokens_and_over_sequences() -> None:
    from flowerbed import bench

    shapes = bench.curve_shapes(longest=512)
    assert len(shapes) == len(set(shapes))
    assert max(seq_len for _, seq_len in shapes) == 512
    at_2048 = {num_seqs for num_seqs, seq_len in shapes if num_seqs * seq_len == 2_048}
    assert at_2048 == {4, 8, 16, 32, 64}  # 1 and 2 sequences would be too long
    with_8 = [8 * seq_len for num_seqs, seq_len in shapes if num_seqs == 8]
    assert with_8 == [32, 64, 128, 256, 512, 1_024, 2_048, 4_096]


def test_a_million_texts_take_hours_only_in_full_steps() -> None:
    from flowerbed import bench

    row = bench.Row("throughput", 1, 32, 128, 1.0, 1.0, 1e6 / 3_600, 1.0, "eager", "normal")
    assert bench.hours_per_million(row) == pytest.approx(1.0)
    assert bench.hours_per_million(dataclasses.replace(row, suite="latency")) is None
