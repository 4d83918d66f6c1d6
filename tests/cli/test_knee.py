"""The knee: how it is measured, when it is kept, and which workers take it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flowerbed import knee, measure
from flowerbed.cli.doctor import Measured
from flowerbed.config import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, GPU_ONE_STREAM_BATCH_TOKENS
from flowerbed.knee import Conditions, Knee
from flowerbed.measure import Point

ALONE, ON_A_GPU = ("normal",), ("online", "normal")
"""Streams."""


def a_knee(space="a" * 16, tokens=768, **changes) -> Knee:
    found = knee.conditions("cpu", space, "sdpa")
    return Knee(
        Conditions(**{**vars_of(found), **changes}), "garden/rose", tokens, 1_000.0, "2026-11-29"
    )


def vars_of(found: Conditions) -> dict:
    return {
        name: getattr(found, name)
        for name in ("device", "space", "attention", "flowerbed", "torch")
    }


def default(device, space, streams):
    return knee.default_budget(device, space, "sdpa", streams)


def test_a_measured_knee_is_the_default_budget_under_the_same_conditions_only(monkeypatch):
    assert default("cpu", "a" * 16, ALONE) == CPU_BATCH_TOKENS
    assert default("cuda:0", "a" * 16, ON_A_GPU) == GPU_BATCH_TOKENS
    one_stream = default("cuda:0", "a" * 16, ALONE)
    assert one_stream == GPU_ONE_STREAM_BATCH_TOKENS
    knee.store(a_knee())
    assert default("cpu", "a" * 16, ALONE) == 768
    assert default("cpu", "b" * 16, ALONE) == CPU_BATCH_TOKENS
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert default("cpu", "a" * 16, ALONE) == CPU_BATCH_TOKENS
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("stream", "measured", "expected"),
    [
        (ON_A_GPU, 2_048, GPU_BATCH_TOKENS),  # an H200
        (ON_A_GPU, GPU_BATCH_TOKENS + 1, GPU_BATCH_TOKENS + 1),
        (ON_A_GPU, None, GPU_BATCH_TOKENS),
        (ALONE, 1_024, 1_024),
        (ALONE, 4_096, 4_096),
        (ALONE, None, GPU_ONE_STREAM_BATCH_TOKENS),
    ],
)
def test_where_queries_have_streams_of_their_own_a_knee_only_raises_the_budget(
    monkeypatch, stream, measured, expected
):
    monkeypatch.setattr(knee.machine, "gpu_names", lambda: ["NVIDIA H200"])
    if measured is not None:
        knee.store(a_knee(tokens=measured, device="NVIDIA H200"))
    assert default("cuda:0", "a" * 16, stream) == expected


def test_a_knee_is_of_its_attention():
    knee.store(a_knee(attention="torch-flash"))
    assert default("cpu", "a" * 16, ALONE) == CPU_BATCH_TOKENS
    assert knee.default_budget("cpu", "a" * 16, "torch-flash", ALONE) == 768


@pytest.mark.parametrize("other", [{"torch": "1.0"}, {"flowerbed": "9"}, {"device": "abacus"}])
def test_a_knee_of_other_versions_or_devices_is_not_used(examine, other):
    knee.store(a_knee(**other))
    assert default("cpu", "a" * 16, ALONE) == CPU_BATCH_TOKENS
    assert "measured knees" not in examine().facts


def test_a_new_knee_replaces_the_old_one_of_its_conditions(examine):
    knee.store(a_knee(tokens=512))
    knee.store(a_knee("b" * 16))
    knee.store(a_knee(tokens=1_024))
    assert [(k.conditions.space[0], k.tokens) for k in knee.stored()] == [("a", 1_024), ("b", 768)]
    told = examine().facts["measured knees"]
    assert told[f"garden/rose ({'a' * 16}, sdpa)"].startswith("1024 tokens, 1,000 tokens/s on ")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2, "knees": [{}]}', '{"format": 2, "knees": 3}', "\udcff"]
)
def test_a_damaged_cache_of_knees_is_left_alone_and_the_default_counts(text, caplog):
    knee.cache_file().parent.mkdir(parents=True)
    knee.cache_file().write_bytes(text.encode(errors="surrogateescape"))
    assert default("cpu", "a" * 16, ALONE) == CPU_BATCH_TOKENS
    assert "cannot be used, so the default budget is" in caplog.text


def test_a_cache_of_another_version_is_not_used(caplog):
    knee.store(a_knee())
    text = knee.cache_file().read_text().replace('"format": 2', '"format": 1')
    knee.cache_file().write_text(text)
    assert default("cpu", "a" * 16, ALONE) == CPU_BATCH_TOKENS
    assert not caplog.text


@pytest.mark.parametrize("tokens", [0, -1, 1 << 40, "768", None, True])
def test_a_knee_that_is_no_number_of_tokens_is_not_used(tokens):
    knee.store(a_knee(tokens=tokens))
    assert default("cpu", "a" * 16, ALONE) == CPU_BATCH_TOKENS


def test_the_knee_is_the_smallest_step_within_8_percent_of_the_best_rate():
    rates = {128: 800, 256: 915, 512: 925, 1_024: 1_000, 2_048: 990}
    points = [Point(tokens, tokens / rate * 1_000) for tokens, rate in rates.items()]
    assert measure.pick(points).tokens == 512
    assert measure.pick(points[:1]).tokens == 128


class FakeEngine:
    """Steps of a fixed cost and a rate, on a clock of its own."""

    steps_in_flight = 1
    streams = ALONE
    num_waiting = most_waiting = 0

    def __init__(self, monkeypatch, per_token_s=0.001, noise=lambda count: 1.0):
        self.now = 0.0
        self.sizes = []
        self.noise = noise
        self.per_token_s = per_token_s
        self.folder = SimpleNamespace(text=SimpleNamespace(max_length=100), dimensions=8)
        monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def capture(self, **sizes):
        self.captured = sizes

    def step(self, batch):
        self.sizes.append((batch.num_tokens, batch.num_sequences))
        self.now += (0.01 + self.per_token_s * batch.num_tokens) * self.noise(len(self.sizes))
        self.num_waiting += 1
        self.most_waiting = max(self.most_waiting, self.num_waiting)
        return SimpleNamespace(wait=self.waited)

    def waited(self):
        self.num_waiting -= 1


def test_whole_steps_are_filled_with_sequences_that_the_model_takes(monkeypatch):
    engine = FakeEngine(monkeypatch, per_token_s=0.0001)
    points = measure.measure(engine)
    assert [point.tokens for point in points] == list(measure.STEP_TOKENS)
    assert (256, 3) in engine.sizes  # 100 + 100 + 56
    assert measure.is_steady(points)


def test_a_device_that_takes_two_steps_is_measured_with_two_and_with_its_graphs(monkeypatch):
    engine = FakeEngine(monkeypatch, per_token_s=0.00001)
    engine.steps_in_flight = 2
    points = measure.measure(engine)
    assert engine.captured["normal_tokens"] == measure.STEP_TOKENS[-1]
    rounds = measure.NUM_ROUNDS * measure.STEPS_END_TO_END
    assert len(engine.sizes) == rounds * len(measure.STEP_TOKENS)
    assert engine.most_waiting == 2
    assert points[-1].ms == pytest.approx(10 + 0.01 * 4_096)


def test_where_queries_have_streams_of_their_own_steps_beyond_the_default_are_measured(monkeypatch):
    engine = FakeEngine(monkeypatch, per_token_s=0.00001)
    engine.streams = ON_A_GPU
    points = measure.measure(engine)
    assert points[-1].tokens == engine.captured["normal_tokens"] == 8_192 > GPU_BATCH_TOKENS


def test_no_larger_steps_are_tried_once_one_takes_too_long(monkeypatch):
    engine = FakeEngine(monkeypatch, per_token_s=0.01)
    points = measure.measure(engine)
    assert max(point.tokens for point in points) == 256


def test_one_slow_step_does_not_end_the_measuring(monkeypatch):
    engine = FakeEngine(monkeypatch, 0.0001, lambda count: 1_000.0 if count == 2 else 1.0)
    assert max(point.tokens for point in measure.measure(engine)) == 4_096


def test_a_busy_machine_is_told_and_its_knee_not_kept(run_doctor, monkeypatch):
    engine = FakeEngine(monkeypatch, 0.0001, lambda count: 1.0 + count % 3)
    points = measure.measure(engine)
    assert not measure.is_steady(points)
    monkeypatch.setattr(measure, "measure", lambda engine: points)
    outcome = run_doctor("--measure", "--device", "cpu")
    assert outcome.code == 1
    assert "not kept" in outcome.out
    assert knee.stored() == []


def test_measure_prints_the_table_and_keeps_the_knee_for_workers(run_doctor, monkeypatch):
    points = [Point(64, 10.0), Point(128, 11.0), Point(256, 22.0)]
    monkeypatch.setattr(measure, "measure", lambda engine: points)
    outcome = run_doctor("--measure", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    assert "--max-batch-tokens 128\nworkers" in outcome.out
    assert "11,636  <- knee" in outcome.out
    assert re.search(
        r": copies \d+ GB/s \(read and written\), float32 products [\d.]+ TFLOP/s\n", outcome.out
    )
    assert "in float32, attention by sdpa\n" in outcome.out
    (kept,) = knee.stored()
    assert default("cpu", kept.conditions.space, ALONE) == 128
    as_json = json.loads(run_doctor("--measure", "--json", "--device", "cpu").out)
    assert as_json["measured"]["max_batch_tokens"] == as_json["measured"]["knee"] == 128
    assert as_json["measured"]["dtype"] == "float32"
    assert [step["tokens"] for step in as_json["measured"]["steps"]] == [64, 128, 256]
    assert 1e8 < as_json["measured"]["ceilings"]["copy_bytes_per_s"] < 1e13
    assert 1e8 < as_json["measured"]["ceilings"]["product_flops_per_s"] < 1e16


def test_steps_in_8_bits_are_told_as_such_beside_products_in_16() -> None:
    from flowerbed.rose.ceilings import Ceilings

    best = Ceilings(4e12, 7e14, "bfloat16")
    how = "fp8", "flash-attn-4"
    measured = Measured([Point(64, 1.0)], a_knee(), 4_672, True, *how, False, best)
    text = measured.as_text()
    assert "4,000 GB/s (read and written), bfloat16 products 700.00 TFLOP/s" in text
    assert "whole steps of garden/rose in fp8, attention by flash-attn-4" in text
    assert "--max-batch-tokens 4672\nmore than the knee, since queries have streams" in text
    assert "batch-invariant" not in text
    assert (
        "attention by flash-attn-4, batch-invariant"
        in replace(measured, batch_invariant=True).as_text()
    )
    assert measured.as_dict()["batch_invariant"] is False
    assert (measured.as_dict()["knee"], measured.as_dict()["max_batch_tokens"]) == (768, 4_672)


def test_real_steps_of_the_packaged_model_are_measured(monkeypatch):
    from flowerbed.folder import read_folder
    from flowerbed.hub import resolve
    from flowerbed.rose.engine import Engine

    monkeypatch.setattr(measure, "STEP_TOKENS", (32, 64))
    engine = Engine.load(read_folder(resolve(None)), device="cpu")
    points = measure.measure(engine)
    assert [point.tokens for point in points] == [32, 64]
    assert all(point.ms > 0 for point in points)
    assert measure.as_knee(engine, points[0]).conditions.space == engine.info().space
