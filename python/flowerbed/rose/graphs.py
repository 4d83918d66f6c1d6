"""Which padded sizes have a CUDA graph, and when one is captured, replayed and dropped.

Knows sizes and bookkeeping, no models and no CUDA: capturing is a function it is given. Called by
`ragged`, one for each stream.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flowerbed.config import GraphCapture

log = logging.getLogger(__name__)

SLOT_CLASSES = (16, 64)
"""Sequences of a graph. With flash-attn-4 64 slots cost 1.5 µs a layer more than they need, 16 cost 0.1;
256 cost 39 (one H200, docs/measured-facts.md)."""
BUCKET_STEPS = ((64, 32), (1_024, 64), (5_120, 256), (1 << 20, 1_024))
"""Token buckets: up to the first number in multiples of the second, then on to the next."""
MAX_WASTE = 0.25
"""Share of padding up to which a captured larger graph serves while a fitting one is missing."""


class Graph(Protocol):
    """A captured step."""

    num_bytes: int  # of the device's memory that it took

    def replay(self) -> None:
        """Enqueues the step on the current stream."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class GraphKey:
    """Padded sizes of a step."""

    num_tokens: int
    num_slots: int  # sequences, and rows
    max_seqlen: int  # no sequence may be longer, the padding included


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The largest steps that are to be expected; longer ones run without a graph."""

    online_tokens: int  # on the stream of queries
    normal_tokens: int
    max_row_bytes: int  # of one packed row


@dataclass(frozen=True, slots=True)
class Grid:
    """All keys of a stream."""

    buckets: tuple[int, ...]  # token counts, ascending
    slot_classes: tuple[int, ...]  # sequence counts, ascending
    is_bound_tight: bool
    """Whether the longest sequence is part of a key, as attention kernels want whose time grows with
    the bound; else the bound is all tokens."""


def token_buckets(max_tokens: int) -> tuple[int, ...]:
    """Padded token counts up to the first that holds `max_tokens`, ascending."""
    buckets: list[int] = []
    for end, step in BUCKET_STEPS:
        start = buckets[-1] if buckets else 0
        buckets.extend(range(start + step, min(end, max_tokens + step - 1) + 1, step))
    return tuple(buckets)


class GraphCache:
    """The graphs of one stream. Made for one thread."""

    def __init__(
        self,
        grid: Grid,
        *,
        when: GraphCapture,
        memory_limit: int,
        capture: Callable[[GraphKey], Graph],
    ) -> None:
        """Captures nothing yet.

        Args:
            grid: The keys.
            when: At start, on the second use of a key, or never.
            memory_limit: Bytes that all graphs together may take; then the least recently used goes.
            capture: Captures a key's step; it may run it first.
        """
        self.num_bytes = 0
        self._grid = grid
        self._when = when
        self._memory_limit = memory_limit
        self._capture = capture
        self._graphs: OrderedDict[GraphKey, Graph] = OrderedDict()  # least recently used first
        self._seen: set[GraphKey] = set()
        self._refused: set[GraphKey] = set()  # keys whose capture failed; their steps run eagerly

    def __len__(self) -> int:
        return len(self._graphs)

    def key(self, num_tokens: int, num_slots: int, max_seqlen: int) -> GraphKey | None:
        """The smallest key that holds a step; None if none does."""
        bucket = bisect_left(self._grid.buckets, num_tokens)
        slots = bisect_left(self._grid.slot_classes, num_slots)
        if (
            self._when is GraphCapture.OFF
            or bucket == len(self._grid.buckets)
            or slots == len(self._grid.slot_classes)
        ):
            return None
        tokens = self._grid.buckets[bucket]
        bound = tokens
        if self._grid.is_bound_tight:
            longest = max(64, max_seqlen, tokens - num_tokens)  # the padding is a sequence, too
            bound = min(tokens, 1 << (longest - 1).bit_length())
        return GraphKey(tokens, self._grid.slot_classes[slots], bound)

    def capture_all(self) -> None:
        """Captures every key, the largest first, so that the smaller ones use its memory again."""
        if self._when is not GraphCapture.START or self._grid.is_bound_tight:
            return
        for num_slots in reversed(self._grid.slot_classes):
            for num_tokens in reversed(self._grid.buckets):
                if self.num_bytes >= self._memory_limit:
                    log.warning(
                        "graphs of %d sizes fill their %d MB; the others run without: raise "
                        "--graph-memory-mb or lower --saturation-batch-tokens",
                        len(self._graphs),
                        self._memory_limit >> 20,
                    )
                    return
                self._add(GraphKey(num_tokens, num_slots, num_tokens))

    def choose(self, wanted: GraphKey) -> tuple[GraphKey, Graph | None, str]:
        """How to run a step of `wanted`: the key to pad it to, its graph or None, and the mode's name."""
        found = self._graphs.get(wanted)
        mode = "replay"
        key = wanted
        if found is None and self._when is GraphCapture.LAZY and wanted not in self._refused:
            if wanted in self._seen:
                found, mode = self._add(wanted), "capture"
            else:
                self._seen.add(wanted)
                key = self._larger(wanted)
                found = self._graphs.get(key)
        if found is None:
            mode = "eager"
        else:
            self._graphs.move_to_end(key)
        return key, found, mode

    def _larger(self, wanted: GraphKey) -> GraphKey:
        limit = wanted.num_tokens / (1 - MAX_WASTE)
        fitting = (
            key
            for key in self._graphs
            if wanted.num_tokens <= key.num_tokens <= limit
            and key.num_slots >= wanted.num_slots
            and key.max_seqlen >= wanted.max_seqlen
        )
        return min(fitting, default=wanted)

    def _add(self, key: GraphKey) -> Graph | None:
        """The key's new graph; None if it cannot be captured, which happens once to a key."""
        while self._graphs and self.num_bytes >= self._memory_limit:
            _, dropped = self._graphs.popitem(last=False)
            self.num_bytes -= dropped.num_bytes
        try:
            graph = self._capture(key)
        except RuntimeError:  # torch's out of memory is one
            log.exception("%s cannot be captured; such steps run without a graph", key)
            self._refused.add(key)
            return None
        self._graphs[key] = graph
        self.num_bytes += graph.num_bytes
        return graph
