"""A rolling restart: the workers end and come back one after another, so that some always serve.

The next one goes only when the gateway says that all others are up, or that it is not up itself; if one
never comes back, the rest stay as they are. Knows nothing of processes: `flowerbed.supervisor` asks it at each
turn of its loop.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence

from flowerbed.child import Child

logger = logging.getLogger(__name__)


class RollingRestart:
    """Restarts each of `workers` once, whenever it is asked to."""

    def __init__(self, workers: Sequence[Child], drain_timeout_s: float) -> None:
        self._workers = workers
        self._drain_timeout_s = drain_timeout_s
        self._waiting: deque[Child] = deque()
        self._current: Child | None = None
        self._is_ending = False  # the current one was told to, and has not ended yet
        self._kill_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether a worker is on its way or waits for its turn."""
        return self._current is not None or bool(self._waiting)

    def ask(self) -> None:
        """From now on every worker takes its turn; asked again meanwhile, they all take another."""
        logger.info("restarting the workers one after another")
        self._waiting = deque(self._workers)

    def has_ended(self, worker: Child) -> bool:
        """Takes note of an end. Returns whether it was asked for, so that a new one starts at once."""
        if worker is not self._current or not self._is_ending:
            return False
        self._is_ending = False
        return True

    def step(self, is_up: Callable[[Child], bool]) -> None:
        """Moves on if it can; `is_up` tells whether requests reach a worker."""
        if self._is_ending:
            if self._current and time.monotonic() >= self._kill_at:
                logger.warning("%s has not ended: killing it", self._current.name)
                self._current.send(signal.SIGKILL)
            return
        if self._current is not None:
            if not is_up(self._current):
                return
            logger.info("%s was restarted", self._current.name)
            self._current = None
        worker = self._next(is_up)
        if worker is not None:
            self._waiting.remove(worker)
            self._begin(worker)

    def _next(self, is_up: Callable[[Child], bool]) -> Child | None:
        """One that serves nobody, or the first if the others serve; None while it would be missed."""
        if not self._waiting:
            return None
        down = [worker for worker in self._workers if not is_up(worker)]
        idle = next((worker for worker in self._waiting if worker in down), None)
        return idle or (None if down else self._waiting[0])

    def _begin(self, worker: Child) -> None:
        self._current = worker
        if worker.pid is not None:  # else it is being started again already
            self._is_ending = True
            self._kill_at = time.monotonic() + self._drain_timeout_s
            worker.send(signal.SIGTERM)
