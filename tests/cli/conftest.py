"""`flowerbed doctor` in this process, with a cache of its own."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace

import pytest

from flowerbed import doctor
from flowerbed.cli import main


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture(autouse=True)
def own_signals():
    """Commands that run in this process keep signals away from its main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def run_doctor(monkeypatch, capsys):
    """Runs `flowerbed doctor ARGUMENTS` in this process; exit code, stdout and stderr."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["flowerbed", "doctor", "--port", "0", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=captured.out, err=captured.err)

    return command


@pytest.fixture
def examine():
    def report(model=None, port=0, **options):
        settings = {"device": "cpu", "host": "127.0.0.1", "port": port, **options}
        return doctor.examine(model, None, **settings)

    return report
