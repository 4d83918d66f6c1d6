"""Which padded sizes have a CUDA graph, and when one is captured, replayed and dropped.

Knows sizes and bookkeeping, no models and no CUDA: capturing is a function it is given. Called by
`ragged`, one for each stream.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from flowerbed.config import GraphCapture
from flowerbed.rose.kernels.backend import MANY_ROWS
from flowerbed.rose.kernels.fused_linear import MAX_FEW_ROWS
from flowerbed.rose.kernels.short_sequences import MAX_SHORT_SEQLEN

log = logging.getLogger(__name__)

SLOT_CLASSES = (16, 64)
"""Sequences of a graph. With flash-attn-4 64 slots cost 1.5 µs a layer more than they need, 16 cost 0.1;
256 cost 39 (one H200, docs/measured-facts.md)."""
FEW_SLOTS_TOKENS = 4_096
"""Where graphs of 16 slots end, if slots are as cheap: those of 64 take 0.5% longer there."""
MANY_SLOTS = 128
"""Sequences of the graphs for steps of many texts."""
MANY_TOKENS, SHORT_TOKENS = 512, 256
"""Token counts of such graphs are multiples of these: in general, and where all sequences are short, since such
steps are full by their sequences and may have any tokens."""
MIN_SHORT_TOKENS = 1_024
"""Steps of short sequences have graphs of their own from here on; smaller ones would gain little."""
BUCKET_STEPS = ((64, 32), (1_024, 64), (4_096, 256), (5_120, 128), (1 << 20, 1_024))
"""Token buckets: up to the first number in multiples of the second, then on to the next. Finer where steps
end that are full by default (`config.GPU_BATCH_TOKENS`)."""
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
    max_seqlen: int  # no sequence may be longer, the padding included unless they are short


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The largest steps that are to be expected; longer ones run without a graph."""

    online_tokens: int  # on the stream of queries
    normal_tokens: int
    max_row_bytes: int  # of one packed row


@dataclass(frozen=True, slots=True)
class SlotClass:
    """Keys of as many slots."""

    num_slots: int
    buckets: tuple[int, ...]  # token counts, ascending
    is_short: bool = False  # whether all sequences are

    def key(self, num_tokens: int, num_slots: int, max_seqlen: int) -> GraphKey | None:
        """The smallest key that holds a step; None if none does."""
        bucket = bisect_left(self.buckets, num_tokens)
        if (
            bucket == len(self.buckets)
            or num_slots > self.num_slots
            or (self.is_short and max_seqlen > MAX_SHORT_SEQLEN)
        ):
            return None
        return self._key(self.buckets[bucket])

    def all_keys(self) -> list[GraphKey]:
        """The largest first."""
        return [self._key(num_tokens) for num_tokens in reversed(self.buckets)]

    def _key(self, num_tokens: int) -> GraphKey:
        return GraphKey(
            num_tokens, self.num_slots, MAX_SHORT_SEQLEN if self.is_short else num_tokens
        )


@dataclass(frozen=True, slots=True)
class Grid:
    """All keys of a stream."""

    classes: tuple[SlotClass, ...]
    is_bound_tight: bool
    """Whether the longest sequence is part of a key, as attention kernels want whose time grows with
    the bound; else the bound is all tokens, or that of short sequences."""

    @property
    def largest(self) -> GraphKey:
        """As many tokens, slots and tokens of a sequence as any key has."""
        num_tokens = max(one.buckets[-1] for one in self.classes)
        return GraphKey(num_tokens, max(one.num_slots for one in self.classes), num_tokens)

    def all_keys(self) -> list[GraphKey]:
        """Those of a class after those of another, the largest first; their bound is not tight."""
        return [key for one in self.classes for key in one.all_keys()]

    def kernel_keys(self) -> list[GraphKey]:
        """Steps that between them, those of `Engine.warm_up` and the largest meet every kernel of a step without a graph.

        Batch-invariant products of few rows take the widest programs at `MAX_FEW_ROWS`. At `MANY_ROWS` programs begin to
        take several rows, and there and at each doubling pooling splits its sums further, where rows are few. Steps of
        short sequences have attention of their own. Products of many rows see to themselves (`fused_linear`).
        """
        largest = self.largest
        doubled = (MANY_ROWS << i for i in range(largest.num_tokens.bit_length()))
        few, _ = SLOT_CLASSES
        sizes = [size for size in (MAX_FEW_ROWS, *doubled) if size <= largest.num_tokens]
        keys = [GraphKey(size, few, size) for size in sizes]
        if largest.max_seqlen > MAX_SHORT_SEQLEN and not self.is_bound_tight:
            num_short = min(largest.num_tokens, largest.num_slots * MAX_SHORT_SEQLEN)
            keys.append(GraphKey(num_short, largest.num_slots, MAX_SHORT_SEQLEN))
        return keys

    def key(self, num_tokens: int, num_slots: int, max_seqlen: int) -> GraphKey | None:
        """The key that holds a step with the least padding; None if none does."""
        found = [one.key(num_tokens, num_slots, max_seqlen) for one in self.classes]
        key = min(
            (key for key in found if key is not None),
            key=lambda key: (key.num_tokens, key.max_seqlen, key.num_slots),
            default=None,
        )
        if key is None or not self.is_bound_tight:
            return key
        longest = max(64, max_seqlen, key.num_tokens - num_tokens)  # the padding is a sequence, too
        return replace(key, max_seqlen=min(key.num_tokens, 1 << (longest - 1).bit_length()))


def make_grid(max_tokens: int, *, is_bound_tight: bool) -> Grid:
    """The keys of steps of up to `max_tokens`."""
    buckets = token_buckets(max_tokens)
    few, usual = SLOT_CLASSES
    few_end = buckets[-1] if is_bound_tight else FEW_SLOTS_TOKENS
    many = [size for size in buckets[:-1] if size == MANY_TOKENS // 2 or size % MANY_TOKENS == 0]
    classes = [
        SlotClass(few, tuple(size for size in buckets if size <= few_end)),
        SlotClass(usual, buckets),
        SlotClass(MANY_SLOTS, (*many, buckets[-1])),
    ]
    most = min(MANY_SLOTS * MAX_SHORT_SEQLEN, buckets[-1])
    even = range(MIN_SHORT_TOKENS, most + 1, SHORT_TOKENS)
    short = sorted({size for size in buckets if MIN_SHORT_TOKENS <= size <= most} | {*even})
    if short and not is_bound_tight:
        classes.append(SlotClass(MANY_SLOTS, tuple(short), is_short=True))
    return Grid(tuple(classes), is_bound_tight=is_bound_tight)


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
        """The key of a step; None if it is to run without a graph."""
        if self._when is GraphCapture.OFF:
            return None
        return self._grid.key(num_tokens, num_slots, max_seqlen)

    def capture_all(self) -> None:
        """Captures every key, the largest first, so that the smaller ones use its memory again."""
        if self._when is not GraphCapture.START or self._grid.is_bound_tight:
            return
        for key in self._grid.all_keys():
            if self.num_bytes >= self._memory_limit:
                log.warning(
                    "graphs of %d sizes fill their %d MB; the others run without: raise "
                    "--graph-memory-mb or lower --saturation-batch-tokens",
                    len(self._graphs),
                    self._memory_limit >> 20,
                )
                return
            self._add(key)

    def choose(
        self, wanted: GraphKey, num_tokens: int, num_slots: int
    ) -> tuple[GraphKey, Graph | None, str]:
        """How to run a step of so many tokens and slots.

        Args:
            wanted: Its key, as `key` gave it.
            num_tokens: Of its sequences.
            num_slots: Sequences, or rows if there are more.

        Returns:
            The key to pad it to, its graph or None, and the mode's name.
        """
        key, found, mode = wanted, self._graphs.get(wanted), "replay"
        if found is None and self._is_due(wanted):
            found, mode = self._add(wanted), "capture"
        if found is None:
            key = self._larger(wanted, num_tokens, num_slots)
            found = self._graphs.get(key)
            mode = "eager" if found is None else "replay"
        if found is not None:
            self._graphs.move_to_end(key)
        return key, found, mode

    def _is_due(self, wanted: GraphKey) -> bool:
        """Whether a key without a graph is to have one now: when it comes for the second time."""
        if self._when is not GraphCapture.LAZY or wanted in self._refused:
            return False
        has_come = wanted in self._seen
        self._seen.add(wanted)
        return has_come

    def _larger(self, wanted: GraphKey, num_tokens: int, num_slots: int) -> GraphKey:
        limit = wanted.num_tokens / (1 - MAX_WASTE)
        fitting = (
            key
            for key in self._graphs
            if wanted.num_tokens <= key.num_tokens <= limit
            and key.num_slots >= num_slots
            and key.max_seqlen >= wanted.max_seqlen
            # Where the bound is tight, it holds for the padding, too.
            and (not self._grid.is_bound_tight or key.max_seqlen >= key.num_tokens - num_tokens)
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
