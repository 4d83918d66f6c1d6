"""The supervisor, with children that are small scripts."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli import fakes
from flowerbed.child import ChildSpec
from flowerbed.config import RestartPolicy
from flowerbed.ready import Ready
from flowerbed.supervisor import Plan, Supervisor, restart_delay_s

ENDED = "ended"
"""What a script returns that has ended the supervisor itself."""
QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05, healthy_after_s=60.0)


@dataclass
class Run:
    """A supervisor in the main thread, and a script of what happens to it in another."""

    log: Path
    worker: str = fakes.WORKER_THAT_STAYS
    drain_timeout_s: float = 10.0
    num_workers: int = 1
    announced: list[Ready] = field(default_factory=list)
    loaded: list[tuple[int, int]] = field(default_factory=list)
    is_ready: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def supervise(self, script=None) -> int:
        def gateway_at(port: int) -> ChildSpec:
            return fakes.spec("gateway", fakes.GATEWAY, self.log, port)

        names = [f"worker-{index}" for index in range(self.num_workers)]
        workers = tuple(fakes.spec(name, self.worker, self.log) for name in names)
        supervisor = Supervisor(
            Plan(gateway_at, 0, workers, self.drain_timeout_s), self, policy=QUICK
        )
        thread = threading.Thread(target=self._play, args=(script,)) if script else None
        if thread:
            thread.start()
        code = supervisor.run()
        if thread:
            thread.join()
        if self.failure:
            raise self.failure
        return code

    def ready(self, gateway: Ready) -> None:
        self.announced.append(gateway)
        self.is_ready.set()

    def advance(self, num_bytes: int, total_bytes: int) -> None:
        self.loaded.append((num_bytes, total_bytes))

    def _play(self, script) -> None:
        has_ended = False
        try:
            assert self.is_ready.wait(20.0), "never ready"
            has_ended = script() == ENDED
        except BaseException as error:  # noqa: BLE001 (raised again by the main thread)
            self.failure = error
        if not has_ended:
            os.kill(os.getpid(), signal.SIGTERM)

    def started_workers(self) -> list[int]:
        started = [x for x in fakes.lines(self.log) if x.startswith("worker started")]
        return [int(line.split()[-1]) for line in started]


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "log")


def test_sigterm_drains_the_gateway_before_the_workers_end(run):
    assert run.supervise(lambda: None) == 0
    told = [line for line in fakes.lines(run.log) if "started" not in line]
    assert told == ["gateway got SIGTERM", "gateway drained", "worker got SIGTERM"]


def test_the_ready_line_names_the_port_that_was_found(run):
    run.supervise(lambda: None)
    assert run.loaded == [(10, 20), (20, 20)]
    [message] = run.announced
    assert message.address.startswith("http://127.0.0.1:")
    assert not message.address.endswith(":0")


def test_a_killed_worker_is_started_again(run, caplog):
    def kill_the_worker():
        os.kill(run.started_workers()[0], signal.SIGKILL)
        fakes.wait_until(lambda: len(run.started_workers()) == 2)

    with caplog.at_level("WARNING", logger="flowerbed"):
        assert run.supervise(kill_the_worker) == 0
    assert "worker-0 ended" in caplog.text
    assert "killed by SIGKILL" in caplog.text


def test_a_worker_that_keeps_dying_is_started_again_and_again(run):
    run.worker = fakes.WORKER_THAT_DIES_AGAIN
    assert run.supervise(lambda: fakes.wait_until(lambda: len(run.started_workers()) >= 4)) == 0


def test_a_device_fault_is_named_and_the_delays_grow(run, caplog):
    run.worker = fakes.WORKER_WHOSE_DEVICE_FAILS

    with caplog.at_level("WARNING", logger="flowerbed"):
        run.supervise(lambda: fakes.wait_until(lambda: len(run.started_workers()) >= 4))
    lines = [each.message for each in caplog.records if "ended after" in each.message]
    assert all("exit code 70: its device failed" in line for line in lines)
    delays = [float(line.split()[-2]) for line in lines]
    assert delays[:3] == sorted(delays[:3])


def test_a_process_that_cannot_be_started_is_tried_again(run, tmp_path, monkeypatch, caplog):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    def kill_while_there_is_no_python():
        away = python.rename(tmp_path / "away")
        os.kill(run.started_workers()[0], signal.SIGKILL)
        fakes.wait_until(lambda: "no process can be started" in caplog.text)
        away.rename(python)
        fakes.wait_until(lambda: len(run.started_workers()) == 2)

    assert run.supervise(kill_while_there_is_no_python) == 0
    assert "worker-0 ended after 0.0 s (exit code 127)" in caplog.text


def test_sighup_restarts_one_worker_after_another(run, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    run.num_workers = 2

    def hang_up():
        before = run.started_workers()
        assert len(before) == 2
        os.kill(os.getpid(), signal.SIGHUP)
        fakes.wait_until(lambda: len(run.started_workers()) == 4)
        fakes.wait_until(lambda: sum(map(fakes.is_alive, run.started_workers())) == 2)
        assert not any(map(fakes.is_alive, before))

    assert run.supervise(hang_up) == 0
    told = [line.split(" as ")[0] for line in fakes.lines(run.log) if line.startswith("worker")]
    one = ["worker got SIGTERM", "worker started"]
    assert told[2:6] == one * 2


def test_a_gateway_that_does_not_answer_is_asked_once_a_turn_not_for_each_worker(run, monkeypatch):
    monkeypatch.setattr("flowerbed.supervisor._PROBE_TIMEOUT_S", 0.05)
    workers = tuple(fakes.spec(f"worker-{index}", run.worker, run.log) for index in range(8))
    plan = Plan(lambda port: fakes.spec("gateway", fakes.GATEWAY, run.log, port), 0, workers, 1.0)
    supervisor = Supervisor(plan, run, policy=QUICK)
    for worker in supervisor._workers:
        worker.is_ready = True
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        supervisor._gateway_ready = Ready("gateway", address, "model fake")
        supervisor._rolling.ask()
        supervisor._rolling.step(supervisor._is_up_now())
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_worker_that_does_not_end_for_a_restart_is_killed(run, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    monkeypatch.setattr("flowerbed.supervisor._END_S", 0.2)
    run.worker = fakes.WORKER_THAT_IGNORES_SIGNALS
    run.drain_timeout_s = 0.2

    def hang_up():
        os.kill(os.getpid(), signal.SIGHUP)
        fakes.wait_until(lambda: len(run.started_workers()) == 2)
        fakes.wait_until(lambda: not fakes.is_alive(run.started_workers()[0]))

    run.supervise(hang_up)


def test_a_gateway_that_is_started_again_keeps_its_port(run):
    def kill_the_gateway():
        port = run.announced[0].address.rpartition(":")[2]
        line = f"gateway started on {port}"
        for pid in _children_of(os.getpid()):
            if str(run.log) in _command_line(pid) and pid not in run.started_workers():
                os.kill(pid, signal.SIGKILL)
        fakes.wait_until(lambda: fakes.lines(run.log).count(line) == 2)

    assert run.supervise(kill_the_gateway) == 0


def test_a_worker_that_cannot_start_ends_everything_with_code_1(run, caplog, capfd):
    run.worker = fakes.WORKER_THAT_CANNOT_START
    assert run.supervise() == 1
    assert "worker-0 could not start (exit code 1)" in caplog.text
    assert "error: no such model" in capfd.readouterr().err
    assert run.announced == []


def test_a_child_that_does_not_end_is_killed(run):
    run.worker = fakes.WORKER_THAT_IGNORES_SIGNALS
    run.drain_timeout_s = 0.5
    assert run.supervise(lambda: None) == 1
    assert not fakes.is_alive(run.started_workers()[0])


def test_a_worker_that_froze_while_it_loaded_is_not_given_the_time_to_drain(run, monkeypatch):
    monkeypatch.setattr("flowerbed.supervisor._IDLE_END_S", 0.2)
    run.worker = fakes.WORKER_THAT_FREEZES_WHEN_STARTED_AGAIN
    run.drain_timeout_s = 600.0  # far over what a test may take

    def kill_the_worker():
        os.kill(run.started_workers()[0], signal.SIGKILL)
        fakes.wait_until(lambda: "worker froze" in run.log.read_text())

    assert run.supervise(kill_the_worker) == 1
    [frozen] = [line for line in fakes.lines(run.log) if "froze" in line]
    assert not fakes.is_alive(int(frozen.split()[-1]))


def test_a_second_signal_ends_it_at_once(run):
    run.worker = fakes.WORKER_THAT_IGNORES_SIGNALS
    run.drain_timeout_s = 60.0

    def interrupt_twice():
        os.kill(os.getpid(), signal.SIGTERM)
        fakes.wait_until(lambda: "gateway drained" in fakes.lines(run.log))
        os.kill(os.getpid(), signal.SIGINT)
        return ENDED

    assert run.supervise(interrupt_twice) == 128 + signal.SIGINT
    assert not fakes.is_alive(run.started_workers()[0])


def supervisor_of_its_own(log: Path, **options: Any) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A supervisor in a process, and its gateway and worker, which have started."""
    script = f"""
from cli.test_supervisor import Run
from pathlib import Path
raise SystemExit(Run(Path({str(log)!r})).supervise())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    supervisor = subprocess.Popen([sys.executable, "-c", script], env=environment, **options)
    fakes.wait_until(lambda: len(fakes.lines(log)) == 2)
    children = _children_of(supervisor.pid)
    assert len(children) == 2
    return supervisor, children


def test_a_terminal_that_goes_away_ends_everything(tmp_path):
    master, terminal = os.openpty()
    supervisor, children = supervisor_of_its_own(
        tmp_path / "log",
        stdin=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    os.close(master)  # the kernel sends SIGHUP
    assert supervisor.wait(timeout=20) == 0
    assert not any(map(fakes.is_alive, children))


def test_kill_9_of_the_supervisor_leaves_no_process_behind(tmp_path):
    log = tmp_path / "log"
    supervisor, children = supervisor_of_its_own(log)
    supervisor.kill()
    supervisor.wait()
    fakes.wait_until(lambda: not any(map(fakes.is_alive, children)))
    assert "gateway drained" in fakes.lines(log)


@pytest.mark.parametrize(
    ("num_ends", "delay_s"), [(0, 0.1), (1, 0.2), (2, 0.4), (6, 6.4), (7, 10.0), (5000, 10.0)]
)
def test_the_delay_doubles_up_to_its_limit(num_ends, delay_s):
    assert restart_delay_s(RestartPolicy(), num_ends) == pytest.approx(delay_s)


def _children_of(pid: int) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and _parent(int(entry.name)) == pid
    ]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
