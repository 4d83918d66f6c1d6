"""Log lines: one shape for people, one for machines, both on stderr."""

import json
import logging
import os
import re
import sys
import warnings

import pytest

from flowerbed import logs
from flowerbed.config import LogFormat, LogLevel

logger = logging.getLogger("flowerbed.test")
TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


@pytest.fixture(autouse=True)
def _restore_logging():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("flowerbed").setLevel(logging.NOTSET)
    logging.captureWarnings(False)
    sys.excepthook = sys.__excepthook__


def test_text_lines(capsys):
    logs.setup(LogFormat.TEXT)
    logger.info("served %s", "a model")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"{TIMESTAMP}  INFO flowerbed.test: served a model\n", captured.err)


def test_json_lines_hold_one_object_each_even_with_a_traceback(capsys):
    logs.setup(LogFormat.JSON)
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        logger.exception("a step failed")
    [line] = capsys.readouterr().err.splitlines()
    fields = json.loads(line)
    assert (fields["level"], fields["target"]) == ("ERROR", "flowerbed.test")
    assert fields["message"] == "a step failed"
    assert "ZeroDivisionError" in fields["exception"]


def test_levels_have_the_words_of_the_rust_core(capsys):
    logs.setup(LogFormat.JSON, LogLevel.WARN)
    logger.info("not written")
    logger.warning("a warning")
    logger.critical("an end")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["WARN", "ERROR"]


def test_in_json_warnings_and_the_last_traceback_are_objects_too(capsys):
    logs.setup(LogFormat.JSON)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)  # catch_warnings put the usual way back
        warnings.warn("old", stacklevel=1)
    sys.excepthook(ValueError, ValueError("the end"), None)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert "old" in lines[0]["message"]
    assert "ValueError: the end" in lines[1]["exception"]


def test_other_libraries_speak_only_when_something_is_wrong(capsys):
    logs.setup(LogFormat.TEXT)
    logging.getLogger("some.library").info("chatter")
    logger.debug("detail")
    assert capsys.readouterr().err == ""


def test_lines_without_room_are_dropped_and_counted_once_somebody_reads(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        monkeypatch.setattr(sys, "__stderr__", pipe)
        logs.setup(LogFormat.TEXT)
        for number in range(2_000):  # a pipe holds 64 KiB
            logger.warning("line %d of too many", number)
        written = reader.read(1 << 20).splitlines()
        logger.warning("x" * 10_000)
        missing, long = reader.read(1 << 20).decode().splitlines()
    assert 100 < len(written) < 2_000
    assert f"nobody read the log: {2_000 - len(written)} lines are missing" in missing
    assert long.endswith("x" * 10_000)
