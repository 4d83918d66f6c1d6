"""Keeps the gateway and its workers running, and ends them in order.

Plain Python: no torch, no tokio, no fork without exec. One loop takes events (a child said
something, a child ended, a signal came) and decides; `child.py` does the work with processes.
`launch.py` says what to start. Knows nothing of models.

SIGHUP restarts the workers one after another (`rolling.py`); on a terminal it means that the terminal
is gone, and ends everything as SIGTERM does.

Exit codes: 0 after a clean end; 1 if something could not start or had to be killed; 128 plus the
signal's number if a second signal asked to end at once.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Protocol
from urllib.parse import urlsplit

from flowerbed import ready
from flowerbed.child import Child, ChildSpec, Ended, Event, Relay, Said, Signalled, describe_end
from flowerbed.config import RestartPolicy
from flowerbed.rolling import RollingRestart

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_IDLE_S = 0.5
"""A signal that comes just before a wait begins is handled only after the wait, so none is long."""
_PROBE_TIMEOUT_S = 1.0
_IDLE_END_S = 5.0
"""For children that have nothing to finish, such as workers without a gateway."""
_END_S = 3.0
"""For a child that has drained, or should have, to end. Then it is killed."""
_CLEAN_CODES = (0, -signal.SIGTERM)
"""Of a child that was told to end; the second if it had only just begun."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs: one gateway and its workers."""

    gateway_at: Callable[[int], ChildSpec]  # by port
    port: int  # 0: any free one; a gateway that is started again keeps the port it got
    workers: tuple[ChildSpec, ...]
    drain_timeout_s: float  # for open requests; the children were given the same


class Watcher(Protocol):
    """Whom the supervisor tells how far the start is."""

    def advance(self, num_bytes: int, total_bytes: int) -> None:
        """So much of the weights is loaded, all workers together."""

    def ready(self, gateway: ready.Ready) -> None:
        """Everything is ready; told once."""


class Supervisor:
    """Runs a plan until a signal ends it."""

    def __init__(
        self,
        plan: Plan,
        watcher: Watcher,
        relay: Relay | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._plan = plan
        self._watcher = watcher
        self._policy = policy or RestartPolicy()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._gateway = Child(plan.gateway_at(plan.port), self._events, relay)
        self._workers = [Child(spec, self._events, relay) for spec in plan.workers]
        self._gateway_ready: ready.Ready | None = None
        self._rolling = RollingRestart(self._workers, plan.drain_timeout_s + _END_S)
        self._loaded: dict[str, ready.Loaded] = {}
        self._is_announced = False
        self._has_terminal = sys.stderr.isatty()  # one that has gone is none any more
        self._forced_by: int | None = None

    def run(self) -> int:
        """Starts everything, keeps it running, ends it; returns the exit code."""
        parent_fd, held_fd = os.pipe()  # no child inherits held_fd; it closes with this process
        try:
            with _signals_to(self._events):
                try:
                    self._start([self._gateway, *self._workers], parent_fd)
                    has_started = self._serve(parent_fd)
                finally:
                    is_clean = self._stop()
        finally:
            os.close(held_fd)
            os.close(parent_fd)
        if self._forced_by is not None:
            return 128 + self._forced_by
        return 0 if has_started and is_clean else 1

    # === while serving ===

    def _start(self, children: Iterable[Child], parent_fd: int) -> None:
        for child in children:
            child.start(parent_fd)

    def _serve(self, parent_fd: int) -> bool:
        """Returns True when asked to end, False if a child could not start at all."""
        while True:
            event = self._next_event()
            match event:
                case Signalled(signal.SIGHUP) if not self._has_terminal:
                    self._rolling.ask()
                case Signalled(signum):
                    logger.info("%s: ending", signal.Signals(signum).name)
                    return True
                case Said(child, line):
                    self._heard(child, line)
                case Ended(child, returncode) if not child.was_ready:
                    logger.error(
                        "%s could not start (%s); ending", child.name, describe_end(returncode)
                    )
                    return False
                case Ended(child) if self._rolling.has_ended(child):
                    child.restart_at = time.monotonic()
                case Ended(child, returncode):
                    self._plan_restart(child, returncode)
                case None:
                    pass
            due = [child for child in self._children if _is_due(child)]
            self._start(due, parent_fd)
            if not self._is_announced:
                self._announce_if_ready()
            elif self._rolling.is_on:
                self._rolling.step(self._is_up_now())

    @property
    def _children(self) -> list[Child]:
        return [self._gateway, *self._workers]

    def _next_event(self) -> Event | None:
        is_idle = self._is_announced and not self._rolling.is_on
        wake_at = time.monotonic() + (_IDLE_S if is_idle else _POLL_S)
        restarts = [child.restart_at for child in self._children if child.restart_at is not None]
        timeout_s = max(0.0, min([wake_at, *restarts]) - time.monotonic())
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def _heard(self, child: Child, line: str) -> None:
        loaded = ready.parse_loaded(line)
        if loaded is not None:
            if not self._is_announced:
                self._show_progress(child, loaded)
            return
        message = ready.parse(line)
        if message is None:
            logger.info("%s: %s", child.name, line)
            return
        if child.was_ready:
            logger.info("%s is back", child.name)
        child.was_ready = child.is_ready = True
        if child is self._gateway:
            self._gateway_ready = message
            port = urlsplit(message.address).port or self._plan.port
            child.spec = self._plan.gateway_at(port)

    def _show_progress(self, child: Child, loaded: ready.Loaded) -> None:
        self._loaded[child.name] = loaded
        num_bytes = sum(each.num_bytes for each in self._loaded.values())
        total_bytes = loaded.total_bytes * len(self._workers)  # all load the same model
        self._watcher.advance(num_bytes, total_bytes)

    def _plan_restart(self, child: Child, returncode: int) -> None:
        lived_s = time.monotonic() - child.started_at
        if lived_s >= self._policy.healthy_after_s:
            child.num_ends_in_a_row = 0
        delay_s = restart_delay_s(self._policy, child.num_ends_in_a_row)
        child.num_ends_in_a_row += 1
        child.restart_at = time.monotonic() + delay_s
        logger.warning(
            "%s ended after %.1f s (%s): starting it again in %.1f s",
            child.name,
            lived_s,
            describe_end(returncode),
            delay_s,
        )

    def _announce_if_ready(self) -> None:
        message = self._gateway_ready
        if message is None or not all(child.was_ready for child in self._children):
            return
        if _ready_workers(message.address) is not None:
            self._is_announced = True
            self._watcher.ready(message)

    def _is_up_now(self) -> Callable[[Child], bool]:
        """Whether the gateway sends requests to a worker's newest process; it is asked once, if at all."""

        @cache
        def states() -> dict[str, str]:
            gateway = self._gateway_ready
            return (_ready_workers(gateway.address) if gateway else None) or {}

        return lambda worker: worker.is_ready and states().get(worker.name) == "up"

    # === the end ===

    def _stop(self) -> bool:
        """Ends the gateway, which drains, then the workers. Returns False if a request was lost."""
        drain_s = self._plan.drain_timeout_s
        idle_s = min(drain_s, _IDLE_END_S)
        is_gateway_clean = self._stop_children(
            [self._gateway], drain_s if self._is_announced else idle_s
        )
        # With the gateway gone nobody waits for them.
        are_workers_clean = self._stop_children(self._workers, idle_s)
        return is_gateway_clean and are_workers_clean

    def _stop_children(self, children: list[Child], timeout_s: float) -> bool:
        kill_at = time.monotonic() + timeout_s + _END_S
        living = [child for child in children if child.pid]
        for child in living:
            child.send(signal.SIGTERM)
        is_killed = False
        while left := [child for child in living if child.pid]:
            is_late = self._forced_by is not None or time.monotonic() >= kill_at
            if is_late and not is_killed:
                is_killed = True
                for child in left:
                    logger.warning("%s has not ended: killing it", child.name)
                    child.send(signal.SIGKILL)
            try:
                event = self._events.get(timeout=_POLL_S)
            except Empty:
                continue
            if isinstance(event, Signalled) and event.signum != signal.SIGHUP:
                self._forced_by = event.signum
        return not is_killed and all(child.returncode in _CLEAN_CODES for child in living)


def restart_delay_s(policy: RestartPolicy, num_ends_in_a_row: int) -> float:
    """`first_delay_s`, doubled with every end in a row, up to `max_delay_s`."""
    doubled = policy.first_delay_s * 2.0 ** min(num_ends_in_a_row, 32)
    return min(doubled, policy.max_delay_s)


def _is_due(child: Child) -> bool:
    return child.restart_at is not None and time.monotonic() >= child.restart_at


def _ready_workers(address: str) -> dict[str, str] | None:
    """What a gateway that is ready tells of its workers, by name; None if it is not ready."""
    url = urlsplit(address)
    wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (the user's choice)
    host = wildcard.get(url.hostname or "", url.hostname or "")
    connection = http.client.HTTPConnection(host, url.port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        response = connection.getresponse()
        body = response.read()
        return json.loads(body)["workers"] if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()


@contextmanager
def _signals_to(events: SimpleQueue[Event]) -> Generator[None]:
    """Turns signals into events; `SimpleQueue.put` may be called inside a handler."""

    def put(signum: int, _frame: FrameType | None) -> None:
        events.put(Signalled(signum))

    # nohup asks for SIGHUP to stay ignored. An ignored SIGINT is only how a shell starts what runs in
    # its background.
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [signum for signum in _SIGNALS if signum != signal.SIGHUP or not is_nohup]
    previous = {signum: signal.signal(signum, put) for signum in heard}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
