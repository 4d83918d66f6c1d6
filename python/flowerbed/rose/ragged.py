"""Steps on the device's own streams, without a wait: queries beside whatever else runs.

Every step is padded to a `StagingLayout`; attention reads the sequences' places on the device, so that
one CUDA graph serves any lengths. Called by `engine`.
"""

from __future__ import annotations

import logging
import time

from flowerbed.config import GraphCapture
from flowerbed.rose.forward import RaggedModel
from flowerbed.rose.graphs import StepSizes
from flowerbed.rose.inputs import Batch
from flowerbed.rose.lane import STEPS_IN_FLIGHT, Device, Lane
from flowerbed.rose.lazy import LazyTensor

log = logging.getLogger(__name__)


class RaggedRunner:
    """Runs steps on two streams: queries on an urgent one, beside whatever runs on the other."""

    streams: tuple[str, ...] = ("online", "normal")
    steps_in_flight = STEPS_IN_FLIGHT

    def __init__(self, model: RaggedModel, device: Device) -> None:
        """Steps run eagerly until `capture` is called."""
        self.attention = model.backend
        self._lanes = {
            name: Lane(model, device, is_urgent=name == "online") for name in self.streams
        }

    def step(self, batch: Batch) -> LazyTensor:
        """See `Engine.step`."""
        return self._lanes[batch.stream].step(batch)

    def capture(self, sizes: StepSizes, when: GraphCapture, memory_limit: int) -> None:
        """Reserves memory by the largest step, then captures the graphs of both streams if asked to.

        Args:
            sizes: The largest steps.
            when: At start, when a size comes again, or never.
            memory_limit: Bytes for the graphs of each stream.
        """
        limits = {"online": sizes.online_tokens, "normal": sizes.normal_tokens}
        for name, lane in self._lanes.items():
            start = time.perf_counter()
            lane.capture(limits[name], sizes.max_row_bytes, when, memory_limit)
            log.info(
                "%s stream: %d graphs up to %d tokens, %d MB, %.1f s",
                name,
                lane.num_graphs,
                limits[name],
                lane.graph_bytes >> 20,
                time.perf_counter() - start,
            )
