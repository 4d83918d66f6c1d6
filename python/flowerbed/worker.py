"""The bridge: the one file that joins Tulip (Rust) to ROSE (torch) in one process.

The main thread pulls: it asks Rust for a batch, launches the step, hands the result back. Rust
never calls Python. Called by `flowerbed worker`.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from types import FrameType

from flowerbed._core import InferenceServer
from flowerbed.config import DType, WorkerConfig
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.knee import default_budget
from flowerbed.rose.device import is_device_fault
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat

log = logging.getLogger(__name__)

EXIT_DEVICE_FAULT = 70
"""The device failed in a way that only a new process mends; the supervisor starts one."""

NUM_TIMED_STEPS = 3


def run(
    model: str | None,
    *,
    revision: str | None,
    device: str,
    dtype: DType,
    listen: str,
    max_batch_tokens: int | None,
    request_timeout_s: float,
    token: str | None,
    on_ready: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Loads a model, serves it until SIGTERM or SIGINT, and drains.

    Args:
        model: Hub id, folder, or None for the packaged model.
        revision: Of the hub repository.
        device: auto, cpu, cuda or cuda:N.
        dtype: Of weights and activations.
        listen: `host:port` or `unix:path`.
        max_batch_tokens: Budget of one step; None takes the device's knee.
        request_timeout_s: Deadline of callers that set none.
        token: Secret that callers must send, or None.
        on_ready: Told the real address once requests are served.
        progress: Told the bytes of weights loaded so far and in all.

    Returns:
        The exit code: 0 after a drain, `EXIT_DEVICE_FAULT` after a fault of the device.
    """
    folder = read_folder(resolve(model, revision=revision, progress=progress))
    engine = Engine.load(folder, device=device, dtype=dtype, progress=progress)
    info = engine.info()
    budget = max_batch_tokens or default_budget(info.device, info.space)
    config = WorkerConfig(
        model=info,
        listen=listen,
        token=token,
        max_batch_tokens=budget,
        request_timeout_s=request_timeout_s,
        cost_per_second=tokens_per_second(engine, budget),
    )
    server = InferenceServer(config.to_core())
    address = server.start()
    try:
        _drain_on_signals(server)
        on_ready(address)
        serve(server, engine)
        return EXIT_DEVICE_FAULT if server.is_faulted else 0
    finally:
        server.stop()


def serve(server: InferenceServer, engine: Engine) -> None:
    """Runs batches until the server is drained or the device fails."""
    while (batch := server.next_batch()) is not None:
        try:
            result = engine.step(batch)
        except Exception as error:
            log.exception("step of %r failed", batch)
            server.failed(batch.id, repr(error), is_device_fault=is_device_fault(error))
        else:
            server.launched(batch.id, result)


def tokens_per_second(engine: Engine, max_batch_tokens: int) -> float:
    """Rate of full steps, best of a few: it sizes the queue before real steps have run."""
    length = min(engine.folder.text.max_length, max_batch_tokens)
    sequences = [[0] * length] * max(1, max_batch_tokens // length)
    batch = PackedBatch.build(sequences, RowFormat(engine.folder.dimensions))
    seconds: list[float] = []
    for _ in range(NUM_TIMED_STEPS):
        start = time.perf_counter()
        engine.step(batch).wait()
        seconds.append(time.perf_counter() - start)
    return batch.num_tokens / min(seconds)


def _drain_on_signals(server: InferenceServer) -> None:
    def drain(signum: int, _frame: FrameType | None) -> None:
        log.info("%s: finishing what is queued", signal.Signals(signum).name)
        server.drain()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, drain)
