"""Products of small steps, which read all weights for few tokens, and the norm between them.

A product whose programs are too few for a GPU is split over its inner axis; the norm that follows adds
up the parts, always in the same order. Sums are in fp32, and rounded before more is done with them, as in
large steps: a vector must not depend on the size of its step. Knows no models. Called by `layers`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.norm import rms_norm

SMALL_STEP_TOKENS = 128
"""Steps up to here are small: their time is that of reading weights and of starting kernels."""
SMALL_STEP_DTYPES = (torch.bfloat16, torch.float16)
MIN_CAPABILITY = (9, 0)
"""Where a kernel can start before the one before it has ended, and only waits for its results."""


def is_small_step(x: Tensor) -> bool:
    """Whether the functions of this file are the fastest for x, [num_tokens, any], where it lies."""
    return (
        x.shape[0] <= SMALL_STEP_TOKENS
        and x.dtype in SMALL_STEP_DTYPES
        and use_triton(x)
        and starts_early(x.device)
    )


@cache
def starts_early(device: torch.device) -> bool:
    """Whether kernels on this device can overlap with the end of the one before."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


def small_linear(x: Tensor, weight: Tensor) -> Tensor:
    """The product x W^T.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features].

    Returns:
        [num_tokens, out_features], dtype of x.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.small_linear(x, weight)
    return functional.linear(x.float(), weight.float()).to(x.dtype)


def small_linear_parts(x: Tensor, weight: Tensor) -> Tensor:
    """The product x W^T in parts for `add_parts_rms_norm`; their number depends on shapes alone.

    Returns:
        [num_parts, num_tokens, out_features] float32, whose sum over the first axis it is.
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.small_linear_parts(x, weight)
    return functional.linear(x.float(), weight.float())[None]


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
    sums = functional.linear(x.float(), weight.float()).to(x.dtype).float()
    gate, up = sums.chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def add_parts_rms_norm(parts: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(residual), after the parts' sum was rounded and added to it in place.

    Args:
        parts: [num_parts, num_tokens, hidden] float32.
        residual: [num_tokens, hidden].
        weight: [hidden].
        eps: Added to the mean of squares.

    Returns:
        [num_tokens, hidden], dtype of the residual.
    """
    if use_triton(residual):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.add_parts_rms_norm(parts, residual, weight, eps)
    total = residual.float() + parts.sum(0).to(residual.dtype).float()
    return rms_norm(residual.copy_(total), weight, eps)
