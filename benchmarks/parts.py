"""The parts of a server as processes of their own: a worker, and a front that speaks to it.

For benchmarks that put something else in a part's place. The environment is that of `flowerbed serve`'s
children; they are joined by TCP on loopback, and no supervisor starts them again.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowerbed import ready
from flowerbed.launch import PROCESS_DEFAULTS

HERE = Path(__file__).parent
WORKER = ("-m", "flowerbed", "worker")
GATEWAY = ("-m", "flowerbed", "gateway")
MAX_START_S = 120.0
MAX_STOP_S = 60.0


class Part:
    """A process that says on stdout where it listens."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts `python COMMAND` and does not wait."""
        defaults = {**PROCESS_DEFAULTS, "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            text=True,
            env={**defaults, **os.environ},
        )

    @cached_property
    def address(self) -> str:
        """host:port of a worker, http://host:port of a front; waits until it listens."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = ready.parse(line)
            if found is not None:
                return found.address
        raise SystemExit(f"error: {self.process.args!r} ended with {self.process.wait()}")

    def stop(self) -> str:
        """Lets it drain, or kills it after a minute; what else it said on stdout."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=MAX_STOP_S)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()[0]


@contextmanager
def running(command: Sequence[str]) -> Generator[Part]:
    """Starts a part, and stops it at the end."""
    part = Part(command)
    try:
        yield part
    finally:
        part.stop()


def worker(model: str | None, options: Sequence[str], program: Sequence[str] = WORKER) -> list[str]:
    """The command of a worker on a free port; another `program` must take the same options."""
    listen = ["--listen", "127.0.0.1:0", "--metrics-port", "0"]
    return [*program, *listen, *options, *(["--", model] if model else [])]


def gateway(model: str | None, worker_address: str, more: Sequence[str] = ()) -> list[str]:
    """The command of Ivy on a free port, with `more` options."""
    options = ["--port", "0", "--worker", worker_address, *more]
    return [*GATEWAY, *options, *(["--", model] if model else [])]


def embed(address: str, inputs: Sequence[str]) -> NDArray[np.float32]:
    """[len(inputs), dimensions], asked for in base64; asks again while the server is not ready."""
    body = json.dumps({"input": list(inputs), "encoding_format": "base64"}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/embeddings", body, headers)
    deadline = time.perf_counter() + MAX_START_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                data = json.load(answer)["data"]
        except urllib.error.URLError as error:
            is_starting = not isinstance(error, urllib.error.HTTPError) or error.code == 503
            if not is_starting or time.perf_counter() > deadline:
                raise
            time.sleep(0.01)
        else:
            rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data]
            return np.stack(rows)


def info(address: str) -> dict[str, Any]:
    """What the gateway tells of its model."""
    with urllib.request.urlopen(f"{address}/info", timeout=30) as answer:
        return json.load(answer)
