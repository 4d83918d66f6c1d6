"""`vllm serve` on a free port of loopback, under the loads of `http_loads.py`.

`python benchmarks/peers/vllm_serve.py FOLDER [--api-servers 4]`. Several API servers are its better side: one
is bound by Python.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

import http_loads
import rows
import vllm_options
from rows import Report

START_LIMIT_S, STOP_LIMIT_S = 300.0, 20.0
QUIET = "--disable-uvicorn-access-log"


@contextmanager
def serving(command: list[str], address: str) -> Generator[None]:
    """Starts a server, waits until it is healthy, and ends it at the end.

    Args:
        command: That serves.
        address: Where, http://host:port.

    Raises:
        SystemExit: It ended, or was not healthy in time.
    """
    environment = os.environ | vllm_options.ENVIRONMENT
    process = subprocess.Popen(command, env=environment, stdout=sys.stderr)
    try:
        until = time.monotonic() + START_LIMIT_S
        while not _is_healthy(address):
            if process.poll() is not None:
                raise SystemExit(f"error: the server ended with {process.returncode}")
            if time.monotonic() > until:
                raise SystemExit(f"error: the server was not healthy after {START_LIMIT_S:.0f} s")
            time.sleep(0.2)
        yield
    finally:
        _end(process)


def _is_healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its engine ends by itself when it is gone
        process.wait()


def main() -> None:
    """Drives vLLM."""
    parser = rows.parser("HTTP load on vllm serve.")
    vllm_options.add_to(parser)
    parser.add_argument("--api-servers", type=int, default=4)
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds of each load")
    options = parser.parse_args()
    started = time.perf_counter()
    found = vllm_options.engine_options(options) | {"api_server_count": options.api_servers}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(options.folder)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += [*vllm_options.server_flags(found), QUIET]
    address = f"http://127.0.0.1:{port}"
    with serving(command, address):
        flags = vllm_options.shown(found)
        report = Report("vllm serve", "vllm", options, options.dtype, flags)
        report.ready(started, lambda given: http_loads.vectors(address, given))
        http_loads.drive(report, address, options.scale)
        rows.done()


if __name__ == "__main__":
    main()
