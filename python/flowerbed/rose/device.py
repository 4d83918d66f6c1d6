"""Picks the device and the number format, and refuses those that cannot work.

Knows no models. Called by `engine` and by `doctor`.
"""

from __future__ import annotations

import logging
import re
from typing import Literal

import torch

from flowerbed.config import Attention, BatchInvariant, DType
from flowerbed.errors import ConfigError, DeviceError
from flowerbed.rose.kernels.attention import Backend
from flowerbed.rose.kernels.flash_attention import EXTRAS, why_not
from flowerbed.rose.kernels.fused_linear import HOPPER, fuses_products

log = logging.getLogger(__name__)

CPU_BFLOAT16_FEATURES = ("avx512_bf16", "amx_bf16")
_OUT_OF_MEMORY = ("out of memory", "DefaultCPUAllocator: can't", "CUBLAS_STATUS_ALLOC_FAILED")
"""torch.OutOfMemoryError is only what its allocator of GPU memory raises."""
MIN_BFLOAT16_CAPABILITY = (8, 0)
MIN_FP8_CAPABILITY = (8, 9)
TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
    DType.FP8: torch.bfloat16,
}
"""Of activations, and of weights that are no products'."""
_REASONS = {
    DType.FLOAT16: "nearest to float32, and this architecture stays within its range; "
    "--dtype bfloat16 and float32 have a wider one",
    DType.BFLOAT16: "this architecture may leave the range of float16",
}
"""Why `auto` took a format on a GPU."""


def pick_device(name: str) -> torch.device:
    """The device that `name` means: auto, cpu, cuda or cuda:N. auto is the first GPU, else the CPU.

    Raises:
        ConfigError: Not such a name.
        DeviceError: This machine or this build of torch lacks the device.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?", name):
        raise ConfigError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:N")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise DeviceError(
            f"device {name} needs a torch built with CUDA; this one is {torch.__version__}"
        )
    count = torch.cuda.device_count()
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        raise DeviceError(
            f"device {name} is not there; torch sees {count} GPUs (use --device cpu?)"
        )
    return torch.device("cuda", index)


def pick_dtype(dtype: DType, device: torch.device, preferred: DType) -> DType:
    """The format that `dtype` means on `device`.

    auto is float32 on a CPU, and on a GPU what the architecture prefers, from compute capability 8.0 on: below,
    steps run one by one and were never measured in 16 bits. One line of the log says what it is on a GPU, and why.

    Args:
        dtype: As asked for.
        device: From `pick_device`.
        preferred: `EncoderClass.gpu_dtype`, in 16 bits.

    Raises:
        ConfigError: The device cannot compute in it, or only by emulation.
    """
    if device.type == "cpu":
        has_bfloat16 = _cpu_has_bfloat16()
        usable = "--dtype float32" + (" or bfloat16" if has_bfloat16 else "")
        if dtype in (DType.FLOAT16, DType.FP8):
            raise ConfigError(f"dtype {dtype} is not supported on a CPU; use {usable}")
        if dtype is DType.BFLOAT16 and not has_bfloat16:
            features = " or ".join(CPU_BFLOAT16_FEATURES)
            raise ConfigError(f"dtype bfloat16 needs a CPU with {features}; use {usable}")
        return DType.FLOAT32 if dtype is DType.AUTO else dtype
    capability = torch.cuda.get_device_capability(device)
    has_bfloat16 = capability >= MIN_BFLOAT16_CAPABILITY
    if dtype is DType.FP8 and capability < MIN_FP8_CAPABILITY:
        usable = "bfloat16" if has_bfloat16 else "float32"
        raise ConfigError(
            f"dtype fp8 needs a GPU of compute capability 8.9 or newer; use --dtype {usable}"
        )
    if dtype is DType.BFLOAT16 and not has_bfloat16:
        raise ConfigError(
            "dtype bfloat16 needs a GPU of compute capability 8.0; use --dtype float32 or float16"
        )
    if dtype is DType.AUTO:
        chosen = preferred if has_bfloat16 else DType.FLOAT32
        reason = _REASONS.get(chosen, "its compute capability is below 8.0")
        log.info("dtype auto is %s on %s: %s", chosen, device, reason)
        return chosen
    return dtype


def sum_in_float32() -> None:
    """Sums of products stay in fp32 to their end, in this process: cuBLAS would round parts of some sizes."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def pick_batch_invariance(
    asked: BatchInvariant,
    device: torch.device,
    backend: Backend,
    dtype: DType,
    *,
    prefers_float16: bool,
) -> bool:
    """Whether a vector is to have the same bits alone and among others.

    auto is yes in bfloat16 for architectures that prefer float16, whose vectors are otherwise nearer than 0.9999 mostly and
    not always, where the device can; and no elsewhere, since small steps take longer.

    Args:
        asked: Of the user.
        device: From `pick_device`.
        backend: From `pick_attention`.
        dtype: From `pick_dtype`.
        prefers_float16: Whether the architecture does; see `EncoderClass.gpu_dtype`.

    Raises:
        ConfigError: It was asked for, and some part of a step cannot give it.
    """
    reason = None
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != HOPPER:
        reason = "only kernels of Hopper GPUs (sm_90) are known to add up in one order; use auto"
    elif dtype not in (DType.BFLOAT16, DType.FLOAT16):
        reason = f"{dtype} has other products; use --dtype bfloat16 or float16"
    elif backend is not Backend.FLASH_ATTN_4:
        reason = f"attention by {backend} is not known to give it; use flash-attn-4"
    elif not fuses_products(device, TORCH_DTYPES[dtype]):
        reason = "quack-kernels does not load, and other products have other bits; install it"
    if asked is BatchInvariant.ON and reason is not None:
        raise ConfigError(
            f"batch_invariant on cannot be honoured on {device}: {reason}, or --batch-invariant off"
        )
    is_wanted = prefers_float16 and dtype is DType.BFLOAT16
    return reason is None and (
        asked is BatchInvariant.ON or (asked is BatchInvariant.AUTO and is_wanted)
    )


def pick_attention(
    attention: Attention, device: torch.device, dtype: torch.dtype, head_dim: int
) -> Backend:
    """The backend that `attention` means for heads of this size.

    One line of the log says what keeps a GPU from the best one, and what runs instead.

    Raises:
        ConfigError: It cannot serve this device, number format or model.
    """
    if attention is Attention.SDPA or (attention is Attention.AUTO and device.type == "cpu"):
        return Backend.SDPA
    if attention is not Attention.AUTO:
        return _asked_for(Backend(attention.value), device, dtype, head_dim)
    reasons: list[str] = []
    for backend in (Backend.FLASH_ATTN_4, Backend.TORCH_FLASH):
        if (reason := why_not(backend, device, dtype, head_dim)) is None:
            break
        reasons.append(reason)
    else:
        backend = Backend.SDPA
    if reasons:
        steps = ", steps one by one and without CUDA graphs" if backend is Backend.SDPA else ""
        log.warning(
            "%s: attention by %s%s; vectors are the same, steps are slower",
            reasons[-1],
            backend,
            steps,
        )
    return backend


def _asked_for(
    backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int
) -> Backend:
    """A ragged backend by name; ConfigError says why it cannot be."""
    reason = why_not(backend, device, dtype, head_dim)
    if reason is not None:
        refused = ConfigError(f"attention {backend} cannot be honoured on {device}: {reason}")
        if reason.endswith("not installed") and backend in EXTRAS:
            refused.add_note(f"pip install 'flowerbed[engine,{EXTRAS[backend]}]'")
        raise refused
    if backend is Backend.FLASHINFER:
        log.info(
            "attention by flashinfer: CUDA graphs are off, since each step is planned on the "
            "host; its kernels are compiled when first used, which takes minutes"
        )
    return backend


def fault_of(error: Exception) -> Literal["input", "memory", "device"]:
    """What is at fault where a step raised `error`.

    memory: there was not enough for the batch; a smaller one may fit. device: this process cannot use
    it any more, as after most CUDA errors. input: anything else.
    """
    lacks_memory = any(words in str(error) for words in _OUT_OF_MEMORY)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and lacks_memory):
        return "memory"
    return "device" if isinstance(error, (DeviceError, torch.AcceleratorError)) else "input"


def _cpu_has_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(feature, False) for feature in CPU_BFLOAT16_FEATURES)
