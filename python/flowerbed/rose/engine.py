"""The engine: `Engine.load` a model once, then `step` batches.

Knows nothing of HTTP, gRPC, text or queues. Called by the worker's loop and by in-process callers,
from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from flowerbed.config import CPU_BATCH_TOKENS, DType, ModelInfo
from flowerbed.errors import ModelError
from flowerbed.folder import ModelFolder
from flowerbed.rose.device import TORCH_DTYPES, pick_device, pick_dtype
from flowerbed.rose.inputs import Batch, PackedBatch, RowFormat, prepare
from flowerbed.rose.kernels.pack import STATUS_NOT_FINITE, pack_rows
from flowerbed.rose.kernels.pooling import SegmentTable
from flowerbed.rose.layers.pooled import EmbedHead, token_rows
from flowerbed.rose.lazy import LazyTensor
from flowerbed.rose.models.registry import Encoder, encoder_class
from flowerbed.rose.weights import Progress, Weights

Head = Callable[[Tensor, SegmentTable], Tensor]
"""Hidden states and segments to rows, [num_segments, width] float32."""

WARM_UP_TOKENS = (1, 32, 64, 128, CPU_BATCH_TOKENS)


class Engine:
    """One model on one device."""

    def __init__(
        self,
        folder: ModelFolder,
        encoder: Encoder,
        heads: dict[str, Head],
        device: torch.device,
        dtype: DType,
    ) -> None:
        """Use `load`, which makes the parts."""
        self.folder = folder
        self.device = device
        self.dtype = dtype
        self._encoder = encoder
        self._heads = heads

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        *,
        device: str = "auto",
        dtype: DType = DType.AUTO,
        progress: Progress | None = None,
    ) -> Self:
        """Loads the weights and warms up.

        Args:
            folder: From `read_folder`.
            device: auto, cpu, cuda or cuda:N.
            dtype: Number format of weights and activations.
            progress: Called with the bytes loaded so far and the bytes in all.

        Raises:
            ModelError: The folder asks for something unsupported, or its weights do not fit it.
            ConfigError: The device cannot compute in `dtype`.
            DeviceError: The device is not there.
        """
        target = pick_device(device)
        chosen = pick_dtype(dtype, target)
        make_encoder = encoder_class(folder.config)
        with (
            torch.inference_mode(),
            Weights(
                folder.files(),
                folder.prefix,
                dtype=TORCH_DTYPES[chosen],
                device=target,
                progress=progress,
            ) as weights,
        ):
            encoder = make_encoder(folder.config, weights)
            weights.finish()
            heads: dict[str, Head] = {"embed": EmbedHead(folder, target), "tokens": token_rows}
        engine = cls(folder, encoder, heads, target, chosen)
        engine.warm_up()
        return engine

    def info(self) -> ModelInfo:
        """What a worker tells of this model. Hashes the weights: about 1 s a GB."""
        folder = self.folder
        return ModelInfo(
            id=folder.id,
            revision=folder.revision,
            space=folder.space(self.dtype),
            tokenizer_sha256=folder.tokenizer_sha256,
            text_sha256=folder.text_sha256,
            max_length=folder.text.max_length,
            vocab_rows=self._encoder.vocab_rows,
            dimensions=folder.dimensions,
            allowed_dimensions=folder.allowed_dimensions,
            normalize=folder.normalize,
            heads=tuple(self._heads),
            attention_scale=self._encoder.attention_scale,
            dtype=self.dtype,
            device=str(self.device),
            pooling="+".join(folder.pooling),
            token_dimensions=folder.hidden_size,
        )

    def step(self, batch: Batch) -> LazyTensor:
        """Runs one batch: [num_result_bytes + num_rows] uint8, as `kernels.pack.pack_rows` says.

        Returns at once on a GPU; on a CPU the result is complete.

        Raises:
            ModelError: The model has no such head.
            ValueError: The batch's parts do not fit each other.
            IndexError: An id or a position has no row in its table (on a CPU).
        """
        head = self._heads.get(batch.head)
        if head is None:
            names = ", ".join(self._heads)
            raise ModelError(f"this model has no head {batch.head!r}; it has {names}")
        with torch.inference_mode():
            inputs = prepare(batch, self.device)
            hidden = self._encoder(inputs.ids, inputs.context)
            rows = head(hidden, inputs.segments)
            packed = pack_rows(rows, inputs.formats, batch.num_result_bytes)
            return LazyTensor.launch(packed, mode="eager", padding_tokens=inputs.padding_tokens)

    def warm_up(self) -> None:
        """Runs steps of typical sizes, so that the first requests find kernels built and memory there.

        Raises:
            ModelError: The model gives no good vectors.
        """
        max_length = self.folder.text.max_length
        for num_tokens in WARM_UP_TOKENS:
            lengths = [max_length] * (num_tokens // max_length) + [num_tokens % max_length]
            sequences = [[0] * length for length in lengths if length]
            batch = PackedBatch.build(sequences, RowFormat(self.folder.dimensions))
            statuses = self.step(batch).numpy()[batch.num_result_bytes :]
            if statuses.any():
                what = "not finite" if STATUS_NOT_FINITE in statuses else "all zero"
                raise ModelError(
                    f"{self.folder.id} in {self.dtype} gives a vector that is {what} for a plain "
                    "input: its weights are damaged, or need another --dtype"
                )
