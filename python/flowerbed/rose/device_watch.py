"""Clock and power of a GPU while it is measured. Loads torch. Called by `flowerbed bench engine`."""

from __future__ import annotations

import statistics
from threading import Event, Thread
from types import TracebackType
from typing import Self

import torch

INTERVAL_S = 0.1


class DeviceWatch:
    """Reads them about ten times a second, in a thread of its own, as long as the context lasts.

    Nothing is read on a CPU, nor without nvidia-ml-py (extra `cuda`).
    """

    def __init__(self, device: torch.device) -> None:
        """Watches `device`."""
        self._device = device
        self._clocks: list[int] = []  # MHz
        self._powers: list[int] = []  # mW
        self._is_over = Event()
        self._thread = Thread(target=self._read, name="device-watch", daemon=True)

    def __enter__(self) -> Self:
        """Begins to read."""
        if self._device.type == "cuda":
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends it."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def sm_clock_mhz(self) -> int | None:
        """Median clock of the processors, MHz; None: not known."""
        return round(statistics.median(self._clocks)) if self._clocks else None

    @property
    def power_w(self) -> int | None:
        """Median power, W; None: not known."""
        return round(statistics.median(self._powers) / 1e3) if self._powers else None

    def _read(self) -> None:
        while not self._is_over.wait(INTERVAL_S):
            try:
                clock = torch.cuda.clock_rate(self._device)
                power = torch.cuda.power_draw(self._device)
            except Exception:  # noqa: BLE001 - no nvidia-ml-py, or a driver that does not tell
                return
            self._clocks.append(clock)
            self._powers.append(power)
