"""Children for the supervisor that load no model: small scripts that speak the ready line."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flowerbed.child import ChildSpec

GATEWAY = """
import http.server, signal, sys, threading, time
from flowerbed import parent
from flowerbed.ready import Ready
parent.watch()
log = open(sys.argv[1], "a", buffering=1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b'{"workers": {"worker-0": "up", "worker-1": "up"}}')
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
def end(*_):
    log.write("gateway got SIGTERM\\n")
    threading.Thread(target=lambda: (time.sleep(0.2), server.shutdown())).start()
signal.signal(signal.SIGTERM, end)
print(Ready("gateway", f"http://127.0.0.1:{server.server_port}", "model fake"), flush=True)
log.write(f"gateway started on {server.server_port}\\n")
server.serve_forever()
log.write("gateway drained\\n")
"""

WORKER = """
import os, signal, sys, time
from flowerbed import parent
from flowerbed.ready import Ready
parent.watch()
log = open(sys.argv[1], "a", buffering=1)
def end(*_):
    log.write("worker got SIGTERM\\n"); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("flowerbed worker has loaded 10 of 20 bytes", flush=True)
print("flowerbed worker has loaded 20 of 20 bytes", flush=True)
log.write(f"worker started as {os.getpid()}\\n")
print(Ready("worker", "unix:/nowhere", "model fake"), flush=True)
"""

WORKER_THAT_STAYS = WORKER + "while True: time.sleep(0.05)\n"
WORKER_THAT_DIES_AGAIN = WORKER + "time.sleep(0.05); os.kill(os.getpid(), signal.SIGKILL)\n"
WORKER_WHOSE_DEVICE_FAILS = WORKER + "time.sleep(0.05); sys.exit(70)\n"
WORKER_THAT_IGNORES_SIGNALS = WORKER_THAT_STAYS.replace("end)", "signal.SIG_IGN)")
WORKER_THAT_FREEZES_WHEN_STARTED_AGAIN = f"""
import os, signal, sys
log = open(sys.argv[1], "a+", buffering=1)
log.seek(0)
if "worker started" in log.read():
    log.write(f"worker froze as {{os.getpid()}}\\n")
    os.kill(os.getpid(), signal.SIGSTOP)
{WORKER_THAT_STAYS}"""
WORKER_THAT_CANNOT_START = """
import sys
print("error: no such model", file=sys.stderr)
sys.exit(1)
"""


def spec(name: str, script: str, *arguments: object) -> ChildSpec:
    command = (sys.executable, "-c", script, *map(str, arguments))
    return ChildSpec(name, command, dict(os.environ))


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def wait_until(is_true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
