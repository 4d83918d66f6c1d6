"""What the commands that run a part of the system do first."""

from __future__ import annotations

import signal
import threading

from flowerbed import config, logs, parent

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def begin(log_format: config.LogFormat, log_level: config.LogLevel) -> bool:
    """Watches the supervisor and sends the logs of Python and of the Rust core to stderr.

    Call it before torch is loaded: threads take over which signals are not for them.

    Returns:
        Whether a supervisor started this process.
    """
    is_supervised = parent.watch()
    keep_signals_away()
    logs.setup(log_format, log_level)
    from flowerbed import _core

    _core.init_logging(log_format.value, log_level.value)
    return is_supervised


def keep_signals_away() -> None:
    """Lets a thread that does nothing else take signals; their handlers still run in the main thread.

    A signal that interrupts a step of torch on a CPU damages the heap: 2,000 a second ended the process
    within seconds, with "corrupted size vs. prev_size" (torch 2.11.0, Zen 5, docs/measured-facts.md).
    """
    threading.Thread(target=threading.Event().wait, name="signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
