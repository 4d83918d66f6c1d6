"""Whatever is killed, nothing is left behind and the server comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2

from flowerbed.background import RunningServer, serving


def children_of(pid: int) -> dict[str, int]:
    """`gateway` and `worker` processes below `pid`, by what they run."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    found = {}
    for child in map(int, text.split()):
        command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        for name in ("gateway", "worker"):
            if name.encode() in command:
                found[name] = child
    return found


def until(condition, patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def embed_status(server: RunningServer) -> httpx2.Response:
    return httpx2.post(f"{server.address}/v1/embeddings", json={"input": "x"}, timeout=30)


def test_kill_9_of_the_supervisor_leaves_no_process_behind() -> None:
    with serving() as server:
        children = children_of(server.process.pid)
        assert set(children) == {"gateway", "worker"}
        server.process.kill()
        until(lambda: all(is_gone(pid) for pid in children.values()))


def test_kill_9_of_the_worker_is_noticed_and_mended() -> None:
    with serving() as server:
        worker = children_of(server.process.pid)["worker"]
        assert embed_status(server).status_code == 200
        os.kill(worker, signal.SIGKILL)
        until(lambda: httpx2.get(f"{server.address}/ready").status_code == 503, 2.0)
        answer = embed_status(server)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "unavailable"
        assert httpx2.get(f"{server.address}/health").status_code == 200
        until(lambda: httpx2.get(f"{server.address}/ready").status_code == 200)
        assert embed_status(server).status_code == 200
        assert children_of(server.process.pid)["worker"] != worker


def test_kill_9_of_the_gateway_is_mended_on_the_same_port() -> None:
    with serving() as server:
        os.kill(children_of(server.process.pid)["gateway"], signal.SIGKILL)

        def answers() -> bool:
            try:
                return embed_status(server).status_code == 200
            except httpx2.TransportError:
                return False

        until(answers)


def test_sigterm_finishes_open_requests_and_exits_0() -> None:
    with serving() as server:
        children = children_of(server.process.pid)
        request = (
            "import httpx2, sys; r = httpx2.post(sys.argv[1], json={'input': ['word ' * 250] * 64}, "
            "timeout=60); print(r.status_code, len(r.json()['data']))"
        )
        url = f"{server.address}/v1/embeddings"
        caller = subprocess.Popen(
            [sys.executable, "-c", request, url], stdout=subprocess.PIPE, text=True
        )
        until(lambda: queued_or_done(server, caller))
        server.process.send_signal(signal.SIGTERM)
        assert caller.communicate(timeout=60)[0] == "200 64\n"
        assert server.process.wait(timeout=30) == 0
        assert all(is_gone(pid) for pid in children.values())


def queued_or_done(server: RunningServer, caller: subprocess.Popen[str]) -> bool:
    """The big request has reached the gateway: it is open beside the scrape itself, or answered."""
    metrics = httpx2.get(f"{server.address}/metrics").text
    return "flowerbed_requests_open 2" in metrics or caller.poll() is not None
