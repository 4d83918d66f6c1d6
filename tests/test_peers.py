"""`benchmarks/peers` measures others as `flowerbed bench engine` measures this engine, and prints rows alike."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks" / "peers"))

import peers_table
import random_models
import rows
import run as peers
import vllm_options

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
TINY = {
    **random_models.QWEN3_0_6B,
    "vocab_size": rows.NUM_WORDS + rows.FIRST_WORD_ID,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
KEYS = {
    "suite",
    "num_seqs",
    "seq_len",
    "p50_ms",
    "p99_ms",
    "emb_per_s",
    "tok_per_s",
    "system",
    "version",
    "torch",
    "device",
    "model",
    "dtype",
    "commit",
    "min_cosine",
}
"""Of a row of `flowerbed bench engine`, but for what only this engine has: budget, mode and attention."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("tiny")
    random_models.SHAPES["tiny"] = TINY
    random_models.write("tiny", path)
    yield path
    del random_models.SHAPES["tiny"]


def test_texts_and_ids_are_the_same_work(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for ids in rows.sequences([1, 2, 50, 64]):
        assert tokenizer.encode(rows.text(ids)).ids == ids


@pytest.mark.timeout(240)
def test_rows_are_like_ours_and_a_system_that_fails_is_left_out(folder: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "peers" / "run.py"), str(folder), "--at-once"]
    command += ["--systems", "vllm,sentence-transformers", "--device", "cpu", "--label", "a commit"]
    options = "--device cpu --dtype float32 --scale 0.002"
    command += ["--option", "sentence-transformers", options]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert outcome.returncode == 1
    assert "vllm: FAILED" in outcome.stderr  # it is not installed here
    assert "sentence-transformers: measured" in outcome.stderr
    found = [json.loads(line) for line in outcome.stdout.splitlines()]
    shapes = [(row["suite"], row["num_seqs"], row["seq_len"]) for row in found]
    assert shapes == [("latency", 1, 32), ("throughput", 8, 50), ("throughput", 8, 0)]
    for row in found:
        assert row.keys() >= KEYS | {"flags"}
        assert row["min_cosine"] > 0.99999
        assert row["system"] == "sentence-transformers"
        assert row["commit"] == "a commit"
        assert 0 < row["p50_ms"] <= row["p99_ms"]


def test_latency_and_throughput_count_what_an_engine_takes() -> None:
    given: list[list[int]] = []

    def encode(sequences: list[list[int]]) -> None:
        given.append([len(ids) for ids in sequences])
        time.sleep(0.002)

    ((num_seqs, seq_len, row),) = rows.latency(encode, [(5, 12)], seconds=0.01)
    assert (num_seqs, seq_len) == (5, 12)
    assert all(lengths == [12] * 5 for lengths in given)
    assert len(given) == rows.NUM_WARM + rows.MIN_TIMED
    assert row["p50_ms"] >= 2
    assert row["tok_per_s"] == pytest.approx(12 * row["emb_per_s"])
    assert row["emb_per_s"] == pytest.approx(5e3 / row["p50_ms"])
    given.clear()
    ((count, _, row),) = rows.throughput(encode, [0], 64, scale=0.01)
    assert [len(lengths) for lengths in given[:2]] == [count // 4, count]
    assert max(given[1]) <= 64
    assert row["tok_per_s"] / row["emb_per_s"] == pytest.approx(sum(given[1]) / count)


def test_cosines_are_of_rows() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 3, 8)).astype(np.float32)
    expected = [a @ b / np.sqrt(a @ a * (b @ b)) for a, b in zip(one, other, strict=True)]
    assert rows.cosines(one, other) == pytest.approx(expected, rel=1e-5)


def test_server_and_engine_of_vllm_have_the_same_settings(folder: Path) -> None:
    options = argparse.Namespace(folder=folder, dtype="bfloat16", set=[("max_num_seqs", "256")])
    found = vllm_options.engine_options(options)
    assert found["max_model_len"] == 64
    assert found["max_num_seqs"] == 256
    flags = vllm_options.server_flags(found)
    assert "--no-enable-prefix-caching" in flags
    values: dict[str, Any] = dict(itertools.pairwise(flags))
    assert values["--max-num-seqs"] == "256"
    assert json.loads(values["--compilation-config"]) == found["compilation_config"]


def test_the_table_takes_the_better_row_of_a_figure() -> None:
    shared: dict[str, Any] = {"version": "1", "dtype": "bfloat16", "model": "a model"}
    shared |= {"min_cosine": 0.999_899, "commit": "abc"}
    ours, theirs = {**shared, "system": "ours"}, {**shared, "system": "theirs", "min_cosine": None}
    single = {"suite": "latency", "num_seqs": 1, "seq_len": 512, "p99_ms": 4.0, "emb_per_s": 9.0}
    many = {"suite": "throughput", "seq_len": 0, "p50_ms": 1.0, "p99_ms": 2.0}
    found = peers_table.peers(
        [
            {**ours, **single, "p50_ms": 3.5},
            {**ours, **single, "p50_ms": 2.5},
            {**ours, **many, "num_seqs": 7, "emb_per_s": 1_200.0},
            {**ours, **many, "num_seqs": 9, "emb_per_s": 1_100.0},
            {**theirs, **many, "num_seqs": 5, "emb_per_s": 900.0},
            {**theirs, **single, "suite": "rerank", "num_seqs": 10, "p50_ms": 3.0},
        ]
    )
    assert found[:2] == ["|  | ours 1, bfloat16 | theirs 1, bfloat16 |", "|---|---|---|"]
    assert found[2:] == [
        "| 1 x 512, p50 / p99 ms | 2.50 / 4.00 |  |",
        "| texts of a mix of mean 180, emb/s | 1,200 | 900 |",
        "| 10 pairs of 512 tokens, as ids, p50 / p99 ms, docs/s |  | 3.00 / 4.00, 9 |",
        "| lowest cosine to float32 | 0.99989 |  |",
    ]
    later = {**theirs, **single, "p50_ms": 3.0, "commit": "def"}
    head, *_ = peers_table.peers([{**ours, **single, "p50_ms": 3.5}, later])
    assert head == "|  | ours 1, bfloat16, abc | theirs 1, bfloat16, def |"


def test_systems_are_named_with_or_without_a_folder() -> None:
    assert peers.systems("vllm,vllm-rerank=a/b") == [("vllm", None), ("vllm-rerank", Path("a/b"))]
    with pytest.raises(argparse.ArgumentTypeError, match="'vlm' is not one of flowerbed, "):
        peers.systems("vllm,vlm")
