"""Steps on the device's own streams, without a wait: queries beside whatever else runs.

Every step is padded to a `StagingLayout`; attention reads the sequences' places on the device, so that
one CUDA graph serves any lengths. Called by `engine`.
"""

from __future__ import annotations

import logging
import time
from itertools import cycle

from flowerbed.config import GraphCapture
from flowerbed.rose.forward import RaggedModel
from flowerbed.rose.graphs import StepSizes
from flowerbed.rose.inputs import Batch
from flowerbed.rose.lane import STEPS_IN_FLIGHT, Device, Lane
from flowerbed.rose.lazy import LazyTensor

log = logging.getLogger(__name__)

LANES = {"online": 2, "normal": 1}
"""Streams of the device by name. Steps of queries leave most of it idle, so that two run side by side: beside
a re-index p99 2.3 instead of 3.4 ms at 200 queries/s (one H200, docs/measured-facts.md)."""


class RaggedRunner:
    """Runs steps of queries on urgent streams, in turn, beside whatever runs on the other one."""

    streams: tuple[str, ...] = ("online", "normal")
    steps_in_flight = STEPS_IN_FLIGHT

    def __init__(self, model: RaggedModel, device: Device) -> None:
        """Steps run eagerly until `capture` is called."""
        self.attention = model.backend
        self.batch_invariant = model.batch_invariant
        self._lanes = {
            name: [Lane(model, device, is_urgent=name == "online") for _ in range(LANES[name])]
            for name in self.streams
        }
        self._turns = {name: cycle(lanes) for name, lanes in self._lanes.items()}

    def step(self, batch: Batch) -> LazyTensor:
        """See `Engine.step`."""
        return next(self._turns[batch.stream]).step(batch)

    def capture(self, sizes: StepSizes, when: GraphCapture, memory_limit: int) -> None:
        """Reserves memory by the largest step, then captures the graphs of all streams if asked to.

        Args:
            sizes: The largest steps.
            when: At start, when a size comes again, or never.
            memory_limit: Bytes for the graphs of each stream.
        """
        limits = {"online": sizes.online_tokens, "normal": sizes.normal_tokens}
        for name, lanes in self._lanes.items():
            start = time.perf_counter()
            for lane in lanes:
                lane.capture(limits[name], sizes.max_row_bytes, when, memory_limit)
            log.info(
                "%s: %d graphs up to %d tokens, %d MB, %.1f s",
                name,
                sum(lane.num_graphs for lane in lanes),
                limits[name],
                sum(lane.graph_bytes for lane in lanes) >> 20,
                time.perf_counter() - start,
            )
