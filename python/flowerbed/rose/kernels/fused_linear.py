"""Products of many rows with the element-wise work that follows them, in one kernel where that is faster.

That is on Hopper GPUs in 16 bits with quack-kernels, which flash-attn-4 brings along. Elsewhere, and
for fewer rows, the same is done in steps. Sums are in fp32, and rounded before more is done with them, in
one kernel as in two. Knows no models. Called by `layers`.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flowerbed.rose.kernels.activation import Approximation, bias_gelu, swiglu
from flowerbed.rose.kernels.backend import LOAD_ERRORS, first_line, use_triton
from flowerbed.rose.kernels.linear import ACTIVATIONS, linear
from flowerbed.rose.kernels.norm_rope import NormRopeWeights, norm_rope
from flowerbed.rose.kernels.saturation import saturated

log = logging.getLogger(__name__)

QUACK = "0.6."
"""Versions whose inner interfaces `quack_linear` is written for."""
HOPPER = 9
"""Major compute capability of H100 and H200."""
FUSED_DTYPES = (torch.bfloat16, torch.float16)
MULTIPLE = 64
"""In- and out-features that are no multiple of it have no measured kernel."""
GELUS: dict[str, Approximation] = {"gelu": "none", "gelu_tanh": "tanh"}


class Tile(NamedTuple):
    """The part of a product that one program computes at a time; two take turns."""

    rows: int
    columns: int
    cluster: int  # programs that share what they load of the weight


class Choice(NamedTuple):
    """From how many rows on a fused kernel is used, and how it is cut."""

    min_rows: int
    tile: Tile


# One H200, µs of product and what it absorbs, by cuBLAS and Triton and in one kernel; weights not in
# the L2 cache, in a CUDA graph. At 256 512 1024 2048 4096 8192 16384 rows:
SWIGLU = Choice(512, Tile(128, 192, 2))
"""1024 -> 2 x 3072: 9.6 15.2 25.6 48.4 90.3 190.4 375.5, fused 12.1 12.4 19.6 34.8 66.4 132.8 268.8."""
NORM_ROPE = Choice(1_024, Tile(128, 128, 1))
"""1024 -> 4096: 11.2 13.6 19.5 32.2 62.8 122.9 247.5, fused 11.6 11.3 15.7 26.9 50.9 101.9 203.8. In a
chain of layers of 512 rows it gains nothing."""
BIAS_GELU_MIN_ROWS = 2_048
"""768 -> 3072 in tiles of 128 x 192: 1024 14.0 and 12.2, 2048 22.4 and 18.8, 4096 42.7 and 32.8, 8192 81.0 and 62.0, 16384 158.6 and
124.5; 1024 -> 4096 in tiles of 128 x 128: 21.3 and 17.9, 39.2 and 29.5, 69.2 and 53.8, 133.1 and 105.9, 261.7 and 206.8."""
PROCESSORS = 132
"""Of an H100 or H200: tiles that are computed at once."""
MIN_TILES, MIN_FILL = 240, 0.9
"""Where quack's product with nothing but a bias is the faster one: from so many tiles on if it is wide; else where the last
tiles leave few processors idle."""
WIDE = 2_048
"""Columns of a wide product."""
MAX_DEPTH = 2_048
"""Inner axis beyond which it is not faster."""
MAX_FEW_ROWS = 192
"""Rows of a batch-invariant product that `small_linear` multiplies."""
FEW_ROWS_TILE = Tile(64, 128, 1)
"""Of batch-invariant products with fewer tiles than processors."""


def plain_tile(out_features: int) -> Tile:
    """How quack's product of many rows is cut, with nothing but a bias or with GELU."""
    return Tile(128, 192, 1) if out_features % 192 == 0 else Tile(128, 128, 2)


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b by the faster kernel; both add up a sum in one order, so that no bit depends on which.

    One H200, bfloat16, µs at 4,096, 4,736, 8,192 and 16,384 rows by cuBLAS and by quack: 768 -> 2304 24.9 33.6 48.5 90.6, 21.2 26.5
    40.2 80.6; 1024 -> 3072 40.8 43.6 78.5 158, 35.3 42.8 69.5 159; 768 -> 768 10.5 12.4 17.6 33.7, 9.7 14.7 15.4 28.1; 1024
    -> 1024 15.3 18.2 26.9 52.7, 14.4 19.5 25.3 48.5; 2048 -> 1024 24.7 29.0 46.7 96.9, 24.4 34.4 46.7 93.7; 3072 -> 1024 34.9
    42.3 70.3 140, 35.4 50.9 69.7 138.

    Args:
        x: [num_rows, in_features].
        weight: From `pack_weight`, [out_features, in_features].
        bias: [out_features], or None.
    """
    out_features, in_features = weight.shape
    tile = plain_tile(out_features)
    if in_features <= MAX_DEPTH and _fuses(Choice(1, tile), x, weight):
        kernels = quack_linear()
        # Whatever x has, so that steps of a start build it, and no later one waits for that.
        kernels.build_linear(x, weight, bias, tile)
        num_tiles = _num_tiles(x, weight, tile)
        fill = num_tiles / (-(-num_tiles // PROCESSORS) * PROCESSORS)
        if num_tiles >= MIN_TILES if out_features >= WIDE else fill >= MIN_FILL:
            return kernels.linear(x, weight, bias, tile)
    return linear(x, weight, bias)


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b; a row has the same bits among few rows and among many.

    The tensor cores of Hopper add up a sum in steps of 16 of the inner axis, one after another, in whichever kernel and
    tile, as long as it does not split that axis: cuBLAS does, for few rows of a deep one.

    Args:
        x: [num_rows, in_features].
        weight: [out_features, in_features].
        bias: [out_features], or None.
    """
    if x.shape[0] > MAX_FEW_ROWS and _fuses(Choice(1, FEW_ROWS_TILE), x, weight):
        kernels = quack_linear()
        tile = plain_tile(weight.shape[0])
        for one in (FEW_ROWS_TILE, tile):  # both, as in `fused_linear`
            kernels.build_linear(x, weight, bias, one)
        if _num_tiles(x, weight, tile) < PROCESSORS:
            tile = FEW_ROWS_TILE
        return kernels.linear(x, weight, bias, tile)
    if use_triton(x):
        from flowerbed.rose.kernels import triton_small_linear

        return triton_small_linear.small_linear(x, weight, bias, is_narrow=True)
    return linear(x, weight, bias)


def linear_swiglu(x: Tensor, weight: Tensor, *, batch_invariant: bool = False) -> Tensor:
    """silu(gate) * up.

    Args:
        x: [num_rows, in_features].
        weight: From `pack_weight`, [2 * intermediate, in_features], rows of the gate first.
        batch_invariant: The same kernel for any number of rows.

    Returns:
        [num_rows, intermediate], dtype of x.
    """
    if _fuses(SWIGLU, x, weight, 1 if batch_invariant else None):
        return quack_linear().linear_swiglu(x, weight, SWIGLU.tile)
    multiply = invariant_linear if batch_invariant else linear
    return swiglu(multiply(x, weight, None))


def linear_activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """`linear`, with as much as possible in its kernel or the one after it.

    batch_invariant: A row has the same bits in any number of rows; see `invariant_linear`.
    """
    multiply = invariant_linear if batch_invariant else fused_linear
    if activation == "identity":
        return multiply(x, weight, bias)
    if activation not in GELUS or not use_triton(x):
        if not batch_invariant or not x.is_cuda:
            return linear(x, weight, bias, activation)
        return ACTIVATIONS[activation](saturated(invariant_linear(x, weight, bias), x.dtype))
    approximate = GELUS[activation]
    if bias is not None and approximate == "none":
        tile = plain_tile(weight.shape[0])
        min_rows = 1 if batch_invariant else BIAS_GELU_MIN_ROWS
        if _fuses(Choice(min_rows, tile), x, weight):
            return quack_linear().linear_gelu(x, weight, bias, tile)
    return bias_gelu(multiply(x, weight, None), bias, approximate)


def fuses_norm_rope(
    x: Tensor, weights: NormRopeWeights | None, *, batch_invariant: bool = False
) -> bool:
    """Whether `linear_norm_rope` is to be used: where it is faster for x, [num_rows, in_features], or for all x."""
    min_rows = 1 if batch_invariant else None
    return weights is not None and _fuses(NORM_ROPE, x, weights.rows, min_rows)


def linear_norm_rope(x: Tensor, weights: NormRopeWeights, positions: Tensor) -> Tensor:
    """Queries, keys and values: x W^T, RMS norm of each query and key head, then their rotation.

    Args:
        x: [num_rows, in_features].
        weights: From `norm_rope_weights`.
        positions: [num_rows] int32 or int64.

    Returns:
        [num_rows, (num_heads + 2 * num_kv_heads) * 128], dtype of x. Columns of queries and keys have
        the order of the weights' rows.
    """
    if _fuses(NORM_ROPE, x, weights.rows, min_rows=1):
        return quack_linear().linear_norm_rope(x, weights, positions.int(), NORM_ROPE.tile)
    return norm_rope(linear(x, weights.rows, None), weights, positions)


def fuses_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are kernels for this device and number format; says so once."""
    return device.type == "cuda" and dtype in FUSED_DTYPES and _has_kernels(device)


def fuses_swiglu(x: Tensor, weight: Tensor) -> bool:
    """Whether a batch-invariant `linear_swiglu` of x, [num_rows, in_features], is one kernel."""
    return _fuses(SWIGLU, x, weight, 1)


def _num_tiles(x: Tensor, weight: Tensor, tile: Tile) -> int:
    return -(-x.shape[0] // tile.rows) * -(-weight.shape[0] // tile.columns)


def _fuses(choice: Choice, x: Tensor, weight: Tensor, min_rows: int | None = None) -> bool:
    return (
        x.shape[0] >= (choice.min_rows if min_rows is None else min_rows)
        and fuses_products(x.device, x.dtype)
        and not any(size % MULTIPLE for size in weight.shape)
    )


@cache
def _has_kernels(device: torch.device) -> bool:
    major, _ = torch.cuda.get_device_capability(device)
    if major != HOPPER:
        return False
    try:
        found = version("quack-kernels")
    except PackageNotFoundError:
        log.warning("quack-kernels is not installed: products of large steps are slower")
        return False
    if not found.startswith(QUACK):
        log.warning("quack-kernels %s is not known: products of large steps are slower", found)
        return False
    try:
        quack_linear()
    except LOAD_ERRORS as error:
        what = first_line(error)
        log.warning("quack-kernels %s does not load (%s): large steps are slower", found, what)
        return False
    log.info("products of large steps by quack-kernels %s", found)
    return True


@cache
def quack_linear() -> Any:
    """The products of quack-kernels; call it only where `fuses_products` says so."""
    from flowerbed.rose.kernels import quack_linear as kernels

    return kernels
