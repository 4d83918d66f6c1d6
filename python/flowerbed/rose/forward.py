"""One step of a model from staged inputs to packed rows, all on the device. Called by `lane`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flowerbed.rose.inputs import ForwardContext
from flowerbed.rose.kernels.attention import AttentionPlan, Backend, HostPlan
from flowerbed.rose.kernels.backend import has_known_sums
from flowerbed.rose.kernels.pack import Quantizer, pack_rows_into
from flowerbed.rose.kernels.positions import token_places
from flowerbed.rose.layers.pooled import EMBED_HEAD, Head, SegmentSpans
from flowerbed.rose.models.registry import Encoder
from flowerbed.rose.staging import StagedInputs


@dataclass(frozen=True, slots=True)
class RaggedModel:
    """What a step computes."""

    encoder: Encoder
    heads: Mapping[str, Head]
    backend: Backend  # of attention, a ragged one
    max_seqlen: int  # tokens of the longest sequence that the model can take
    quantizer: Quantizer | None  # see `kernels.pack`
    batch_invariant: bool = False  # rows have the same bits whatever else is in the step

    def forward(
        self,
        inputs: StagedInputs,
        head: str,
        max_seqlen: int,
        result: Tensor,
        on_host: HostPlan | None = None,
    ) -> None:
        """One step from staged inputs to packed rows, enqueued on the current stream.

        Args:
            inputs: On the device.
            head: What to compute.
            max_seqlen: No sequence is longer; see `AttentionPlan`.
            result: [num_bytes] uint8, where rows and statuses go.
            on_host: Of a backend that plans steps on the host; such a step cannot be captured.
        """
        num_tokens = inputs.ids.shape[0]
        positions, token_types = token_places(inputs.cu_seqlens, inputs.pair_starts, num_tokens)
        fixed = self.batch_invariant
        plan = AttentionPlan(
            self.backend,
            inputs.padded_cu_seqlens,
            # flash-attn-4 attends the padding, too, which in steps of short sequences may be longer.
            num_tokens if fixed and not has_known_sums() else max_seqlen,
            on_host=on_host,
            batch_invariant=fixed,
        )
        context = ForwardContext(positions, token_types, plan)
        hidden = self.encoder(inputs.ids, context)
        spans = SegmentSpans(inputs.segments, inputs.cu_seqlens, max_seqlen, fixed)
        rows = self.heads[head](hidden, spans)
        quantizer = self.quantizer if head == EMBED_HEAD else None
        pack_rows_into(rows, inputs.formats, inputs.status_offset, result, quantizer)
