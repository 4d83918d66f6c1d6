"""A child ends when its supervisor does, however that ended.

The supervisor holds the write end of a pipe and gives each child the read end
(`FLOWERBED_PARENT_FD`). The kernel closes the write end with the process, even after kill -9, and
the child reads end of file. `flowerbed.supervisor` makes the pipe; `flowerbed.cli` calls `watch`.
"""

from __future__ import annotations

import os
import signal
import threading
import time

PARENT_FD_VARIABLE = "FLOWERBED_PARENT_FD"
EXIT_DEVICE_FAULT = 70
"""Exit code of a worker whose device failed in a way that only a new process mends."""
GRACE_S = 5.0
"""Time for a clean end. After it the process ends without one: nobody is left to wait for it."""


def watch(grace_s: float = GRACE_S) -> bool:
    """Watches the supervisor's pipe on a thread of its own.

    Returns:
        False if this process was not started by a supervisor.
    """
    value = os.environ.pop(PARENT_FD_VARIABLE, None)
    if value is None:
        return False
    fd = int(value)
    os.set_inheritable(fd, False)
    thread = threading.Thread(
        target=_end_with_parent, args=(fd, grace_s), name="parent-watch", daemon=True
    )
    thread.start()
    return True


def _end_with_parent(fd: int, grace_s: float) -> None:
    while os.read(fd, 64):
        pass  # nothing is ever written
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)
