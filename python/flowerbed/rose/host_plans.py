"""Attention plans of a stream's steps in flight. Called by `lane`, for FlashInfer alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from flowerbed.rose.kernels.flashinfer_attention import WORKSPACE_BYTES, FlashInferPlan
from flowerbed.rose.lazy import Event


class HostPlans:
    """As many plans as steps may be in flight, used in turn.

    A plan lies in page-locked memory that a copy of its step still reads: before a plan is written
    again, the step that used it last is waited for.
    """

    def __init__(
        self, device: torch.device, stream: Any, new_event: Callable[[], Event], num_steps: int
    ) -> None:
        """Takes what makes an event of `stream`, on whose steps the plans will be used."""
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._stream = stream
        self._turns = cycle([(FlashInferPlan(workspace), new_event()) for _ in range(num_steps)])

    @contextmanager
    def step(self, cu_seqlens: Tensor) -> Iterator[FlashInferPlan]:
        """The plan of one step, all of which is enqueued inside.

        Args:
            cu_seqlens: [num_slots + 1] int32, on the host, unless it may wait for the device.
        """
        plan, event = next(self._turns)
        event.synchronize()
        plan.begin(cu_seqlens)
        try:
            yield plan
        finally:
            event.record(self._stream)
