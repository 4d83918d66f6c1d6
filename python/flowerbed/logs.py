"""Log lines of the Python processes: to stderr, in the shape the Rust core uses too.

Text for people, or one JSON object a line. Knows nothing of what is logged; texts and vectors
never are.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType

from flowerbed.config import LogFormat, LogLevel

_LEVELS = {"WARNING": "WARN", "CRITICAL": "ERROR"}
"""The Rust core's words."""


def setup(log_format: LogFormat, level: LogLevel = LogLevel.INFO) -> None:
    """Sends this process's logs to stderr, and in JSON its warnings and its last traceback too."""
    handler = _Stderr()
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("flowerbed").setLevel(level.upper())
    logging.captureWarnings(log_format is LogFormat.JSON)
    sys.excepthook = _log_exception if log_format is LogFormat.JSON else sys.__excepthook__


def is_json() -> bool:
    """Whether what is said on stderr must be one JSON object a line."""
    return any(isinstance(each.formatter, JsonLines) for each in logging.getLogger().handlers)


def _log_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger("flowerbed").critical("ended by an error", exc_info=(kind, error, trace))


class _Stderr(logging.Handler):
    """Looks stderr up at each line, so that a progress display can stand in for it."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # a log that nobody reads any more ends no server
            print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201 (this is the log)


class TextLines(logging.Formatter):
    """`2026-11-29T12:00:00.000000Z  INFO flowerbed.supervisor: message`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record; a traceback follows on lines of its own."""
        line = f"{_timestamp(record)} {_level(record):>5} {record.name}: {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonLines(logging.Formatter):
    """`{"timestamp": …, "level": …, "target": …, "message": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, one line; a traceback is the field `exception`."""
        fields = {
            "timestamp": _timestamp(record),
            "level": _level(record),
            "target": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _level(record: logging.LogRecord) -> str:
    return _LEVELS.get(record.levelname, record.levelname)


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
