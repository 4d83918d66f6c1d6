"""The bridge: the one file that joins Tulip (Rust) to ROSE (torch) in one process.

The main thread pulls: it asks Rust for a batch, launches the step, hands the result back. Rust
never calls Python. Called by `flowerbed worker`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType

import numpy as np

from flowerbed._core import InferenceServer
from flowerbed.config import (
    GPU_ONLINE_BATCH_TOKENS,
    Attention,
    BatchInvariant,
    DType,
    GraphCapture,
    WorkerConfig,
)
from flowerbed.devices import count_gpus
from flowerbed.errors import ConfigError, FlowerbedError
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.knee import default_budget, default_saturation, default_spin
from flowerbed.machine import bind_hint
from flowerbed.parent import EXIT_DEVICE_FAULT
from flowerbed.rose.device import fault_of
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.lazy import LazyTensor

log = logging.getLogger(__name__)

NUM_TIMED_STEPS = 3
MAX_TRIED_TOKENS = 16_384
"""No device has its knee beyond; a larger budget must not make the start long."""


def run(
    model: str | None,
    *,
    revision: str | None,
    prompts: Mapping[str, str],
    device: str,
    dtype: DType,
    attention: Attention,
    batch_invariant: BatchInvariant,
    graph_capture: GraphCapture,
    graph_memory_mb: int,
    listen: str,
    metrics_listen: str | None,
    max_batch_tokens: int | None,
    saturation_batch_tokens: int | None,
    max_batch_sequences: int,
    step_timeout_s: float,
    spin_ms: int | None,
    request_timeout_s: float,
    drain_timeout_s: float,
    token: str | None,
    on_ready: Callable[[str, str], None],
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Loads a model, serves it until SIGTERM or SIGINT, and drains.

    Args:
        model: Hub id, folder, or None for the packaged model.
        revision: Of the hub repository.
        prompts: By name, over those of the model; the gateway must be given the same.
        device: auto, cpu, cuda or cuda:N.
        dtype: Of weights and activations.
        attention: What computes attention.
        batch_invariant: Whether vectors have the same bits alone and among others.
        graph_capture: When steps of a GPU become CUDA graphs.
        graph_memory_mb: What the graphs of one stream may take.
        listen: `host:port` or `unix:path`.
        metrics_listen: `host:port` that serves nothing but the metrics, or None.
        max_batch_tokens: Budget of one step; None takes the device's knee.
        saturation_batch_tokens: Budget of a step of bulk work while nobody waits for queries; None
            takes the device's.
        max_batch_sequences: Slots of one step.
        step_timeout_s: A longer step hangs, and the process ends.
        spin_ms: How long threads stay awake after a query; None takes the device's.
        request_timeout_s: Deadline of callers that set none.
        drain_timeout_s: Time for what is queued once it is told to end.
        token: Secret that callers must send, or None.
        on_ready: Takes the real address and the model's id once requests are served.
        progress: Told the bytes of weights loaded so far and in all.

    Returns:
        The exit code: 0 after a drain, 1 if queued work had to be refused, 128 plus the signal's
        number after a second signal. After a fault of the device the process ends here, with
        `EXIT_DEVICE_FAULT`.

    Raises:
        FlowerbedError: The model or a setting cannot be honoured, or an address cannot be bound.
    """
    folder = read_folder(resolve(model, revision=revision, progress=progress), prompts)
    engine = Engine.load(
        folder,
        device=device,
        dtype=dtype,
        attention=attention,
        batch_invariant=batch_invariant,
        progress=progress,
    )
    info = engine.info()
    budget = max_batch_tokens or default_budget(
        info.device, info.space, engine.attention, engine.streams
    )
    saturation = max(budget, saturation_batch_tokens or default_saturation(info.device))
    online = min(budget, GPU_ONLINE_BATCH_TOKENS)
    if spin_ms is None:
        # CUDA is asked for nothing where it does not serve.
        spin_ms = 0 if info.device == "cpu" else default_spin(info.device, count_gpus())
    take_memory(
        engine,
        online_tokens=online,
        normal_tokens=saturation,
        when=graph_capture,
        memory_limit=graph_memory_mb << 20,
    )
    config = WorkerConfig(
        model=info,
        listen=listen,
        metrics_listen=metrics_listen,
        token=token,
        max_batch_tokens=budget,
        saturation_batch_tokens=saturation,
        online_batch_tokens=online,
        max_batch_sequences=max_batch_sequences,
        streams=engine.streams,
        steps_in_flight=engine.steps_in_flight,
        step_timeout_s=step_timeout_s,
        spin_ms=spin_ms,
        request_timeout_s=request_timeout_s,
        cost_per_second=cost_per_second(engine, info.attention_scale, budget),
    )
    try:
        server = InferenceServer(config.to_core())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        address = server.start()
    except OSError as error:
        raise _start_error(error) from error
    try:
        signals = _drain_on_signals(server, drain_timeout_s)
        on_ready(address, info.id)
        serve(server, engine)
    finally:
        server.stop()
    if server.is_faulted:
        # Freeing what lies on a broken device fails in destructors, which abort the process.
        sys.stderr.flush()
        os._exit(EXIT_DEVICE_FAULT)
    return _exit_code(server, signals)


def serve(server: InferenceServer, engine: Engine) -> None:
    """Runs batches until the server is drained or the device fails, and no step is in flight."""
    in_flight: dict[str, deque[LazyTensor]] = {stream: deque() for stream in engine.streams}
    while (batch := server.next_batch()) is not None:
        held = in_flight[batch.stream]
        # A stream's steps end in order, and a batch comes only when one of its slots is free: the
        # rows of the oldest were copied out.
        if len(held) == engine.steps_in_flight:
            held.popleft()
        try:
            result = engine.step(batch)
            server.launched(batch.id, result)
        except Exception as error:
            log.exception("step of %r failed", batch)
            server.failed(batch.id, repr(error), fault=fault_of(error))
        else:
            held.append(result)


def take_memory(
    engine: Engine, *, online_tokens: int, normal_tokens: int, when: GraphCapture, memory_limit: int
) -> None:
    """Runs the largest step once, so that what does not fit fails now and not under load.

    On a GPU also the longest input, which runs alone where no step of the budget holds it: 32,768 tokens
    take half a second of a 0.6B model on an H200, and minutes on a CPU. See `Engine.capture`.

    Raises:
        ConfigError: It does not fit.
    """
    batches = [_full_batch(engine, normal_tokens)]
    longest = engine.folder.text.max_length
    if engine.device.type == "cuda" and longest > batches[0].num_tokens:
        batches.append(PackedBatch.blank(longest, longest, RowFormat(engine.folder.dimensions)))
    trying = batches[0]
    try:
        engine.capture(
            online_tokens=online_tokens,
            normal_tokens=normal_tokens,
            when=when,
            memory_limit=memory_limit,
        )
        for trying in batches:
            engine.step(trying).wait()
    except Exception as error:
        if fault_of(error) != "memory":
            raise
        size = f"{trying.num_tokens} tokens"
        if trying is batches[0]:
            what = f"a step of {size}"
            hint = "give less with --max-batch-tokens and --saturation-batch-tokens"
        else:
            what = f"an input of {size}, the model's longest,"
            hint = "use a GPU with more memory, or set a lower max_seq_length in the model's folder"
        refused = ConfigError(f"{what} does not fit into the memory of {engine.device}")
        refused.add_note(hint)
        raise refused from error


def cost_per_second(engine: Engine, attention_scale: float, max_batch_tokens: int) -> float:
    """Rate of full steps, best of a few: it sizes the queue before real steps have run.

    Args:
        engine: Warm.
        attention_scale: L* of the model, tokens: n tokens cost n + n² / L*.
        max_batch_tokens: Budget of one step.
    """
    batch = _full_batch(engine, max_batch_tokens)
    seconds: list[float] = []
    for _ in range(NUM_TIMED_STEPS):
        start = time.perf_counter()
        engine.step(batch).wait()
        seconds.append(time.perf_counter() - start)
    lengths = np.diff(batch.offsets).astype(float)
    return float((lengths + lengths**2 / attention_scale).sum()) / min(seconds)


def _full_batch(engine: Engine, num_tokens: int) -> PackedBatch:
    num_tokens = min(num_tokens, MAX_TRIED_TOKENS)
    row = RowFormat(engine.folder.dimensions)
    return PackedBatch.blank(num_tokens, engine.folder.text.max_length, row)


def _drain_on_signals(server: InferenceServer, timeout_s: float) -> list[int]:
    """Returns the signals that came, as they come. The second one leaves no time."""
    signals: list[int] = []

    def drain(signum: int, _frame: FrameType | None) -> None:
        signals.append(signum)
        if len(signals) == 1:
            log.info("%s: finishing what is queued", signal.Signals(signum).name)
        server.drain(timeout_s if len(signals) == 1 else 0.0)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, drain)
    return signals


def _exit_code(server: InferenceServer, signals: list[int]) -> int:
    if len(signals) > 1:
        return 128 + signals[-1]
    return 1 if server.was_cut else 0


def _start_error(error: OSError) -> FlowerbedError:
    refused = FlowerbedError(error.strerror or str(error))
    hint = bind_hint(
        error,
        host_option="--listen or --metrics-host",
        port_option="--listen or --metrics-port, where 0 serves no metrics",
    )
    if hint is not None:
        refused.add_note(hint)
    return refused
