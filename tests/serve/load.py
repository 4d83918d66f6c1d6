"""What the tests under load share: the generator, golden vectors, and memory over time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np

from serve.callers import Floats, Http

# The benchmarks drive the same generator; they are scripts beside the package, not in it.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import loadgen
import scrape
import texts

__all__ = ["alone", "growth", "loadgen", "scrape", "texts", "watching_memory"]

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def alone(address: str, inputs: list[str]) -> dict[str, Floats]:
    """The vector of each text by itself, in no batch, by the text."""
    with httpx2.Client(base_url=address, timeout=60) as client:
        http = Http(client)
        return {text: http.embed(text)[0] for text in inputs}


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


@contextmanager
def watching_memory(pids: list[int]) -> Generator[list[list[int]]]:
    """Fills the list with the resident bytes of each process, five times a second."""
    samples: list[list[int]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.2):
            samples.append([resident_bytes(pid) for pid in pids])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def growth(samples: list[list[int]], process: int) -> tuple[float, float]:
    """Median resident bytes at the begin and at the end of the second half."""
    series = [sample[process] for sample in samples]
    half = series[len(series) // 2 :]
    fifth = max(1, len(half) // 5)
    return float(np.median(half[:fifth])), float(np.median(half[-fifth:]))
