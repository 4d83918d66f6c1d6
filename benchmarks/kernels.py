"""How near each kernel of `rose/kernels` comes to the speed of a copy: `python benchmarks/kernels.py [--out FILE]`.

A CUDA graph holds one launch for each of several sets of inputs, in all more than the L2 cache takes;
CUDA events time its replays, and the median over replays is divided by the launches. So a figure has
the gap between two kernels of a graph in it. Each kernel is first compared with its torch reference,
in fp32 on the CPU. Beside the copy of 2 GiB stands one of as many bytes as the kernel moves, which is
what launch and latency leave possible.

One JSON object a line on stdout, a table on stderr.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import machine
import torch
from kernel_cases import Case, Tensors, all_cases
from rich.console import Console
from rich.table import Table
from torch import Tensor

NUM_TOKENS = (16, 128, 2048, 8192, 16384)
CACHE_SHARE = 3
"""Bytes that all sets of a graph move, over those of the L2 cache."""
MIN_LAUNCHES, MAX_LAUNCHES = 48, 1024
NUM_REPLAYS = 15
LARGE_COPY_BYTES = 1 << 31  # half is read, half is written


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    kernel: str
    width: str
    num_tokens: int
    us: float
    gb_per_s: float
    share_of_copy: float  # of the rate of a large copy
    share_of_equal_copy: float  # of the rate of a copy of as many bytes
    error: float  # over the largest value
    good: bool


def main() -> None:
    """Measures all kernels, or those whose name has --only in it."""
    parser = argparse.ArgumentParser(description="Measure the kernels on a GPU.")
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file, too")
    parser.add_argument("--only", default="", help="part of the names of the kernels to measure")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("error: no GPU was found; kernels run on one only")
    where = {**machine.describe(), "gpu": torch.cuda.get_device_name()}
    rows: list[Row] = []
    with (
        torch.inference_mode(),
        torch.device("cuda"),
        options.out.open("a") if options.out else nullcontext() as file,
    ):
        for row in _rows(case for case in all_cases() if options.only in case.name):
            rows.append(row)
            line = json.dumps({"benchmark": "kernels", **asdict(row), **where})
            print(line, flush=True)
            if file:
                file.write(line + "\n")
    _show(rows)
    if not all(row.good for row in rows):
        raise SystemExit("error: a kernel differs from its reference")


def _rows(cases: Iterable[Case]) -> Iterator[Row]:
    large_copy = LARGE_COPY_BYTES / _copy_us(LARGE_COPY_BYTES)
    for case in cases:
        on_cpu = [_in_fp32(constant) for constant in case.constants]
        for num_tokens in NUM_TOKENS:
            error = _error(case, case.inputs(num_tokens), on_cpu)
            num_bytes = case.num_bytes(num_tokens)
            us = _launch_us(
                case.call,
                lambda case=case, n=num_tokens: (*case.inputs(n), *case.constants),
                num_bytes,
            )
            rate = num_bytes / us  # bytes per microsecond are MB/s
            yield Row(
                case.name,
                case.width,
                num_tokens,
                us=round(us, 3),
                gb_per_s=round(rate / 1e3, 1),
                share_of_copy=round(rate / large_copy, 3),
                share_of_equal_copy=round(_copy_us(num_bytes) / us, 3),
                error=error,
                good=error <= case.error,
            )
        torch.cuda.empty_cache()


def _error(case: Case, inputs: Tensors, constants: list[Tensor]) -> float:
    """Largest difference from the reference, in what is returned or written, over its largest value."""
    copies = [_in_fp32(tensor) for tensor in inputs]
    found = _tensors(case.call(*inputs, *case.constants))
    expected = _tensors(case.call(*copies, *constants))
    if not found:
        found, expected = list(inputs), copies
    return max(
        (
            (a.cpu().double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)
        ).item()
        for a, b in zip(found, expected, strict=True)
    )


def _tensors(returned: object) -> list[Tensor]:
    parts = returned if isinstance(returned, tuple) else (returned,)
    return [part for part in parts if isinstance(part, Tensor)]


def _in_fp32(tensor: Tensor) -> Tensor:
    copy = tensor.cpu()
    return copy.float() if copy.is_floating_point() else copy


@cache
def _copy_us(num_bytes: int) -> float:
    """Time of a copy that reads and writes so many bytes together."""
    size = max(1, num_bytes // 2)

    def inputs() -> Tensors:
        return torch.randint(0, 256, (size,), dtype=torch.uint8), torch.empty(
            size, dtype=torch.uint8
        )

    return _launch_us(lambda source, target: target.copy_(source), inputs, num_bytes)


def _launch_us(call: Callable[..., object], inputs: Callable[[], Tensors], num_bytes: int) -> float:
    """Median time of one launch in a graph of many, each on inputs that the L2 cache has lost."""
    cache_bytes = torch.cuda.get_device_properties().L2_cache_size
    num_sets = max(2, min(MAX_LAUNCHES, -(-CACHE_SHARE * cache_bytes // num_bytes)))
    sets = [inputs() for _ in range(num_sets)]
    num_launches = max(num_sets, MIN_LAUNCHES)
    call(*sets[0])  # builds the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # All outputs are kept, so that each has a place of its own.
        outputs = [call(*sets[i % num_sets]) for i in range(num_launches)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(NUM_REPLAYS + 1)]
    graph.replay()
    for i, event in enumerate(events):
        event.record()
        if i < NUM_REPLAYS:
            graph.replay()
    torch.cuda.synchronize()
    del outputs
    times_ms = [a.elapsed_time(b) for a, b in pairwise(events)]
    return statistics.median(times_ms) * 1e3 / num_launches


def _show(rows: list[Row]) -> None:
    table = Table("kernel", "width", *(f"{n}" for n in NUM_TOKENS), title="µs · share of the copy")
    names = dict.fromkeys((row.kernel, row.width) for row in rows)
    for name in names:
        cells = [
            f"{row.us:.1f} · {row.share_of_copy:.0%} ({row.share_of_equal_copy:.0%})"
            for row in rows
            if (row.kernel, row.width) == name
        ]
        table.add_row(*name, *cells)
    table.caption = "in brackets: of a copy of as many bytes"
    Console(stderr=True, width=140).print(table)


if __name__ == "__main__":
    main()
