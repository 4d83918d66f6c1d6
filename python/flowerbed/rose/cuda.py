"""What the runner of ragged steps needs of a CUDA device: streams, buffers, events, graphs.

Thin over torch; tests put a fake device in its place. Called by `ragged`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from flowerbed.rose.graphs import Graph
from flowerbed.rose.lazy import Event

HIGH_PRIORITY, NORMAL_PRIORITY = -5, 0
"""Lower goes first; torch clamps to what the device has."""


class _On:
    """`torch.cuda.stream` without its checks, which take 15 µs."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._before = stream

    def __enter__(self) -> None:
        self._before = torch.cuda.current_stream(self._stream.device)
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._before)


class CudaGraph:
    """A captured step."""

    def __init__(self, graph: torch.cuda.CUDAGraph, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.replay = graph.replay


class CudaDevice:
    """One GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index

    def stream(self, *, is_urgent: bool) -> torch.cuda.Stream:
        """A queue of work; kernels of an urgent one go before those of others."""
        priority = HIGH_PRIORITY if is_urgent else NORMAL_PRIORITY
        return torch.cuda.Stream(self.device, priority=priority)

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """What is enqueued inside goes to `stream`."""
        return _On(stream)

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """[size], page-locked, so that copies do not wait."""
        return torch.empty(size, dtype=dtype, pin_memory=True)

    def event(self, *, is_urgent: bool) -> Event:
        """An event; waiting for an urgent one takes a core, for others none.

        Without a core the wait ends 115 µs later (one H200 in a virtual machine).
        """
        return torch.cuda.Event(blocking=not is_urgent)

    def synchronize(self) -> None:
        """Waits for all streams."""
        torch.cuda.synchronize(self.device)

    def pool(self) -> Any:
        """Memory that graphs share which never run side by side."""
        return torch.cuda.graph_pool_handle()

    def capture(self, stream: torch.cuda.Stream, pool: Any, run: Any) -> Graph:
        """Captures what `run()` enqueues on `stream`.

        Thread-local: another thread may wait for events meanwhile. The context manager of torch is not
        used, since it synchronises the device and empties caches.
        """
        free_before, _ = torch.cuda.mem_get_info(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        free_after, _ = torch.cuda.mem_get_info(self.device)
        return CudaGraph(graph, max(0, free_before - free_after))
