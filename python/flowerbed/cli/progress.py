"""What a person sees on the terminal while a model loads. Silent where stderr is no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from flowerbed.child import Relay
from flowerbed.config import LogFormat
from flowerbed.ready import Loaded

if TYPE_CHECKING:  # costs 30 ms, and is used on terminals only
    from rich.progress import Progress, TaskID

_REPORT_EVERY_S = 0.1


class _Display:
    """Something to look at while a block runs."""

    def __enter__(self) -> Self:
        return self

    def finish(self) -> None:
        """Takes the display away."""

    def __exit__(self, *_: object) -> None:
        self.finish()


class Loading(_Display):
    """A spinner, a bar of the bytes so far and the seconds. Gone after `finish` or on leaving."""

    def __init__(self, model: str, log_format: LogFormat, verb: str = "loading") -> None:
        self.relay: Relay | None = None  # prints a line above the display, where there is one
        self._model = model
        self._verb = verb
        self._is_wanted = log_format is LogFormat.TEXT and _is_terminal()
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self._is_wanted:
            self._show()
        return self

    def advance(self, num_bytes: int, total_bytes: int) -> None:
        """Moves the bar."""
        if self._shown:
            progress, task = self._shown
            progress.update(task, completed=num_bytes, total=total_bytes)

    def finish(self) -> None:
        """Takes the display away; the relay stays usable."""
        if self._shown:
            self._shown[0].stop()
            self._shown = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.table import Column

        name = self._model.rpartition("/")[2]
        console = Console(stderr=True)
        text = TextColumn(f"{self._verb} [bold]{{task.description}}[/bold]")
        size = DownloadColumn(table_column=Column(no_wrap=True, min_width=16))
        columns = (SpinnerColumn(), text, BarColumn(bar_width=20), size, TimeElapsedColumn())
        progress = Progress(*columns, console=console, transient=True)
        self._shown = progress, progress.add_task(escape(name), total=None)
        self.relay = lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
        progress.start()


class Fetching(_Display):
    """A bar for a download, from its first byte on: what is cached shows none.

    `advance` is None where nothing can be shown, so that the download writes log lines instead.
    """

    def __init__(self, model: str | None, log_format: LogFormat) -> None:
        self._model = model or ""
        self._log_format = log_format
        self._shown: Loading | None = None
        is_shown = log_format is LogFormat.TEXT and _is_terminal()
        self.advance: Callable[[int, int], None] | None = self._advance if is_shown else None

    def _advance(self, num_bytes: int, total_bytes: int) -> None:
        if self._shown is None:
            self._shown = Loading(self._model, self._log_format, "fetching")
            self._shown.__enter__()
        self._shown.advance(num_bytes, total_bytes)

    def finish(self) -> None:
        """Takes the bar away."""
        if self._shown:
            self._shown.finish()


class Reporting(_Display):
    """Stands for `Loading` in a worker whose supervisor owns the terminal: it tells on stdout."""

    def __init__(self) -> None:
        self._last_at = 0.0

    def advance(self, num_bytes: int, total_bytes: int) -> None:
        """Tells, but not more often than a display needs."""
        now = time.monotonic()
        if now - self._last_at >= _REPORT_EVERY_S or num_bytes >= total_bytes:
            self._last_at = now
            print(Loaded(num_bytes, total_bytes), flush=True)


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
