"""Products of small steps, which read all weights for few tokens.

A product whose programs are too few for a GPU is split over its inner axis; the norm of `add_parts` that
follows adds up the parts. Sums are in fp32, and rounded where large steps round them: a vector
must not depend on the size of its step. Knows no models. Called by `layers`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.activation import bias_gelu
from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.fused_linear import GELUS

SMALL_STEP_TOKENS = 128
"""Steps up to here are small: their time is that of reading weights and of starting kernels. On one H200 Qwen3-0.6B takes
0.91 ms at 128 tokens instead of 1.19, but 1.51 at 160 instead of 1.26; bge-m3 1.03 at 160 instead of 0.99."""
NARROW_SMALL_STEP_TOKENS = 256
"""The same for narrow encoders: BERT-base takes 0.38 ms at 160 tokens instead of 0.48, and 0.45 at 256 instead of 0.47."""
MAX_NARROW, MAX_NARROW_HEAD = 768, 64
"""Columns of such an encoder and of its heads: with 256 keys registers hold no more of a head."""
SMALL_STEP_DTYPES = (torch.bfloat16, torch.float16)
MIN_CAPABILITY = (9, 0)
"""Where a kernel can start before the one before it has ended, and only waits for its results."""
SHARED_BYTES = 200_000
"""Of the largest program: SwiGLU's, for more than 64 tokens."""


def encoder_step_tokens(hidden: int, head_dim: int) -> int:
    """Up to how many tokens steps of BERT are small."""
    is_narrow = hidden <= MAX_NARROW and head_dim <= MAX_NARROW_HEAD
    return NARROW_SMALL_STEP_TOKENS if is_narrow else SMALL_STEP_TOKENS


def is_small_step(x: Tensor, max_tokens: int) -> bool:
    """Whether the functions of this file are the fastest for x, [num_tokens, any], where it lies.

    max_tokens: Of the model's small steps.
    """
    return (
        x.shape[0] <= max_tokens
        and x.dtype in SMALL_STEP_DTYPES
        and use_triton(x)
        and starts_early(x.device)
        and has_shared_memory(x.device)
    )


@cache
def has_shared_memory(device: torch.device) -> bool:
    """Whether a program has as much as these kernels take: not on the Blackwell of workstations, 99 kB."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= SHARED_BYTES


@cache
def starts_early(device: torch.device) -> bool:
    """Whether kernels on this device can overlap with the end of the one before."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


def small_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x W^T + b, rounded once.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features].
        bias: [out_features], or None.

    Returns:
        [num_tokens, out_features], dtype of x.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.small_linear(x, weight, bias)
    return _sums(x, weight, bias).to(x.dtype)


def small_linear_parts(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x W^T + b in parts, for the norms that add them up; the weight's shape says how many.

    Returns:
        [num_parts, num_tokens, out_features] float32, whose sum over the first axis it is.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.small_linear_parts(x, weight, bias)
    return _sums(x, weight, bias)[None]


def small_gelu(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x W^T + b), the product rounded before the bias is added.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features].
        bias: [out_features], or None.
        activation: A key of `fused_linear.GELUS`.

    Returns:
        [num_tokens, out_features], dtype of x.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.small_gelu(x, weight, bias, activation)
    return bias_gelu(_sums(x, weight, None).to(x.dtype), bias, GELUS[activation])


def small_swiglu(x: Tensor, weight: Tensor) -> Tensor:
    """silu(gate) * up of x W^T.

    Args:
        x: [num_tokens, in_features].
        weight: [2 * intermediate, in_features], the rows of gate first.

    Returns:
        [num_tokens, intermediate], dtype of x.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.small_swiglu(x, weight)
    sums = _sums(x, weight, None).to(x.dtype).float()
    gate, up = sums.chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def _sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
