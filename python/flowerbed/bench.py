"""Measures an engine: latency of one step, throughput, and how far vectors are from float32.

Called by `flowerbed bench engine`. Steps are timed from a batch in host memory to its rows in host
memory, tokenizing and network excluded. Loads the engine, and with it torch.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowerbed import config
from flowerbed.rose.device_watch import DeviceWatch
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.lazy import LazyTensor

LATENCY_SHAPES = ((1, 32), (1, 128), (1, 512), (1, 4_096))
SCORING_SHAPES = ((5, 512), (25, 512), (50, 512))
RERANK_SHAPES = ((10, 256), (100, 256), (500, 256))
"""Query and text together. The step of a reranker of the same encoder, but for its last layer of one column."""
CURVE_SEQUENCES = (1, 8, 32)
CURVE_TOKENS = (32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
"""Of the curves of latency over tokens at fixed counts of sequences."""
CURVE_FIXED_TOKENS = (512, 2_048, 8_192)
CURVE_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Of the curves of latency over sequences at fixed counts of tokens."""
THROUGHPUT_LENGTHS = (50, 128, 512, 1_024, 4_096)
MEAN_LENGTH, LENGTH_SPREAD, MAX_LENGTH = 180, 0.8, 512
"""Of the real length mix, lognormal, tokens: passages of web pages."""
NUM_WARM, NUM_TIMED, MIN_TIMED = 20, 300, 30
LATENCY_S, CURVE_S, THROUGHPUT_S = 1.0, 0.25, 2.0
"""How long a row of these suites is measured: at most, at most, and at least."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured shape."""

    suite: str  # latency, scoring, rerank or throughput
    num_seqs: int  # of a request
    seq_len: int  # tokens, 0: the length mix
    batch_tokens: int  # budget of a step
    p50_ms: float
    p99_ms: float
    emb_per_s: float
    tok_per_s: float
    mode: str  # how the last step ran
    stream: str  # of the device
    sm_clock_mhz: int | None = None  # median, of the suite throughput on a GPU
    power_w: int | None = None  # likewise


def latency(
    engine: Engine,
    shapes: Sequence[tuple[int, int]],
    budget: int,
    suite: str,
    seconds: float = LATENCY_S,
) -> Iterator[Row]:
    """One request after another, each as the steps that a budget makes of it; each for `seconds` at most.

    One text runs on the stream of queries where it is short enough for it, whose rows are waited for awake.
    """
    for num_seqs, seq_len in shapes:
        if seq_len > engine.folder.text.max_length:
            continue
        is_query = num_seqs == 1 and seq_len <= config.GPU_ONLINE_BATCH_TOKENS
        stream = engine.streams[0] if suite == "latency" and is_query else "normal"
        batches = [
            replace(batch, stream=stream)
            for batch in _batches(engine, [seq_len] * num_seqs, budget)
        ]
        for _ in range(NUM_WARM):
            _run(engine, batches)
        taken: list[float] = []
        mode = ""
        until = time.perf_counter() + seconds
        while len(taken) < NUM_TIMED and (len(taken) < MIN_TIMED or time.perf_counter() < until):
            start = time.perf_counter()
            mode = _run(engine, batches)
            taken.append(time.perf_counter() - start)
        p50 = statistics.median(taken)
        yield Row(
            suite,
            num_seqs,
            seq_len,
            budget,
            p50 * 1e3,
            float(np.quantile(taken, 0.99)) * 1e3,
            num_seqs / p50,
            num_seqs * seq_len / p50,
            mode,
            stream,
        )


def curve_shapes(longest: int) -> list[tuple[int, int]]:
    """Sequences and tokens of each: over tokens at fixed counts of sequences, and the reverse."""
    over_tokens = {(count, tokens) for count in CURVE_SEQUENCES for tokens in CURVE_TOKENS}
    over_sequences = {(count, tokens) for tokens in CURVE_FIXED_TOKENS for count in CURVE_COUNTS}
    return [
        (num_seqs, tokens // num_seqs)
        for num_seqs, tokens in sorted(over_tokens | over_sequences)
        if num_seqs <= tokens <= num_seqs * longest
    ]


def throughput(
    engine: Engine, lengths: Sequence[int], budget: int, max_sequences: int
) -> Iterator[Row]:
    """Full steps without pause, as many in flight as the engine allows. Length 0: the mix."""
    return (_throughput(engine, length, budget, max_sequences) for length in lengths)


def hours_per_million(row: Row) -> float | None:
    """Hours of this device that a million such texts take at full throughput; None for other suites."""
    return 1e6 / row.emb_per_s / 3_600 if row.suite == "throughput" else None


def min_cosine(engine: Engine, reference: Engine, lengths: Sequence[int], budget: int) -> float:
    """The worst cosine of random sequences' vectors to another engine's, alone there.

    Args:
        engine: Runs them in steps of `budget`.
        reference: The same weights in float32.
        lengths: Of the sequences, tokens.
        budget: Of a step.
    """
    ours = np.concatenate([_vectors(engine, batch) for batch in _batches(engine, lengths, budget)])
    theirs = np.concatenate(
        [_vectors(reference, batch) for batch in _batches(engine, lengths, max(lengths))]
    )
    products = (ours * theirs).sum(axis=1)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float((products / norms).min())


def mixed_lengths(count: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths of a real mix."""
    rng = np.random.default_rng(seed)
    mean = np.log(MEAN_LENGTH) - LENGTH_SPREAD**2 / 2
    drawn = rng.lognormal(mean, LENGTH_SPREAD, count).astype(int)
    return np.clip(drawn, 4, min(longest, MAX_LENGTH)).tolist()


def _throughput(engine: Engine, length: int, budget: int, max_sequences: int) -> Row:
    longest = engine.folder.text.max_length
    count = 4 * max(8, budget // (length or MEAN_LENGTH))
    lengths = [length] * count if length else mixed_lengths(count, longest)
    batches = _batches(engine, lengths, budget, max_sequences)
    for batch in batches:
        engine.step(batch).wait()
    in_flight: deque[LazyTensor] = deque()
    taken: list[float] = []
    num_seqs = num_tokens = 0
    with DeviceWatch(engine.device) as watch:
        start = last = time.perf_counter()
        for batch in _forever(batches):
            if len(in_flight) == engine.steps_in_flight:
                in_flight.popleft().wait()
                now = time.perf_counter()
                taken.append(now - last)
                last = now
                if now - start > THROUGHPUT_S:
                    break
            in_flight.append(engine.step(batch))
            num_seqs += batch.num_sequences
            num_tokens += batch.num_tokens
        mode = in_flight[-1].mode if in_flight else "eager"
        for result in in_flight:
            result.wait()
        seconds = time.perf_counter() - start
    return Row(
        "throughput",
        batches[0].num_sequences,
        length,
        budget,
        statistics.median(taken) * 1e3,
        float(np.quantile(taken, 0.99)) * 1e3,
        num_seqs / seconds,
        num_tokens / seconds,
        mode,
        batches[0].stream,
        watch.sm_clock_mhz,
        watch.power_w,
    )


def _run(engine: Engine, batches: Sequence[PackedBatch]) -> str:
    results: deque[LazyTensor] = deque()
    mode = ""
    for batch in batches:
        if len(results) == engine.steps_in_flight:
            results.popleft().wait()
        results.append(engine.step(batch))
    for result in results:
        result.wait()
        mode = result.mode
    return mode


def _batches(
    engine: Engine,
    lengths: Sequence[int],
    budget: int,
    max_sequences: int = config.MAX_BATCH_SEQUENCES,
) -> list[PackedBatch]:
    """First come, first served under the budget, as the scheduler makes them. Random ids, fixed seed."""
    rng = np.random.default_rng(1)
    vocab = engine.vocab_rows
    batches: list[PackedBatch] = []
    waiting: list[list[int]] = []
    size = 0
    for length in lengths:
        if waiting and (size + length > budget or len(waiting) == max_sequences):
            batches.append(_batch(engine, waiting))
            waiting, size = [], 0
        waiting.append(rng.integers(10, vocab, length).tolist())
        size += length
    batches.append(_batch(engine, waiting))
    return batches


def _batch(engine: Engine, sequences: list[list[int]]) -> PackedBatch:
    return PackedBatch.build(sequences, RowFormat(engine.folder.dimensions, normalize=False))


def _vectors(engine: Engine, batch: PackedBatch) -> NDArray[np.float32]:
    result = engine.step(batch).numpy()[: batch.num_result_bytes]
    return np.array(result).view(np.float32).reshape(batch.num_rows, -1)


def _forever(batches: Sequence[PackedBatch]) -> Iterator[PackedBatch]:
    while True:
        yield from batches
