"""Captured and replayed steps on an NVIDIA GPU against eager ones, at every border of a bucket."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from flowerbed.config import BatchInvariant, DType, GraphCapture
from flowerbed.folder import ModelFolder
from flowerbed.rose.engine import Engine
from flowerbed.rose.graphs import token_buckets
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.lazy import LazyTensor
from references import lowest_cosine
from small_models import POOLING, VOCAB_ROWS, small_model

pytestmark = [
    pytest.mark.gpu,
    # flash-attn-4 imports the compiler of torch, which warns of its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MAX_TOKENS = 1_300


@pytest.fixture(scope="module", params=POOLING)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Weights five times as large as usual: what differs between two forms of a step shows more."""
    path = tmp_path_factory.mktemp("graphs") / request.param
    return small_model(request.param, path, initializer_range=0.1)


@pytest.fixture(scope="module")
def eager(folder: ModelFolder) -> Engine:
    return load(folder)


def load(folder: ModelFolder) -> Engine:
    """With all forms of steps; `test_batch_invariant_gpu.py` has those of the one form."""
    off = BatchInvariant.OFF
    return Engine.load(folder, device="cuda", dtype=DType.BFLOAT16, batch_invariant=off)


def captured(folder: ModelFolder, when: GraphCapture) -> Engine:
    engine = load(folder)
    engine.capture(online_tokens=256, normal_tokens=MAX_TOKENS, when=when, memory_limit=2 << 30)
    return engine


def random_batch(rng: np.random.Generator, total: int, most: int, stream: str) -> PackedBatch:
    """Sequences of random lengths, of `total` tokens in all, at most 512 each."""
    lengths: list[int] = []
    while (left := total - sum(lengths)) > 0:
        places = most - len(lengths)
        least = max(1, left - 512 * (places - 1))
        lengths.append(int(rng.integers(least, min(left, 512) + 1)) if places > 1 else left)
    ids = [rng.integers(5, VOCAB_ROWS, length).tolist() for length in lengths]
    built = PackedBatch.build(ids, RowFormat(128, normalize=False))
    return PackedBatch(**{**{n: getattr(built, n) for n in built.__slots__}, "stream": stream})


def rows(result: LazyTensor, batch: PackedBatch) -> NDArray[np.float32]:
    data = result.numpy()
    assert not data[batch.num_result_bytes :].any()
    return data[: batch.num_result_bytes].view(np.float32).reshape(batch.num_rows, -1)


@pytest.mark.parametrize("when", [GraphCapture.START, GraphCapture.LAZY])
def test_every_bucket_border_equals_eager(
    folder: ModelFolder, eager: Engine, when: GraphCapture
) -> None:
    engine = captured(folder, when)
    rng = np.random.default_rng(2)
    worst = 1.0
    modes: set[str] = set()
    for bucket in token_buckets(MAX_TOKENS):
        for total in {max(1, bucket - 1), bucket, min(bucket + 1, MAX_TOKENS)}:
            stream = "online" if total <= 256 and rng.random() < 0.5 else "normal"
            batch = random_batch(rng, total, int(rng.integers(4, 65)), stream)
            expected = rows(eager.step(batch), batch)
            for _ in range(3):
                result = engine.step(batch)
                modes.add(result.mode)
                worst = min(worst, lowest_cosine(rows(result, batch), expected))
    assert worst >= 0.9999
    assert modes == ({"replay"} if when is GraphCapture.START else {"eager", "capture", "replay"})


def test_steps_of_short_sequences_equal_the_same_beside_a_long_one(
    folder: ModelFolder, eager: Engine
) -> None:
    engine = captured(folder, GraphCapture.START)
    rng = np.random.default_rng(7)
    for count in (40, 52, 64):
        lengths = [1, 63, 64, *rng.integers(1, 2_000 // count + 1, count - 3)]
        ids = [rng.integers(5, VOCAB_ROWS, length).tolist() for length in lengths]
        long = rng.integers(5, VOCAB_ROWS, 200).tolist()
        row = RowFormat(128, normalize=False)
        short, both = PackedBatch.build(ids, row), PackedBatch.build([*ids, long], row)
        expected = rows(eager.step(both), both)[:count]
        result = engine.step(short)
        assert result.mode == "replay"
        assert lowest_cosine(rows(result, short), expected) >= 0.9999
        assert lowest_cosine(rows(eager.step(short), short), expected) >= 0.9999


def test_two_streams_with_two_steps_each_keep_their_rows_apart(
    folder: ModelFolder, eager: Engine
) -> None:
    engine = captured(folder, GraphCapture.START)
    rng = np.random.default_rng(4)
    waiting: list[tuple[PackedBatch, LazyTensor]] = []
    expected: dict[int, NDArray[np.float32]] = {}
    for number in range(60):
        stream = "online" if number % 2 else "normal"
        total = int(rng.integers(1, 256 if stream == "online" else MAX_TOKENS))
        batch = random_batch(rng, total, 16, stream)
        expected[id(batch)] = rows(eager.step(batch), batch)
        waiting.append((batch, engine.step(batch)))
        if len(waiting) == 4:
            first, result = waiting.pop(0)
            assert lowest_cosine(rows(result, first), expected[id(first)]) >= 0.9999
            del result
    for batch, result in waiting:
        assert lowest_cosine(rows(result, batch), expected[id(batch)]) >= 0.9999


def test_no_row_of_ten_thousand_inputs_is_bad_and_alone_equals_together(
    folder: ModelFolder,
) -> None:
    engine = captured(folder, GraphCapture.START)
    rng = np.random.default_rng(6)
    num_inputs, worst = 0, 1.0
    while num_inputs < 10_000:
        batch = random_batch(rng, int(rng.integers(64, MAX_TOKENS)), 64, "normal")
        together = rows(engine.step(batch), batch)
        assert np.isfinite(together).all()
        num_inputs += batch.num_sequences
        at = int(rng.integers(batch.num_sequences))
        start, end = batch.offsets[at : at + 2]
        alone = PackedBatch.build(
            [batch.token_ids[start:end].tolist()], RowFormat(128, normalize=False)
        )
        worst = min(worst, lowest_cosine(rows(engine.step(alone), alone), together[at : at + 1]))
    assert worst >= 0.9999
