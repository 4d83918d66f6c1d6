"""Steps as plain calls, with attention by groups of equal lengths.

For CPUs, and for GPUs and number formats that no ragged attention kernel serves. Called by `engine`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flowerbed.config import GraphCapture
from flowerbed.rose.graphs import StepSizes
from flowerbed.rose.inputs import Batch
from flowerbed.rose.kernels.attention import Backend
from flowerbed.rose.kernels.pack import Quantizer, pack_rows
from flowerbed.rose.layers.pooled import EMBED_HEAD, Head
from flowerbed.rose.lazy import LazyTensor
from flowerbed.rose.models.registry import Encoder
from flowerbed.rose.prepare import prepare


class GroupedRunner:
    """Runs one step after the other."""

    attention = Backend.SDPA
    batch_invariant = False
    streams: tuple[str, ...] = ("normal",)
    steps_in_flight = 1  # a stream

    def __init__(
        self,
        encoder: Encoder,
        heads: Mapping[str, Head],
        device: torch.device,
        quantizer: Quantizer | None,
    ) -> None:
        self._quantizer: Quantizer | None = quantizer
        self._encoder = encoder
        self._heads = heads
        self._device = device

    def capture(self, sizes: StepSizes, when: GraphCapture, memory_limit: int) -> None:
        """Nothing to capture here."""

    def step(self, batch: Batch) -> LazyTensor:
        """See `Engine.step`."""
        inputs = prepare(batch, self._device)
        hidden = self._encoder(inputs.ids, inputs.context)
        rows = self._heads[batch.head](hidden, inputs.segments)
        quantizer = self._quantizer if batch.head == EMBED_HEAD else None
        packed = pack_rows(rows, inputs.formats, batch.num_result_bytes, quantizer)
        return self._to_host(packed, inputs.padding_tokens)

    def _to_host(self, packed: Tensor, padding_tokens: int) -> LazyTensor:
        if not packed.is_cuda:
            return LazyTensor(packed, mode="eager", padding_tokens=padding_tokens)
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return LazyTensor(
            host,
            mode="eager",
            padding_tokens=padding_tokens,
            event=event,
            device_index=self._device.index,
        )
