"""Log lines of the Python processes: to stderr, in the shape the Rust core uses too.

Text for people, or one JSON object a line. Knows nothing of what is logged; texts and vectors
never are.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import sys
from datetime import UTC, datetime
from types import TracebackType

from flowerbed.config import LogFormat, LogLevel

_LEVELS = {"WARNING": "WARN", "CRITICAL": "ERROR"}
"""The Rust core's words."""
_PATIENCE_MS = 100
"""A reader that is merely slow catches up."""
_PIECE_CHARS = 1_000
"""A pipe that has any room has room for 4,096 bytes."""


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
    """Looks stderr up at each line, so that a progress display can stand in for it.

    A reader that has gone ends nothing, and one that stalls, as a stopped pager does, holds nothing
    up: lines without room are dropped, and counted in the log once it is read again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_dropped = 0  # since the last line that was written

    def emit(self, record: logging.LogRecord) -> None:
        if not _has_room(_PATIENCE_MS if self._num_dropped == 0 else 0):
            self._num_dropped += 1
            return
        if self._num_dropped > 0:
            message = f"nobody read the log: {self._num_dropped} lines are missing"
            self._num_dropped = 0
            missing = {"name": "flowerbed", "levelname": "WARNING", "msg": message}
            self._write(self.format(logging.makeLogRecord(missing)))
        self._write(self.format(record))

    def _write(self, line: str) -> None:
        text = f"{line}\n"
        with contextlib.suppress(OSError):
            for start in range(0, len(text), _PIECE_CHARS):
                if start > 0 and not _has_room(0):
                    return
                print(text[start : start + _PIECE_CHARS], end="", file=sys.stderr, flush=True)  # noqa: T201 (this is the log)


def _has_room(timeout_ms: int) -> bool:
    """Whether stderr takes a piece at once. What stands in for it does, and so does a broken one."""
    if sys.stderr is not sys.__stderr__ or sys.stderr is None:
        return True
    polled = select.poll()
    polled.register(sys.stderr, select.POLLOUT)
    return bool(polled.poll(timeout_ms))


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
