"""FlashInfer's ragged attention, whose work is divided among programs on the host, for each step.

Knows no models. `rose.host_plans` makes the plans; called by `kernels.attention`.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flowerbed.errors import ConfigError

WORKSPACE_BYTES = 128 << 20
"""What FlashInfer asks for; its kernels before Hopper's leave partial sums there."""


class LayerKind(NamedTuple):
    """What layers share that are planned together."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    causal: bool
    window: int | None


class FlashInferPlan:
    """A step's attention, planned where its first layer of a kind asks for it.

    FlashInfer writes a plan into page-locked memory and enqueues a copy from there: no plan may be begun
    again before the step that used it last is done.
    """

    def __init__(self, workspace: Tensor) -> None:
        """Takes [WORKSPACE_BYTES] uint8 on the device, which plans of one stream may share."""
        self._workspace = workspace
        self._wrappers: dict[LayerKind, Any] = {}  # each with 8 MiB on the device and on the host
        self._planned: set[LayerKind] = set()
        self._cu_seqlens: Tensor | None = None

    def begin(self, cu_seqlens: Tensor) -> None:
        """Takes the next step's [num_slots + 1] int32; on the host, unless it may wait for the device."""
        self._cu_seqlens = cu_seqlens
        self._planned.clear()

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, window: int | None
    ) -> Tensor:
        """`kernels.attention.attention` of this step, windows only to the left; same result."""
        _, num_heads, head_dim = query.shape
        kind = LayerKind(num_heads, key.shape[1], head_dim, query.dtype, causal, window)
        if kind not in self._planned:
            self._plan(kind)
            self._planned.add(kind)
        return self._wrappers[kind].run(query, key, value, enable_pdl=False).flatten(1)

    def _plan(self, kind: LayerKind) -> None:
        is_new = kind not in self._wrappers
        if is_new:
            self._wrappers[kind] = flashinfer_library().BatchPrefillWithRaggedKVCacheWrapper(
                self._workspace
            )
        try:
            self._wrappers[kind].plan(
                self._cu_seqlens,
                self._cu_seqlens,
                kind.num_heads,
                kind.num_kv_heads,
                kind.head_dim,
                causal=kind.causal,
                window_left=-1 if kind.window is None else kind.window,
                q_data_type=kind.dtype,
            )
        except (OSError, RuntimeError) as error:
            if not is_new:
                raise
            raise ConfigError(
                "attention flashinfer could not compile its kernels, which takes nvcc and ninja; "
                f"use another --attention or install them: {str(error)[:300]}"
            ) from error


@cache
def flashinfer_library() -> Any:
    """The library; raises what its import raises."""
    # Imported only where it is used: it takes half a second and makes folders under ~/.cache.
    # It warns of its own code, while it is imported.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import flashinfer  # pyright: ignore[reportMissingImports]

    return flashinfer
