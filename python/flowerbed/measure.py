"""Measures the knee: the smallest whole step that is nearly as efficient as the best one.

Called by `flowerbed doctor --measure`. Loads the engine, and with it torch.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from flowerbed import knee
from flowerbed.config import GRAPH_MEMORY_MB
from flowerbed.knee import Knee
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.lazy import LazyTensor

STEP_TOKENS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096)
BESIDE_STEP_TOKENS = (6_144, 8_192)
"""Measured, too, where queries have streams of their own and the default is already more than 4,096."""
SEQUENCE_TOKENS = 128
"""Of one text: longer ones would measure attention instead of the step."""
WITHIN = 0.08
"""How much slower than the best a step may be to be preferred for being smaller."""
NUM_ROUNDS = 7
STEPS_END_TO_END = 8
"""Of a device that takes a step before the one before it is done, as a worker gives them."""
NUM_TRIES = 3
"""Of a step that seems too long, since something else may have held the machine."""
MAX_SPREAD = 1.25
"""Above it, something else computes here too, and the knee would be that of a busy machine."""
MAX_STEP_S = 2.0
"""No larger steps are tried once one takes longer: nobody wants to wait behind it."""
MAX_S = 60.0
"""Of all rounds after the first."""


@dataclass(frozen=True, slots=True)
class Point:
    """The best of some steps of one size."""

    tokens: int
    ms: float
    spread: float = 1.0  # the median's share of the best

    @property
    def tokens_per_second(self) -> float:
        """Rate of such steps."""
        return self.tokens / self.ms * 1_000


def measure(engine: Engine, *, told: Callable[[int, int], None] | None = None) -> list[Point]:
    """Times steps of each size in turns, so that a busy moment meets all sizes alike.

    Args:
        engine: A loaded model.
        told: Told the rounds so far and in all.
    """
    sizes = (*STEP_TOKENS, *BESIDE_STEP_TOKENS) if len(engine.streams) > 1 else STEP_TOKENS
    engine.capture(  # as a worker does at its start
        online_tokens=sizes[0],
        normal_tokens=sizes[-1],
        memory_limit=GRAPH_MEMORY_MB << 20,
    )
    taken: dict[int, list[float]] = {}
    for size in sizes:
        taken[size] = [_seconds(engine, size)]
        while min(taken[size]) > MAX_STEP_S and len(taken[size]) < NUM_TRIES:
            taken[size].append(_seconds(engine, size))
        if min(taken[size]) > MAX_STEP_S:
            break
    deadline = time.perf_counter() + MAX_S
    for num_rounds in range(1, NUM_ROUNDS):
        if told:
            told(num_rounds, NUM_ROUNDS)
        if time.perf_counter() > deadline and num_rounds >= NUM_TRIES:
            break
        for size, seconds in taken.items():
            seconds.append(_seconds(engine, size))
    if told:
        told(NUM_ROUNDS, NUM_ROUNDS)
    return [
        Point(size, min(seconds) * 1_000, statistics.median(seconds) / min(seconds))
        for size, seconds in taken.items()
    ]


def is_steady(points: list[Point]) -> bool:
    """Whether the machine was idle enough for the figures to mean something."""
    return statistics.median(point.spread for point in points) <= MAX_SPREAD


def pick(points: list[Point], within: float = WITHIN) -> Point:
    """The smallest step whose rate is within `within` of the best rate."""
    best = max(point.tokens_per_second for point in points)
    good = [point for point in points if point.tokens_per_second >= best * (1 - within)]
    return min(good, key=lambda point: point.tokens)


def as_knee(engine: Engine, point: Point) -> Knee:
    """What to keep for workers of the same device, model and versions."""
    info = engine.info()
    return Knee(
        conditions=knee.conditions(info.device, info.space, engine.attention),
        model=info.id,
        tokens=point.tokens,
        tokens_per_second=round(point.tokens_per_second, 1),
        measured=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _seconds(engine: Engine, num_tokens: int) -> float:
    """Of one step; where several may be in flight, of one among such steps end to end."""
    seqlen = min(SEQUENCE_TOKENS, engine.folder.text.max_length)
    batch = PackedBatch.blank(num_tokens, seqlen, RowFormat(engine.folder.dimensions))
    count = 1 if engine.steps_in_flight == 1 else STEPS_END_TO_END
    waiting: deque[LazyTensor] = deque()
    start = time.perf_counter()
    for _ in range(count):
        if len(waiting) == engine.steps_in_flight:
            waiting.popleft().wait()
        waiting.append(engine.step(batch))
    for result in waiting:
        result.wait()
    return (time.perf_counter() - start) / count
