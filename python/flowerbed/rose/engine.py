"""The engine: `Engine.load` a model once, then `step` batches.

Knows nothing of HTTP, gRPC, text or queues. Called by the worker's loop and by in-process callers,
from one thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, Self

import torch

from flowerbed.config import (
    CPU_BATCH_TOKENS,
    Attention,
    BatchInvariant,
    DType,
    GraphCapture,
    ModelInfo,
)
from flowerbed.errors import ModelError
from flowerbed.folder import ModelFolder
from flowerbed.folder_files import canonical_sha256
from flowerbed.rose.bounds import Bounds
from flowerbed.rose.device import (
    TORCH_DTYPES,
    pick_attention,
    pick_batch_invariance,
    pick_device,
    pick_dtype,
    sum_in_float32,
)
from flowerbed.rose.graphs import StepSizes
from flowerbed.rose.grouped import GroupedRunner
from flowerbed.rose.inputs import Batch, PackedBatch, RowFormat
from flowerbed.rose.kernels import scaled_linear
from flowerbed.rose.kernels.attention import Backend
from flowerbed.rose.kernels.pack import STATUS_NOT_FINITE
from flowerbed.rose.layers.pooled import EmbedHead, Head, token_rows
from flowerbed.rose.lazy import LazyTensor
from flowerbed.rose.models.registry import Encoder, encoder_class
from flowerbed.rose.weights import Progress, Weights

log = logging.getLogger(__name__)

WARM_UP_TOKENS = (1, *range(8, 65, 8), 128, 256, CPU_BATCH_TOKENS)


class Runner(Protocol):
    """Runs steps of one model on one device."""

    attention: Backend
    batch_invariant: bool  # a vector has the same bits alone and among others
    streams: tuple[str, ...]
    steps_in_flight: int

    def step(self, batch: Batch) -> LazyTensor:
        """See `Engine.step`."""
        ...

    def capture(self, sizes: StepSizes, when: GraphCapture, memory_limit: int) -> None:
        """See `Engine.capture`."""
        ...


class Engine:
    """One model on one device."""

    def __init__(
        self,
        folder: ModelFolder,
        encoder: Encoder,
        heads: dict[str, Head],
        runner: Runner,
        device: torch.device,
        dtype: DType,
    ) -> None:
        """Use `load`, which makes the parts."""
        self.folder = folder
        self.device = device
        self.dtype = dtype
        self.attention = runner.attention
        self.batch_invariant = runner.batch_invariant
        self._encoder = encoder
        self._heads = heads
        self._runner = runner
        widths = {"embed": folder.dimensions, "tokens": folder.hidden_size}
        self._bounds = Bounds(encoder.vocab_rows, encoder.max_positions, widths)

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        *,
        device: str = "auto",
        dtype: DType = DType.AUTO,
        attention: Attention = Attention.AUTO,
        batch_invariant: BatchInvariant = BatchInvariant.AUTO,
        progress: Progress | None = None,
    ) -> Self:
        """Loads the weights and warms up.

        Args:
            folder: From `read_folder`.
            device: auto, cpu, cuda or cuda:N.
            dtype: Number format of weights and activations.
            attention: What computes attention.
            batch_invariant: Whether a vector has the same bits alone and among others.
            progress: Called with the bytes loaded so far and the bytes in all.

        Raises:
            ModelError: The folder asks for something unsupported, or its weights do not fit it.
            ConfigError: The device cannot compute in `dtype`, with that attention or batch-invariant.
            DeviceError: The device is not there.
        """
        target = pick_device(device)
        preferred = encoder_class(folder.config).gpu_dtype
        chosen = pick_dtype(dtype, target, preferred)
        with torch.inference_mode():
            encoder, heads = _read(folder, target, chosen, progress)
            backend = pick_attention(attention, target, TORCH_DTYPES[chosen], encoder.head_dim)
            is_fixed = pick_batch_invariance(
                batch_invariant,
                target,
                backend,
                chosen,
                prefers_float16=preferred is DType.FLOAT16,
            )
            runner = _runner(folder, encoder, heads, target, backend, batch_invariant=is_fixed)
        engine = cls(folder, encoder, heads, runner, target, chosen)
        engine.warm_up()
        return engine

    def info(self) -> ModelInfo:
        """What a worker tells of this model. Hashes the weights: about 1 s a GB."""
        folder = self.folder
        digests = folder.weight_digests()
        [weights_sha256] = digests.values() if len(digests) == 1 else [canonical_sha256(digests)]
        return ModelInfo(
            id=folder.id,
            revision=folder.revision,
            space=folder.space(self.dtype, digests, self.kernels),
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
            weights_sha256=weights_sha256,
        )

    @property
    def vocab_rows(self) -> int:
        """Ids are below it."""
        return self._encoder.vocab_rows

    @property
    def space(self) -> str:
        """See `ModelFolder.space`. Hashes the weights, about 1 s a GB."""
        return self.folder.space(self.dtype, kernels=self.kernels)

    @property
    def kernels(self) -> tuple[str, ...]:
        """See `ModelFolder.space`."""
        if self.dtype is not DType.FP8:
            return ("batch-invariant",) if self.batch_invariant else ()
        return (*scaled_linear.kernels(self.device), self.attention)

    @property
    def streams(self) -> tuple[str, ...]:
        """Queues of the device that run side by side: normal, and on a GPU online."""
        return self._runner.streams

    @property
    def steps_in_flight(self) -> int:
        """Steps that may be enqueued on each stream before the first is done."""
        return self._runner.steps_in_flight

    def step(self, batch: Batch) -> LazyTensor:
        """Runs one batch: [num_result_bytes + num_rows] uint8, as `kernels.pack.pack_rows` says.

        Returns at once on a GPU; on a CPU the result is complete.

        Raises:
            ModelError: The model has no such head.
            ValueError: The batch's parts do not fit each other.
            IndexError: An id or a position has no row in its table.
        """
        if batch.head not in self._heads:
            names = ", ".join(self._heads)
            raise ModelError(f"this model has no head {batch.head!r}; it has {names}")
        if not hasattr(batch, "pack_into"):  # else the Rust core has checked it
            self._bounds.check(batch)
        with torch.inference_mode():
            return self._runner.step(batch)

    def capture(
        self,
        *,
        online_tokens: int,
        normal_tokens: int,
        when: GraphCapture = GraphCapture.START,
        memory_limit: int,
    ) -> None:
        """Reserves memory by the largest steps and captures CUDA graphs; on a CPU it does nothing.

        Args:
            online_tokens: Largest step of the stream online; longer ones run without a graph.
            normal_tokens: Largest step of the stream normal.
            when: At start, when a size comes again, or never.
            memory_limit: Bytes for the graphs of each stream.
        """
        sizes = StepSizes(online_tokens, normal_tokens, max_row_bytes=4 * self.folder.dimensions)
        with torch.inference_mode():
            self._runner.capture(sizes, when, memory_limit)

    def warm_up(self) -> None:
        """Runs steps of typical sizes, so that the first requests find kernels built and memory there.

        Raises:
            ModelError: The model gives no good vectors.
        """
        row = RowFormat(self.folder.dimensions)
        for num_tokens in WARM_UP_TOKENS:
            batch = PackedBatch.blank(num_tokens, self.folder.text.max_length, row)
            statuses = self.step(batch).numpy()[batch.num_result_bytes :]
            if statuses.any():
                what = "not finite" if STATUS_NOT_FINITE in statuses else "all zero"
                is_narrow = self.dtype is DType.FLOAT16
                other = "--dtype bfloat16 or float32" if is_narrow else "another --dtype"
                raise ModelError(
                    f"{self.folder.id} in {self.dtype} gives a vector that is {what} for a plain "
                    f"input: its weights are damaged, or need {other}"
                )


def check(
    folder: ModelFolder,
    devices: Sequence[str] = (),
    dtype: DType = DType.AUTO,
    attention: Attention = Attention.AUTO,
    batch_invariant: BatchInvariant = BatchInvariant.AUTO,
) -> None:
    """Whether `Engine.load` would take a folder: its architecture, settings, and what tensors there are.

    Reads none of the weights. On each of the devices, whether it would take the other arguments, too.

    Raises:
        ModelError: As `Engine.load` would raise it.
        ConfigError: Likewise.
        DeviceError: Likewise.
    """
    encoder, _ = _read(folder, torch.device("meta"), DType.FLOAT32)
    preferred = encoder_class(folder.config).gpu_dtype
    for name in devices:
        target = pick_device(name)
        chosen = pick_dtype(dtype, target, preferred)
        backend = pick_attention(attention, target, TORCH_DTYPES[chosen], encoder.head_dim)
        prefers_float16 = preferred is DType.FLOAT16
        pick_batch_invariance(
            batch_invariant, target, backend, chosen, prefers_float16=prefers_float16
        )


def _read(
    folder: ModelFolder, device: torch.device, dtype: DType, progress: Progress | None = None
) -> tuple[Encoder, dict[str, Head]]:
    make_encoder = encoder_class(folder.config)
    with Weights(
        folder.files(),
        folder.prefix,
        dtype=TORCH_DTYPES[dtype],
        device=device,
        in_8_bits=dtype is DType.FP8,
        progress=progress,
    ) as weights:
        encoder = make_encoder(folder.config, weights)
        weights.finish()
    return encoder, {"embed": EmbedHead(folder, device), "tokens": token_rows}


def _runner(
    folder: ModelFolder,
    encoder: Encoder,
    heads: dict[str, Head],
    device: torch.device,
    backend: Backend,
    *,
    batch_invariant: bool = False,
) -> Runner:
    if batch_invariant:
        log.info("batch-invariant: a text has the same vector, to the bit, alone and among others")
    if device.type == "cuda":
        sum_in_float32()
    if backend is Backend.SDPA:
        return GroupedRunner(encoder, heads, device, folder.quantizer)
    # Imported only for GPUs: Triton takes a second.
    from flowerbed.rose.cuda import CudaDevice
    from flowerbed.rose.forward import RaggedModel
    from flowerbed.rose.ragged import RaggedRunner

    max_length = folder.text.max_length
    model = RaggedModel(encoder, heads, backend, max_length, folder.quantizer, batch_invariant)
    return RaggedRunner(model, CudaDevice(device))
