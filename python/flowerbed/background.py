"""Runs `flowerbed serve` beside the caller: for examples, benchmarks and tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from flowerbed import ready
from flowerbed.errors import FlowerbedError


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready."""

    address: str  # http://host:port
    facts: str  # `model …, device …`
    process: subprocess.Popen[str]  # the supervisor


@contextmanager
def serving(*options: str, stop_timeout_s: float = 60.0) -> Generator[RunningServer]:
    """Starts a server on a free port, waits until it is ready, and stops it at the end.

        with serving("--device", "cpu") as server:
            flowerbed.Client(server.address).embed(["a text"])

    Args:
        options: Of `flowerbed serve`, MODEL included.
        stop_timeout_s: For its open requests; after it the server is killed.

    Raises:
        FlowerbedError: The server did not become ready; its stderr said why.
    """
    command = [sys.executable, "-m", "flowerbed", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _wait_until_ready(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _wait_until_ready(process: subprocess.Popen[str]) -> RunningServer:
    assert process.stdout is not None  # noqa: S101 (asked for above)
    for line in process.stdout:
        message = ready.parse(line)
        if message is not None and not message.part:
            return RunningServer(message.address, message.facts, process)
    raise FlowerbedError(f"the server ended before it was ready (exit code {process.wait()})")
