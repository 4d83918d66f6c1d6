"""One child process of the supervisor: started by exec, heard on its stdout, told by signals.

What happens to it becomes events in the supervisor's queue. Knows nothing of what the child does
or of when it should run.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO

from flowerbed.parent import EXIT_DEVICE_FAULT, PARENT_FD_VARIABLE

logger = logging.getLogger(__name__)

EXIT_NOT_STARTED = 127
"""As a shell says it."""

Relay = Callable[[str], None]
"""Takes a line that a child wrote to stderr, where something else is drawn on the terminal."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run."""

    name: str  # in messages: gateway, worker-0
    command: tuple[str, ...]
    environment: Mapping[str, str]  # all of it; secrets too, never in `command`


@dataclass(frozen=True, slots=True)
class Said:
    """A child wrote a line to stdout."""

    child: Child
    line: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A child is gone."""

    child: Child
    returncode: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """The supervisor itself got a signal."""

    signum: int


Event = Said | Ended | Signalled


class Child:
    """One of the supervisor's children, over all its restarts."""

    def __init__(self, spec: ChildSpec, events: SimpleQueue[Event], relay: Relay | None) -> None:
        self.spec = spec
        self.was_ready = False  # set by the supervisor; true once any of its processes was ready
        self.is_ready = False  # set by the supervisor; of the process that runs now
        self.num_ends_in_a_row = 0  # counted by the supervisor
        self.restart_at: float | None = None  # time.monotonic(), while it waits to be started again
        self.started_at = 0.0
        self.returncode: int | None = None  # of the process that ended last
        self._events = events
        self._relay = relay
        self._process: subprocess.Popen[str] | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """Its process, while it has one."""
        return self._process.pid if self._process else None

    def start(self, parent_fd: int) -> None:
        """Starts a process that ends when the write end of `parent_fd` closes.

        One that cannot be started has ended.
        """
        self.restart_at = None
        self.is_ready = False
        self.started_at = time.monotonic()
        try:
            process = subprocess.Popen(
                self.spec.command,
                env={**self.spec.environment, PARENT_FD_VARIABLE: str(parent_fd)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if self._relay else None,
                pass_fds=(parent_fd,),
                process_group=0,  # a Ctrl-C of the terminal reaches the supervisor alone
                text=True,
                errors="replace",
            )
        except OSError as error:  # no memory, too many processes or files, a program that is gone
            logger.warning("%s: no process can be started: %s", self.name, error)
            self._events.put(Ended(self, EXIT_NOT_STARTED))
            return
        self._process = process
        readers = [self._read(process.stdout, lambda line: self._events.put(Said(self, line)))]
        if self._relay:
            readers.append(self._read(process.stderr, self._relay))
        _background(f"{self.name}-wait", lambda: self._report_end(process, readers))

    def send(self, signum: signal.Signals) -> None:
        """Sends a signal, if the process still lives."""
        process = self._process  # another thread clears it when the process ends
        if process:
            process.send_signal(signum)

    def _read(self, stream: IO[str] | None, take: Relay) -> threading.Thread:
        def lines() -> None:
            if stream is not None:
                with stream:
                    for line in stream:
                        # A closed terminal must not stop the reading: the child would block on a
                        # full pipe.
                        with contextlib.suppress(OSError):
                            take(line.rstrip("\n"))

        return _background(f"{self.name}-read", lines)

    def _report_end(self, process: subprocess.Popen[str], readers: list[threading.Thread]) -> None:
        returncode = process.wait()
        for reader in readers:
            reader.join(timeout=1.0)  # its last words come before the news of its end
        self.returncode = returncode
        self._process = None
        self._events.put(Ended(self, returncode))


def describe_end(returncode: int) -> str:
    """`exit code 1` or `killed by SIGKILL`."""
    if returncode == EXIT_DEVICE_FAULT:
        return f"exit code {returncode}: its device failed"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def _background(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
