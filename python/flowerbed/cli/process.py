"""What the commands that run a part of the system do first."""

from __future__ import annotations

from flowerbed import config, logs, parent


def begin(log_format: config.LogFormat, log_level: config.LogLevel) -> bool:
    """Watches the supervisor and sends the logs of Python and of the Rust core to stderr.

    Returns:
        Whether a supervisor started this process.
    """
    is_supervised = parent.watch()
    logs.setup(log_format, log_level)
    from flowerbed import _core

    _core.init_logging(log_format.value, log_level.value)
    return is_supervised
