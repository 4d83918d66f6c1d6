"""What a device does at best: how fast it copies memory and multiplies matrices.

Steps of a model are measured against it. Called by `flowerbed doctor --measure`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Past every cache."""
PRODUCT_SIZE = {"cpu": 1_024, "cuda": 8_192}
NUM_ROUNDS = 5
ROUND_S = 0.05


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of one device and number format."""

    copy_bytes_per_s: float  # read and written
    product_flops_per_s: float  # of square matrices
    dtype: str

    def __str__(self) -> str:
        return (
            f"copies {self.copy_bytes_per_s / 1e9:,.0f} GB/s (read and written), "
            f"{self.dtype} products {self.product_flops_per_s / 1e12:,.2f} TFLOP/s"
        )


def ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Takes about a second."""
    source = torch.zeros(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _seconds(lambda: target.copy_(source), device)
    size = PRODUCT_SIZE[device.type]
    x, y = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product_s = _seconds(lambda: torch.mm(x, y), device)
    return Ceilings(2 * len(source) / copy_s, 2 * size**3 / product_s, str(dtype).split(".")[-1])


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Of one call, in the best of some rounds of many."""

    def timed(count: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) / count

    run()
    count = max(1, round(ROUND_S / timed(1)))
    return min(timed(count) for _ in range(NUM_ROUNDS))
