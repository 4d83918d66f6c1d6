"""Where the time of one step goes, by kernel: `python benchmarks/profile_step.py FOLDER 16x512 1x32`.

Runs each shape eagerly under torch's profiler, after steps that built its kernels, and prints the
kernels by time on the device, with the host's time of an eager step beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from flowerbed import config
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat

NUM_STEPS = 5
NUM_LINES = 24


def main() -> None:
    """Prints one table a shape."""
    parser = argparse.ArgumentParser(description="Profile steps of a model.")
    parser.add_argument("folder")
    parser.add_argument("shapes", nargs="+", help="such as 16x512: sequences x tokens")
    parser.add_argument("--dtype", type=config.DType, default=config.DType.AUTO)
    options = parser.parse_args()
    engine = Engine.load(read_folder(resolve(options.folder)), dtype=options.dtype)
    rng = np.random.default_rng(0)
    for shape in options.shapes:
        num_seqs, seq_len = map(int, shape.split("x"))
        ids = rng.integers(10, engine.vocab_rows, (num_seqs, seq_len)).tolist()
        batch = PackedBatch.build(ids, RowFormat(engine.folder.dimensions))
        _profile(shape, lambda batch=batch: engine.step(batch).wait())


def _profile(shape: str, step: Callable[[], None]) -> None:
    for _ in range(NUM_STEPS):
        step()
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        step()
    wall = (time.perf_counter() - start) / NUM_STEPS * 1e3
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(NUM_STEPS):
            step()
        torch.cuda.synchronize()
    kernels = [
        (event.self_device_time_total / NUM_STEPS / 1e3, event.count // NUM_STEPS, event.key)
        for event in profiler.key_averages()
        if event.self_device_time_total > 0 and event.device_type.name == "CUDA"
    ]
    total = sum(ms for ms, _, _ in kernels)
    print(f"{shape}: {total:.3f} ms of kernels, {wall:.3f} ms eager")
    for ms, count, name in sorted(kernels, reverse=True)[:NUM_LINES]:
        print(f"  {ms:8.4f} ms  x{count:<4} {ms / total:5.1%}  {name[:100]}")


if __name__ == "__main__":
    main()
