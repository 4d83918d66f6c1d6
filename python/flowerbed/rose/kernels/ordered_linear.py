"""Products that add up each sum in one order, so that a row has the same bits among few rows and among many.

The tensor cores of Hopper add up a sum in steps of 16 of the inner axis, one after another, in whichever kernel and
tile: cuBLAS's products have the same bits as `small_linear`'s wherever neither splits the inner axis. For few rows
and a deep inner axis cuBLAS would split it; told not to (`device.sum_in_one_order`), it takes ten times as long.
Knows no models. Called by `fused_linear`, and by `layers` that are batch-invariant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.linear import ACTIVATIONS, linear

MAX_FEW_ROWS = 192
"""Rows that `small_linear` multiplies. One H200, µs for 3,072 to 1,024 columns: cuBLAS without splits 71 at 64 rows and 8 from
256 on, for 3,072 to 768 still 75 at 128."""


def ordered_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "identity"
) -> Tensor:
    """`linear.linear`, where `device.sum_in_one_order` was called.

    Args:
        x: [num_rows, in_features], dtype of the weight.
        weight: [out_features, in_features].
        bias: [out_features], or None.
        activation: A key of `linear.ACTIVATIONS`.

    Returns:
        [num_rows, out_features], dtype of x.
    """
    # cuBLAS's products in float32 have no one order.
    if use_triton(x) and (x.shape[0] <= MAX_FEW_ROWS or x.dtype == torch.float32):
        from flowerbed.rose.kernels import triton_small_linear

        product = triton_small_linear.small_linear(x, weight, bias, is_narrow=True)
        return ACTIVATIONS[activation](product)
    return linear(x, weight, bias, activation)
