"""The result of a step before the device has finished it.

Knows nothing of what the bytes mean. Made by the engine's runners; read by the worker's bridge and by
in-process callers. Implements `Rows` of `flowerbed._core`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Event(Protocol):
    """Marks a place in a stream of work, as `torch.cuda.Event` does."""

    @property
    def cuda_event(self) -> int:
        """The driver's handle."""
        ...

    def record(self, stream: Any) -> None:
        """Puts it at the end of what `stream` holds."""
        ...

    def query(self) -> bool:
        """True once all before it is done."""
        ...

    def synchronize(self) -> None:
        """Waits for that, with the interpreter released."""
        ...


class DeviceRows(NamedTuple):
    """What a thread without the interpreter needs to wait for the bytes and to copy them."""

    event: int  # CUevent, made for blocking waits
    pointer: int  # of page-locked host memory
    num_bytes: int
    device_index: int


class LazyTensor:
    """Bytes on their way from the device; complete on return from a CPU.

    The bytes lie in a buffer that a later step uses again once this object is gone: keep it until they
    are copied.
    """

    def __init__(
        self,
        host: Tensor,
        *,
        mode: str,
        padding_tokens: int,
        event: Event | None = None,
        device_index: int = 0,
        release: Callable[[], None] | None = None,
    ) -> None:
        """Takes the bytes' place and what tells that they are there.

        Args:
            host: [num_bytes] uint8, page-locked if it comes from a GPU.
            mode: eager, capture or replay.
            padding_tokens: Tokens that belonged to no sequence.
            event: After it the bytes may be read; None: at once.
            device_index: Of the GPU.
            release: Called once nobody needs `host` any more.
        """
        self.mode = mode
        self.padding_tokens = padding_tokens
        self._host = host
        self._event = event
        self._device_index = device_index
        self._release = release

    def __del__(self) -> None:
        if self._release is not None:
            self._release()

    def ready(self) -> bool:
        """True once the bytes are on the host. Never waits."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Blocks, with the interpreter released, until the bytes are on the host."""
        if self._event is not None:
            self._event.synchronize()

    def numpy(self) -> NDArray[np.uint8]:
        """Waits, then returns the bytes; a copy if a later step will use their place again."""
        self.wait()
        rows: NDArray[np.uint8] = self._host.numpy()
        return rows if self._release is None else rows.copy()

    def host(self) -> memoryview:
        """Waits, then returns the bytes as a buffer, without copying them."""
        self.wait()
        return self._host.numpy().data

    def device_rows(self) -> DeviceRows | None:
        """How to wait for the bytes without the interpreter; None if they are there already."""
        if self._event is None:
            return None
        return DeviceRows(
            self._event.cuda_event, self._host.data_ptr(), self._host.numel(), self._device_index
        )
