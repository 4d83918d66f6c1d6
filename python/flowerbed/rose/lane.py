"""One stream of a device: its buffers, its graphs, its steps in flight. Called by `ragged`.

A step is one copy in, one graph or eager pass, one copy out, and an event; nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from flowerbed.config import GraphCapture
from flowerbed.rose.forward import RaggedModel
from flowerbed.rose.graphs import Graph, GraphCache, GraphKey, make_grid
from flowerbed.rose.host_plans import HostPlans
from flowerbed.rose.inputs import Batch, Int32s
from flowerbed.rose.kernels.attention import Backend, HostPlan
from flowerbed.rose.kernels.short_sequences import MAX_SHORT_SEQLEN
from flowerbed.rose.layers.pooled import EMBED_HEAD
from flowerbed.rose.lazy import Event, LazyTensor
from flowerbed.rose.staging import StagedInputs, StagingLayout

ALIKE_TOKENS = 4_096
"""Steps from here on run the same kernels up to the next power of two: pooling alone looks at more tokens."""
MAX_VIEWS = 512
STEPS_IN_FLIGHT = 2
"""One runs, one is enqueued behind it."""


class Device(Protocol):
    """What a runner needs of a device; see `cuda.CudaDevice`."""

    device: torch.device
    index: int

    def stream(self, *, is_urgent: bool) -> Any:
        """A queue of work."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What is enqueued inside goes to `stream`."""
        ...

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """[size], page-locked."""
        ...

    def event(self, *, is_urgent: bool) -> Event:
        """An event; waiting for an urgent one takes a core and is over microseconds after it."""
        ...

    def synchronize(self) -> None:
        """Waits for all streams."""
        ...

    def pool(self) -> Any:
        """Memory that graphs share."""
        ...

    def capture(self, stream: Any, pool: Any, run: Callable[[], None]) -> Graph:
        """Captures what `run()` enqueues on `stream`."""
        ...


class Slot:
    """Host memory of one step in flight."""

    def __init__(self, words: Tensor, result: Tensor) -> None:
        """Takes words, [num_words] int32, and result, [num_bytes] uint8."""
        self.array: Int32s = words.numpy()
        self.event: Event | None = None  # after the step that used it last
        self.words = Leading(words)
        self.result = Leading(result)


class Leading:
    """The first elements of a tensor; views are kept, since making one takes microseconds."""

    def __init__(self, tensor: Tensor) -> None:
        """Takes [size]."""
        self._tensor = tensor
        self._views: dict[int, Tensor] = {}

    def __call__(self, size: int) -> Tensor:
        """[size], a view."""
        found = self._views.get(size)
        if found is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            found = self._views[size] = self._tensor[:size]
        return found


class Lane:
    """One stream with its own buffers and graphs."""

    def __init__(self, model: RaggedModel, device: Device, *, is_urgent: bool) -> None:
        self._device = device
        self._model = model
        self._is_urgent = is_urgent
        self._stream = device.stream(is_urgent=is_urgent)
        self._pool = device.pool()
        self._slots: list[Slot] = []
        self._words = 0
        self._bytes = 0
        self._inputs = Leading(torch.empty(0, dtype=torch.int32, device=device.device))
        self._result = Leading(torch.empty(0, dtype=torch.uint8, device=device.device))
        self._layouts: dict[GraphKey, tuple[StagingLayout, StagedInputs]] = {}
        self._graphs: GraphCache | None = None
        self._built: set[tuple[int, int, int]] = set()  # sizes whose kernels were built
        self._host_plans: HostPlans | None = None
        if model.backend is Backend.FLASHINFER:
            with device.on(self._stream):
                self._host_plans = HostPlans(
                    device.device,
                    self._stream,
                    lambda: device.event(is_urgent=is_urgent),
                    STEPS_IN_FLIGHT,
                )

    @property
    def num_graphs(self) -> int:
        """Graphs captured."""
        return len(self._graphs) if self._graphs is not None else 0

    @property
    def graph_bytes(self) -> int:
        """What they take of the device's memory."""
        return self._graphs.num_bytes if self._graphs is not None else 0

    def step(self, batch: Batch) -> LazyTensor:
        """See `Engine.step`."""
        graphs = self._graphs
        wanted = None
        num_slots = max(batch.num_sequences, batch.num_rows)
        # Other heads have a row a token, and run without a graph.
        if graphs is not None and batch.head == EMBED_HEAD:
            wanted = graphs.key(batch.num_tokens, num_slots, batch.max_seqlen)
        if graphs is None or wanted is None:
            return self._run_once(batch)
        with self._device.on(self._stream):
            key, graph, mode = graphs.choose(wanted, batch.num_tokens, num_slots)
            layout, inputs = self._layout(key)
            slot = self._fill(batch, layout)
            num_words, num_bytes = layout.num_words, batch.num_result_bytes + batch.num_rows
            self._inputs(num_words).copy_(slot.words(num_words), non_blocking=True)
            if graph is None:
                self._model.forward(inputs, batch.head, key.max_seqlen, self._all_results)
            else:
                graph.replay()
            rows = self._result(num_bytes)
            return self._take(slot, rows, mode, key.num_tokens - batch.num_tokens)

    def capture(
        self, max_tokens: int, max_row_bytes: int, when: GraphCapture, memory_limit: int
    ) -> None:
        """Allocates buffers for steps of up to `max_tokens` and captures their graphs, if they can be.

        Both take the place of those before.
        """
        if self._host_plans is not None:
            when = GraphCapture.OFF
        is_tight = self._model.backend is not Backend.FLASH_ATTN_4
        if is_tight and when is GraphCapture.START:
            when = GraphCapture.LAZY
        grid = make_grid(max_tokens, is_bound_tight=is_tight)
        largest = grid.largest
        max_slots = largest.num_slots
        self._words = StagingLayout(largest.num_tokens, max_slots, max_slots).num_words
        self._bytes = max_slots * (max_row_bytes + 1)
        device = self._device.device
        # Views of the buffers before, and the memory of graphs that go, which cannot be used again.
        self._layouts.clear()
        self._built.clear()
        self._pool = self._device.pool()
        self._inputs = Leading(torch.zeros(self._words, dtype=torch.int32, device=device))
        self._result = Leading(torch.empty(self._bytes, dtype=torch.uint8, device=device))
        self._slots = [self._new_slot(self._words, self._bytes) for _ in range(STEPS_IN_FLIGHT)]
        self._graphs = GraphCache(
            grid,
            when=when,
            memory_limit=memory_limit,
            capture=self._capture_key,
        )
        with self._device.on(self._stream):
            # So that its memory is there before requests come, and no step or capture among them builds a kernel.
            self._run_padding(largest)
            for key in grid.kernel_keys() if when is not GraphCapture.START else ():
                self._run_padding(key)
            for one in grid.classes if when is GraphCapture.LAZY else ():
                ends = one.buckets[0], one.buckets[-1]
                for key in one.all_keys():
                    size = key.num_tokens
                    if size in ends or (size >= ALIKE_TOKENS and size == _alike(size)):
                        self._run_padding(key)
        self._device.synchronize()
        self._graphs.capture_all()
        self._device.synchronize()

    def _capture_key(self, key: GraphKey) -> Graph:
        _, inputs = self._layout(key)
        # Builds the kernels that it needs. Those of two large steps are the same.
        kernels = _alike(key.num_tokens), key.num_slots, _alike(key.max_seqlen)
        if kernels not in self._built:
            with self._device.on(self._stream):
                self._run_padding(key)
            self._built.add(kernels)
        try:
            return self._device.capture(
                self._stream,
                self._pool,
                lambda: self._model.forward(inputs, EMBED_HEAD, key.max_seqlen, self._all_results),
            )
        except RuntimeError:
            self._pool = self._device.pool()  # that of a broken capture cannot be used again
            raise

    @property
    def _all_results(self) -> Tensor:
        return self._result(self._bytes)

    def _run_padding(self, key: GraphKey) -> None:
        """A step of one sequence that fills all tokens; its rows are not written."""
        layout, inputs = self._layout(key)
        self._inputs(layout.num_words).zero_()
        inputs.cu_seqlens[1:].fill_(min(key.max_seqlen, self._model.max_seqlen))
        inputs.padded_cu_seqlens[-1:].fill_(key.num_tokens)
        with self._planned(layout, self._inputs(layout.num_words)) as on_host:
            self._model.forward(inputs, EMBED_HEAD, key.max_seqlen, self._all_results, on_host)

    def _planned(
        self, layout: StagingLayout, words: Tensor
    ) -> AbstractContextManager[HostPlan | None]:
        """What the backend works out on the host for a staged step, all of which is enqueued inside."""
        if self._host_plans is None:
            return nullcontext()
        return self._host_plans.step(layout.views(words).padded_cu_seqlens)

    def _layout(self, key: GraphKey) -> tuple[StagingLayout, StagedInputs]:
        found = self._layouts.get(key)
        if found is None:
            layout = StagingLayout(key.num_tokens, key.num_slots, key.num_slots)
            found = self._layouts[key] = layout, layout.views(self._inputs(layout.num_words))
        return found

    def _run_once(self, batch: Batch) -> LazyTensor:
        """A step that no graph holds, in memory of its own."""
        layout = StagingLayout.around(batch)
        num_bytes = batch.num_result_bytes + batch.num_rows
        slot = self._new_slot(layout.num_words, num_bytes)
        layout.pack(batch, slot.array)
        device = self._device.device
        with self._device.on(self._stream):
            words = slot.words(layout.num_words).to(device, non_blocking=True)
            inputs = layout.views(words)
            result = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            is_short = batch.max_seqlen <= MAX_SHORT_SEQLEN
            bound = MAX_SHORT_SEQLEN if is_short else layout.num_tokens
            with self._planned(layout, slot.words(layout.num_words)) as on_host:
                self._model.forward(inputs, batch.head, bound, result, on_host)
            padding = layout.num_tokens - batch.num_tokens
            return self._take(slot, result, "eager", padding, is_reused=False)

    def _fill(self, batch: Batch, layout: StagingLayout) -> Slot:
        slot = self._slots.pop() if self._slots else self._new_slot(self._words, self._bytes)
        if slot.event is not None:
            slot.event.synchronize()  # of a result that nobody waited for
        try:
            layout.pack(batch, slot.array)
        except ValueError:
            self._slots.append(slot)
            raise
        return slot

    def _take(
        self,
        slot: Slot,
        result: Tensor,
        mode: str,
        padding_tokens: int,
        *,
        is_reused: bool = True,
    ) -> LazyTensor:
        host = slot.result(result.shape[0])
        host.copy_(result, non_blocking=True)
        if slot.event is None:
            slot.event = self._device.event(is_urgent=self._is_urgent)
        slot.event.record(self._stream)
        return LazyTensor(
            host,
            mode=mode,
            padding_tokens=padding_tokens,
            event=slot.event,
            device_index=self._device.index,
            release=(lambda: self._slots.append(slot)) if is_reused else None,
        )

    def _new_slot(self, num_words: int, num_bytes: int) -> Slot:
        words = self._device.host_buffer(num_words, torch.int32)
        return Slot(words, self._device.host_buffer(num_bytes, torch.uint8))


def _alike(num_tokens: int) -> int:
    """The same for token counts whose steps run the same kernels."""
    if num_tokens <= ALIKE_TOKENS:
        return num_tokens
    return 1 << (num_tokens.bit_length() - 1)
