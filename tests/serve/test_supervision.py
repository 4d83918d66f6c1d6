"""Whatever is killed, nothing is left behind and the server comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from serve.systems import System, flowerbed, is_gone, running, serve, until


@pytest.fixture
def system(tmp_path: Path) -> Generator[System]:
    with serve(tmp_path) as running:
        yield running


def kill(system: System, child: str) -> None:
    os.kill(system.children()[child], signal.SIGKILL)


def test_kill_9_of_the_supervisor_leaves_no_process_behind(system: System) -> None:
    children = system.children()
    assert set(children) == {"gateway", "worker-0"}
    system.process.kill()
    until(lambda: all(is_gone(pid) for pid in children.values()))


def test_kill_9_of_the_worker_is_noticed_and_mended(system: System) -> None:
    worker = system.children()["worker-0"]
    assert system.embed("x").status_code == 200
    kill(system, "worker-0")
    until(lambda: not system.is_ready(), 2.0)
    answer = system.embed("x")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "unavailable"
    assert httpx2.get(f"{system.address}/health").status_code == 200
    until(system.is_ready)
    assert system.embed("x").status_code == 200
    assert system.children()["worker-0"] != worker


def test_kill_9_of_the_gateway_is_mended_on_the_same_port(system: System) -> None:
    kill(system, "gateway")

    def answers() -> bool:
        try:
            return system.embed("x").status_code == 200
        except httpx2.TransportError:
            return False

    until(answers)


@pytest.mark.timeout(120)
def test_a_log_that_takes_no_more_lines_ends_nothing(tmp_path: Path) -> None:
    command = flowerbed("serve", "--port", "0", "--device", "cpu", "--log-level", "debug")
    onto_a_full_disk = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh"]
    with running([*onto_a_full_disk, *command], tmp_path / "log") as system:
        children = system.children()
        assert system.embed("x").status_code == 200
        kill(system, "worker-0")  # the supervisor has something to say
        until(lambda: not system.is_ready(), 5.0)
        assert system.embed("x").status_code == 503
        until(system.is_ready)
        assert system.embed("x").status_code == 200
        assert system.children()["gateway"] == children["gateway"]
        assert system.stop() == 0


@pytest.mark.timeout(120)
def test_a_log_reader_that_stalls_holds_nothing_up(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    with open(log, "rb", buffering=0, opener=without_waiting) as reader:
        command = flowerbed("serve", "--port", "0", "--device", "cpu", "--log-level", "debug")
        with running(command, log) as system, httpx2.Client(base_url=system.address) as client:

            def fill_the_pipe() -> None:
                for _ in range(1_000):  # a line each; 64 KiB hold half of them
                    assert client.get("/health").status_code == 200

            fill_the_pipe()
            assert system.embed("x").status_code == 200
            assert b"nobody read the log" not in reader.read(1 << 20)
            assert system.embed("x").status_code == 200
            assert b"nobody read the log: lines are missing" in reader.read(1 << 20)
            fill_the_pipe()
            kill(system, "worker-0")  # the supervisor has something to say
            until(lambda: not system.is_ready(), 5.0)
            until(system.is_ready)
            assert system.stop(10.0) == 0


def without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("gateway", "--worker", "unix:/w", "--port", "{taken}"), "Address already in use", "--port"),
        (("gateway", "--worker", "unix:/w", "--host", "192.0.2.1"), "Cannot assign", "--host"),
        (("worker", "--listen", "127.0.0.1:{taken}"), "Address already in use", "--listen"),
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_bound_is_told_with_what_to_do(
    arguments: tuple[str, ...], error: str, hint: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        command = flowerbed(*(argument.format(taken=taken) for argument in arguments))
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    told = done.stderr.splitlines()[-2:]
    assert told[0].startswith("error: cannot listen on ")
    assert error in told[0]
    assert hint in told[1]
