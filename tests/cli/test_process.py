"""What a worker and a gateway do first."""

import os
import subprocess
import sys

import pytest

STEPS = """
import signal, sys, threading, time
from flowerbed.cli import process
from flowerbed.config import LogFormat, LogLevel
process.begin(LogFormat.TEXT, LogLevel.INFO)
import os
import numpy as np
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat

engine = Engine.load(read_folder(resolve(None)), device="cpu")
rng = np.random.default_rng(1)
batches = [
    PackedBatch.build([rng.integers(1, 30_000, n).tolist() for n in lengths], RowFormat(384))
    for lengths in ([14], [120, 7], [60, 60, 60], [1], [200])
]
expected = [np.array(engine.step(batch).numpy()) for batch in batches]
count = 0

def handle(signum, frame):
    global count
    count += 1

signal.signal(signal.SIGTERM, handle)
until = time.monotonic() + 8.0

def send():
    while time.monotonic() < until:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.0005)

threading.Thread(target=send).start()
while time.monotonic() < until:
    for batch, rows in zip(batches, expected):
        assert np.array_equal(engine.step(batch).numpy(), rows)
print(count)
"""


@pytest.mark.timeout(120)
def test_signals_do_not_disturb_steps_and_are_handled() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2_000:]
    assert int(outcome.stdout) > 100
