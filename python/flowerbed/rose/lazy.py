"""The result of a step before the device has finished it.

Knows nothing of what the bytes mean. Made by `engine`; read by the worker's bridge and by in-process
callers. Implements `HostRows` of `flowerbed._core`.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class LazyTensor:
    """Bytes on their way from the device; complete on return from a CPU."""

    def __init__(
        self, host: Tensor, event: torch.cuda.Event | None, mode: str, padding_tokens: int
    ) -> None:
        """Takes the host buffer and the event after which it may be read (None: at once)."""
        self.mode = mode  # eager, capture or replay
        self.padding_tokens = padding_tokens  # tokens that belonged to no sequence
        self._host = host  # [num_bytes] uint8, pinned if it comes from a GPU
        self._event = event

    @classmethod
    def launch(cls, buffer: Tensor, *, mode: str, padding_tokens: int) -> Self:
        """Enqueues the copy of `buffer`, [num_bytes] uint8, to the host and returns at once."""
        if not buffer.is_cuda:
            return cls(buffer, None, mode, padding_tokens)
        host = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        host.copy_(buffer, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(buffer.device))
        return cls(host, event, mode, padding_tokens)

    def ready(self) -> bool:
        """True once the bytes are on the host. Never waits."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Blocks, with the interpreter released, until the bytes are on the host."""
        if self._event is not None:
            self._event.synchronize()

    def numpy(self) -> NDArray[np.uint8]:
        """Waits, then returns the bytes without copying them."""
        self.wait()
        return self._host.numpy()

    def host(self) -> memoryview:
        """Waits, then returns the bytes as a buffer, without copying them."""
        return self.numpy().data
