"""Whole systems for tests that end, kill or break them: what they are made of, and how to watch them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from flowerbed import ready
from flowerbed.background import RunningServer

SUPERVISOR = """
import sys
from flowerbed import launch
script = sys.argv.pop(1)
command = launch._command
def with_patch(part, *rest):
    made = command(part, *rest)
    return (made[0], script, *made[3:]) if part == "worker" else made
launch._command = with_patch
from flowerbed.cli import main
main()
"""
"""`flowerbed serve` whose workers run a patch first, so that a test can break the engine."""

WORKER = "\nfrom flowerbed.cli import main\nmain()\n"


@dataclass(frozen=True)
class System:
    """A command of ours that is ready."""

    process: subprocess.Popen[str]
    address: str
    log: Path
    facts: str = ""  # `model …, device …`

    def embed(self, inputs: object, timeout_s: float = 60.0, **headers: str) -> httpx2.Response:
        url = f"{self.address}/v1/embeddings"
        return httpx2.post(url, json={"input": inputs}, timeout=timeout_s, headers=headers)

    def is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.address}/ready", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of `name` that have these labels."""
        total = 0.0
        for line in httpx2.get(f"{self.address}/metrics", timeout=10).text.splitlines():
            match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name:
                given = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if labels.items() <= given.items():
                    total += float(match[3])
        return total

    def stop(self, timeout_s: float = 30.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def workers(self) -> list[int]:
        return [pid for name, pid in self.children().items() if name.startswith("worker")]

    def children(self) -> dict[str, int]:
        """Pids by `gateway`, `worker-0`, …"""
        pid = self.process.pid
        found = {}
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            try:
                parts = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            path = next((part for part in parts if part.endswith(".sock")), "")
            name = "gateway" if "gateway" in parts else Path(path).stem
            found[name] = child
        return found


def of(server: RunningServer) -> System:
    """The server that tests share, to be watched and never broken."""
    return System(server.process, server.address, Path(os.devnull), server.facts)


def families(text: str) -> dict[str, str]:
    """Names and types of what a scrape holds, read by the official parser; each once, none clashing."""
    found: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name not in found, f"{name} stands twice"
        assert family.type != "unknown", name
        assert family.documentation, name
        found[name] = family.type
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def running(command: list[str], log: Path) -> Generator[System]:
    """Starts one of our commands, waits until it is ready, and kills it at the end if need be."""
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            message = ready.parse(line)
            if message is not None:
                yield System(process, message.address, log, message.facts)
                break
        else:
            raise AssertionError(f"never ready: {log.read_text()}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


@contextmanager
def serve(folder: Path, *options: str, patch: str = "") -> Generator[System]:
    """`flowerbed serve` on a free port; `patch` is Python that every worker runs first."""
    command = [sys.executable, "-m", "flowerbed"]
    if patch:
        script = folder / "patched_worker.py"
        script.write_text(patch + WORKER)
        command = [sys.executable, "-c", SUPERVISOR, str(script)]
    options = ("--device", "cpu", *options)
    with running([*command, "serve", "--port", "0", *options], folder / "log") as system:
        yield system


def flowerbed(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flowerbed", *arguments]


def until(is_so: Callable[[], bool], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def hang_up(system: System) -> None:
    os.kill(system.process.pid, signal.SIGHUP)
