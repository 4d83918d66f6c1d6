"""Counts the bytes that the hub library fetches: it draws nothing, and tells a caller or the log.

Called by `flowerbed.hub_download`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Self

log = logging.getLogger("flowerbed.hub")

Progress = Callable[[int, int], None]
"""Takes the bytes so far and the bytes in all, as far as they are known."""

_LOG_EVERY_S = 5.0


class Bar:
    """Stands where the hub library expects a tqdm bar; draws nothing.

    Of its two bars of bytes, one for the network and one for the disk, the latter is counted.
    """

    format_dict: dict[str, Any] = {}  # noqa: RUF012 (read only, as tqdm has it)

    def __init__(self, *_: Any, **settings: Any) -> None:
        description = str(settings.get("desc") or "")
        self._counts = settings.get("unit") == "B" and not description.startswith(
            "Downloading bytes"
        )
        self.n = 0
        self._total = int(settings.get("total") or 0)

    def changed(self, num_bytes: int, total_bytes: int) -> None:
        """Told by how much the bytes so far and in all grew."""

    @property
    def total(self) -> int:
        """What the library adds file sizes to."""
        return self._total

    @total.setter
    def total(self, value: int | None) -> None:
        grown = int(value or 0) - self._total
        self._total += grown
        if self._counts:
            self.changed(0, grown)

    def update(self, n: float | None = 1) -> None:
        """Moves the bar; a download that starts again takes back what it had."""
        self.n += int(n or 0)
        if self._counts:
            self.changed(int(n or 0), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    refresh = close = set_description = set_description_str = set_postfix_str = _nothing


class Meter:
    """Sums the bytes of all bars that the hub library makes."""

    def __init__(self, model: str, progress: Progress | None) -> None:
        self.was_online = False  # a download was begun, if only to find all there
        self.num_bytes = 0
        self.total_bytes = 0
        self._lock = threading.Lock()
        self._model = model
        self._progress = progress or self._log
        self._started_at = self._logged_at = time.monotonic()

    def bar_class(self) -> type[Bar]:
        """A class whose bars tell this meter."""
        meter = self

        class Counted(Bar):
            def __init__(self, *args: Any, **settings: Any) -> None:
                super().__init__(*args, **settings)
                meter.was_online = True

            def changed(self, num_bytes: int, total_bytes: int) -> None:
                meter.add(num_bytes, total_bytes)

        return Counted

    def add(self, num_bytes: int, total_bytes: int) -> None:
        """Counts what a bar grew by; files come on threads of their own, callers need not care."""
        with self._lock:
            self.num_bytes += num_bytes
            self.total_bytes += total_bytes
            if self.num_bytes > 0:
                self._progress(self.num_bytes, max(self.total_bytes, self.num_bytes))

    def finish(self, commit: str) -> None:
        """Logs what was fetched, if anything was."""
        if self.num_bytes > 0:
            took = time.monotonic() - self._started_at
            size = self.num_bytes / 1e6
            log.info("fetched %s at %s: %.1f MB in %.1f s", self._model, commit, size, took)

    def _log(self, num_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            parts = num_bytes / 1e6, total_bytes / 1e6
            log.info("fetching %s: %.1f of %.1f MB", self._model, *parts)
