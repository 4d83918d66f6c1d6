"""Hands out a folder's tensors by name, checked; reads safetensors only, never a pickle.

Knows names, shapes and files, not what the tensors are for. Called by `engine`; models and layers
take their tensors from a `Weights`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flowerbed.errors import ModelError
from flowerbed.folder import weight_files
from flowerbed.folder_files import FolderFiles
from flowerbed.rose.kernels.saturation import saturated

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""


class Weights:
    """The tensors under one folder of a model. Use in a `with` block; `finish` checks that all went.

    Names are those of the bare model: a prefix such as `bert.` is dropped, and `gamma` and `beta` of
    old checkpoints become `weight` and `bias`.
    """

    def __init__(
        self,
        files: FolderFiles,
        folder: str,
        *,
        dtype: torch.dtype,
        device: torch.device,
        in_8_bits: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Opens the files under `folder` ("" or "name/"); ModelError if one is missing or damaged."""
        self.in_8_bits = in_8_bits  # whether layers should keep their products' weights so
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._stack = ExitStack()
        self._places: dict[str, tuple[Any, str, str]] = {}  # name -> file, name in it, file's name
        self._num_bytes = 0
        self._num_loaded = 0
        names = weight_files(files, folder)
        for name in names:
            path = files.need(name, "it holds weights")
            self._num_bytes += path.stat().st_size
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
                stored = list(file.keys())
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise ModelError(f"{name} is not a good safetensors file: {error}") from error
            for tensor in stored:
                self._places[tensor] = (file, tensor, name)
        self._where = names[0] if len(names) == 1 else f"{folder}model.safetensors.index.json"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def rename(
        self, *, prefix: str, ignored: tuple[str, ...], ignored_heads: tuple[str, ...]
    ) -> None:
        """Settles on the bare model's names.

        Args:
            prefix: Dropped if any name starts with it.
            ignored: Starts or ends of bare names that the model does not need.
            ignored_heads: Starts of names beside the prefix, such as a pretraining head's.
        """
        has_prefix = any(name.startswith(prefix) for name in self._places)
        places: dict[str, tuple[Any, str, str]] = {}
        for name, place in self._places.items():
            bare = name
            if has_prefix and name.startswith(prefix):
                bare = name.removeprefix(prefix)
            elif has_prefix and name.startswith(ignored_heads):
                continue
            for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
                bare = bare.removesuffix(old) + new if bare.endswith(old) else bare
            if bare.startswith(ignored) or bare.endswith(ignored):
                continue
            if bare in places:
                raise ModelError(f"{self._where} holds {bare} twice, also as {name}")
            places[bare] = place
        self._places = places

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, converted and on the device; ModelError if it is missing or has another shape.

        In float16 what is beyond its range becomes its largest value, with a warning; what is infinite in the
        file is a ModelError, since kernels would take it for such a value.
        """
        place = self._places.pop(name, None)
        if place is None:
            raise ModelError(f"{self._where} has no tensor {name}, which this architecture needs")
        file, stored, where = place
        found = tuple(file.get_slice(stored).get_shape())
        if found != shape:
            raise ModelError(
                f"{where}: {stored} has shape {list(found)}; config.json says {list(shape)}"
            )
        tensor: Tensor = file.get_tensor(stored)
        if not tensor.is_floating_point():
            raise ModelError(
                f"{where}: {stored} is {tensor.dtype}; only float weights are supported"
            )
        self._num_loaded += tensor.numel() * tensor.element_size()
        if self._progress is not None:
            self._progress(self._num_loaded, self._num_bytes)
        # A copy: a view into the file's mapping would change or crash with the file.
        converted = tensor.to(self._device, self._dtype, copy=True)
        if self._dtype != torch.float16 or not _overflows(converted):
            return converted
        if _overflows(tensor):
            raise ModelError(f"{where}: {stored} holds an infinite value")
        log.warning(
            "%s: %s has values beyond float16's range, which become its largest; "
            "--dtype bfloat16 and float32 have a wider one",
            where,
            stored,
        )
        return saturated(tensor, self._dtype).to(self._device, self._dtype)

    def finish(self) -> None:
        """Checks that every tensor was taken; ModelError names those that were not."""
        if self._places:
            names = sorted(self._places)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ModelError(
                f"{self._where} has tensors that this architecture does not know: "
                f"{', '.join(names[:3])}{more}"
            )
        if self._progress is not None:
            self._progress(self._num_bytes, self._num_bytes)


def _overflows(tensor: Tensor) -> bool:
    """Whether it holds an infinity. Of one that holds what is no number nothing is said: its vectors show that."""
    low, high = torch.aminmax(tensor)
    return math.isinf(low.item()) or math.isinf(high.item())
