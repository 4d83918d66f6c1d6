"""A device of the CPU with streams, events and graphs in name: a graph repeats the calls it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from flowerbed.rose.kernels.attention import AttentionPlan, Backend, LengthGroup, attention

TILE = 128


@dataclass
class FakeEvent:
    cuda_event: int = 0
    record_on: Callable[[Any], None] = lambda stream: None

    def record(self, stream: Any) -> None:
        self.record_on(stream)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


@dataclass
class FakeGraph:
    replay: Callable[[], None]
    num_bytes: int = 1


class FakeDevice:
    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.index = 0
        self.current: Any = None
        self.num_captures = 0
        self.num_streams = 0
        self.used: list[str] = []  # stream of each event

    def stream(self, *, is_urgent: bool) -> str:
        self.num_streams += 1
        return f"{'urgent' if is_urgent else 'normal'} {self.num_streams}"

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.full((size,), 77, dtype=dtype)  # what was there before

    def event(self, *, is_urgent: bool) -> FakeEvent:
        assert is_urgent == self.current.startswith("urgent")
        return FakeEvent(record_on=self.used.append)

    def synchronize(self) -> None:
        pass

    def pool(self) -> None:
        return None

    def capture(self, stream: Any, pool: Any, run: Callable[[], None]) -> FakeGraph:
        self.num_captures += 1
        run()
        return FakeGraph(run)


def read_on_the_device(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: AttentionPlan,
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Ragged attention that reads `cu_seqlens` when it runs, as a graph's kernel does; in a loop.

    As such kernels do, it reads whole tiles of values: what is no number past a sequence's end spoils it.
    """
    bounds = plan.cu_seqlens.tolist()
    assert all(end - start <= plan.max_seqlen for start, end in pairwise(bounds))
    out = torch.full((query.shape[0], query.shape[1] * query.shape[2]), torch.nan)
    for start, end in pairwise(bounds):
        if start < end:
            one = AttentionPlan(
                Backend.SDPA, plan.cu_seqlens, end - start, (LengthGroup(0, 1, end - start),)
            )
            q, k, v = (part[start:end] for part in (query, key, value))
            out[start:end] = attention(q, k, v, one, causal=causal, window=window)
            tile = value[start : start + -(-(end - start) // TILE) * TILE]
            out[start:end] += (0 * tile).sum()
    return out
