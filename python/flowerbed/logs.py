"""Log lines of the Python processes: to stderr, in the shape the Rust core uses too.

Text for people, or one JSON object a line. Knows nothing of what is logged; texts and vectors
never are.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from flowerbed.config import DEFAULT_LOG_LEVEL, LogFormat


def setup(log_format: LogFormat, level: str = DEFAULT_LOG_LEVEL) -> None:
    """Sends this process's logs to stderr."""
    handler = _Stderr()
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else TextLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("flowerbed").setLevel(level.upper())


class _Stderr(logging.Handler):
    """Looks stderr up at each line, so that a progress display can stand in for it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201 (this is the log)


class TextLines(logging.Formatter):
    """`2026-11-29T12:00:00.000000Z  INFO flowerbed.supervisor: message`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record; a traceback follows on lines of its own."""
        line = f"{_timestamp(record)} {record.levelname:>5} {record.name}: {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonLines(logging.Formatter):
    """`{"timestamp": …, "level": …, "target": …, "message": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record, one line; a traceback is the field `exception`."""
        fields = {
            "timestamp": _timestamp(record),
            "level": record.levelname,
            "target": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
