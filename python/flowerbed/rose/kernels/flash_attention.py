"""Ragged attention kernels of GPUs, which read the sequences' places on the device.

So one CUDA graph serves any lengths. Knows no models. Called by `kernels.attention`; of a FlashInfer
step only for windows to both sides, by torch's kernel.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from flowerbed.rose.kernels.attention import AttentionPlan, Backend
from flowerbed.rose.kernels.backend import LOAD_ERRORS, first_line, why_no_triton
from flowerbed.rose.kernels.flashinfer_attention import flashinfer_library

FLASH_DTYPES = (torch.bfloat16, torch.float16)
MIN_CAPABILITY = {
    Backend.FLASH_ATTN_4: (9, 0),
    Backend.TORCH_FLASH: (8, 0),
    Backend.FLASHINFER: (8, 0),
}
"""The preferred backend first. FlashInfer is last: what its kernels gain, steps without graphs lose."""
HEAD_DIMS = {
    Backend.FLASH_ATTN_4: range(8, 129, 8),
    Backend.TORCH_FLASH: range(8, 257, 8),
    Backend.FLASHINFER: (64, 128, 256),
}
PACKAGES = {Backend.FLASH_ATTN_4: "flash-attn-4", Backend.FLASHINFER: "flashinfer-python"}
EXTRAS = {Backend.FLASH_ATTN_4: "cuda", Backend.FLASHINFER: "flashinfer"}
"""What to install for each."""


def why_not(
    backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int
) -> str | None:
    """Why a ragged backend cannot serve this device, number format and head size; None: it can."""
    if device.type != "cuda":
        return "ragged attention needs a GPU"
    if dtype not in FLASH_DTYPES:
        return f"ragged attention has no {str(dtype).removeprefix('torch.')}"
    if head_dim not in (sizes := HEAD_DIMS[backend]):
        known = ", ".join(map(str, sizes)) if isinstance(sizes, tuple) else f"8 to {sizes[-1]}"
        return f"{backend} has no heads of {head_dim}, only of {known}"
    capability, least = torch.cuda.get_device_capability(device), MIN_CAPABILITY[backend]
    if capability < least:
        ours, needed = (f"sm_{major}{minor}" for major, minor in (capability, least))
        return f"{backend} needs {needed} and this GPU is {ours}"
    if (reason := why_no_triton()) is not None:  # the other kernels of a ragged step need it
        return reason
    return why_no_package(backend)


@cache
def why_no_package(backend: Backend) -> str | None:
    """Why what a backend needs cannot be used; None: it can. Imports it: flash-attn-4 takes seconds."""
    if backend not in PACKAGES:
        return None
    package = PACKAGES[backend]
    try:
        found = version(package)
    except PackageNotFoundError:
        return f"{package} is not installed"
    load = _flash_attn_4 if backend is Backend.FLASH_ATTN_4 else flashinfer_library
    try:
        load()
    except LOAD_ERRORS as error:
        return f"{package} {found} does not load ({first_line(error)})"
    return None


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: AttentionPlan,
    *,
    causal: bool,
    window: int | None,
) -> Tensor:
    """`kernels.attention.attention` by a ragged kernel; same arguments and result."""
    num_tokens = query.shape[0]
    scale = query.shape[-1] ** -0.5
    # Both name what is seen to the left and to the right; None: without end.
    left, right = window, 0 if causal else window
    if plan.backend is Backend.FLASH_ATTN_4:
        mixed = _flash_attn_4()(
            query,
            key,
            value,
            cu_seqlens_q=plan.cu_seqlens,
            cu_seqlens_k=plan.cu_seqlens,
            max_seqlen_q=plan.max_seqlen,
            max_seqlen_k=plan.max_seqlen,
            softmax_scale=scale,
            causal=causal and window is None,
            window_size=(None, None) if window is None else (left, right),
        )
        mixed = mixed[0] if isinstance(mixed, tuple) else mixed
    else:
        mixed = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            plan.cu_seqlens,
            plan.cu_seqlens,
            plan.max_seqlen,
            plan.max_seqlen,
            0.0,  # no dropout
            causal and window is None,
            False,  # no debug mask
            scale=scale,
            window_size_left=left,
            window_size_right=None if window is None else right,
        )[0]
    return mixed.reshape(num_tokens, -1)


@cache
def _flash_attn_4() -> Any:
    # Its compiler warns of its own code, while it is imported and at the first call.
    warnings.filterwarnings("ignore", "Argument aux_data", UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from flash_attn.cute import flash_attn_varlen_func  # pyright: ignore
    return flash_attn_varlen_func
