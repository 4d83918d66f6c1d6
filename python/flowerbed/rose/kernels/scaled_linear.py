"""Products of rows in 8 bits, and what follows them.

Each sum is multiplied by the scale of its row of x and by that of its row of the weight; results are in
bfloat16. On Hopper with quack-kernels one kernel also does SwiGLU, or norm and rotation of queries and
keys; elsewhere the next one does. Knows no models. Called by `layers`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flowerbed.errors import ConfigError
from flowerbed.rose.kernels import fused_linear, linear
from flowerbed.rose.kernels.backend import why_no_triton
from flowerbed.rose.kernels.fused_linear import Tile, quack_linear
from flowerbed.rose.kernels.norm_rope import NormRopeWeights
from flowerbed.rose.kernels.scaled_rows import (
    ScaledRows,
    quantize_rows,
    scaled_bias_gelu,
    scaled_swiglu,
)

RESULT = torch.bfloat16
MULTIPLE = 16
"""Of in- and out-features: what the tensor cores' loads need."""


class Tiles(NamedTuple):
    """How a product is cut for fewer than `min_rows` rows and for as many. Its sums are the same."""

    few: Tile
    min_rows: int
    many: Tile


# One H200, µs, weights not in the L2 cache, in a CUDA graph.
LINEAR = Tiles(Tile(64, 64, 1), 1_280, Tile(128, 128, 2))
"""3072 -> 1024 at 32 512 1024 2048 4096 8192 16384 rows: few 4.9 6.1 9.7 18.9 - - 168, many 11.5 11.3 11.2 11.8
21.9 37.8 72.7; torch's 13.0 12.3 12.3 12.4 22.7 42.7 73.7, cuBLAS in bfloat16 7.7 8.2 11.6 18.5 34.3 67.3 135.
2048 -> 1024: few 4.1 4.8 8.1 14.3 - - 110, many 8.5 8.5 8.6 8.9 14.0 25.5 49.9; torch's 8.9 9.2 9.2 9.3 14.4 27.2
51.0, in bfloat16 6.2 6.7 8.9 13.8 24.3 46.3 92.8."""
SWIGLU = Tiles(Tile(64, 128, 1), 576, Tile(128, 192, 1))
"""1024 -> 2 x 3072: few 5.4 10.8 18.3 32.4 - - 224, many 10.6 10.9 15.3 26.0 46.7 89.4 175; torch's without SwiGLU
7.1 10.8 16.9 26.0 46.7 85.7 164, all in bfloat16 13.8 13.5 21.0 35.7 67.8 136 290."""
NORM_ROPE = Tiles(Tile(64, 128, 1), 1_024, Tile(128, 128, 2))
"""1024 -> 4096: few 5.4 8.6 14.0 24.1 48.8 92.6 173, many 9.0 9.2 13.9 24.3 44.3 85.8 165; torch's without norm and
rotation 7.9 7.2 10.1 18.6 33.2 58.0 111, all in bfloat16 9.3 9.8 14.8 26.3 51.4 103 213."""


class GateUpWeights(NamedTuple):
    """Weights of gate and up for `scaled_linear_swiglu`."""

    rows: ScaledRows  # [2 * intermediate, in_features], those of the gate first
    pair_scales: Tensor  # [2 * intermediate, 1], a row of the gate and its row of up in turn


class ScaledNormRopeWeights(NamedTuple):
    """Weights of queries, keys and values for `scaled_linear_norm_rope`."""

    rows: ScaledRows  # in the order of `NormRopeWeights`
    turns: NormRopeWeights  # its rows are not used


def scaled_weight(weight: Tensor) -> ScaledRows:
    """weight, [out_features, in_features], in 8 bits; ConfigError for sizes that no kernel serves."""
    if any(size % MULTIPLE for size in weight.shape):
        raise ConfigError(
            f"dtype fp8 needs products of sizes that are multiples of {MULTIPLE}; this model has one of "
            f"{weight.shape[1]} to {weight.shape[0]}: use --dtype bfloat16"
        )
    return quantize_rows(weight)


def gate_up_weights(weight: Tensor) -> GateUpWeights:
    """Arranges weights for `scaled_linear_swiglu`.

    Args:
        weight: [2 * intermediate, in_features], rows of the gate first.
    """
    rows = scaled_weight(weight)
    return GateUpWeights(rows, rows.scales.view(2, -1).T.reshape(-1, 1))


def scaled_norm_rope_weights(weights: NormRopeWeights) -> ScaledNormRopeWeights:
    """Arranges weights for `scaled_linear_norm_rope`; none in 16 bits is kept."""
    return ScaledNormRopeWeights(
        scaled_weight(weights.rows), weights._replace(rows=weights.rows.new_empty(0))
    )


def kernels(device: torch.device) -> tuple[str, str]:
    """Whose kernels multiply and make rows of 8 bits on a device.

    Others round elsewhere or multiply scales in another order. The last bits of a sum decide now and then
    which of the few levels a value falls on, so that vectors of different kernels are not the same.
    """
    products = "quack" if fused_linear.fuses_products(device, RESULT) else "torch"
    has_triton = device.type == "cuda" and why_no_triton() is None
    return products, "triton" if has_triton else "torch"


def fuses(weight: Tensor) -> bool:
    """Whether one kernel does a product with weight, [out_features, in_features], and what follows it."""
    return fused_linear.fuses_products(weight.device, RESULT) and not any(
        n % fused_linear.MULTIPLE for n in weight.shape
    )


def scaled_linear(x: ScaledRows, weight: ScaledRows, bias: Tensor | None = None) -> Tensor:
    """The product x W^T + b.

    Args:
        x: [num_rows, in_features].
        weight: [out_features, in_features], from `scaled_weight`.
        bias: [out_features] bfloat16, or None.

    Returns:
        [num_rows, out_features] bfloat16.
    """
    out_features, in_features = weight.values.shape
    if bias is None and in_features >= out_features and fuses(weight.values):
        return quack_linear().scaled_linear(x, weight, _tile(LINEAR, x))
    if x.values.is_cuda:
        return torch.ops.aten._scaled_mm(
            x.values,
            weight.values.T,
            scale_a=x.scales,
            scale_b=weight.scales.T,
            bias=bias,
            out_dtype=RESULT,
            use_fast_accum=True,
        )
    sums = (x.values.float() @ weight.values.float().T) * (x.scales * weight.scales.T)
    return (sums if bias is None else sums + bias.float()).to(RESULT)


def scaled_linear_activation(
    x: ScaledRows, weight: ScaledRows, bias: Tensor | None, activation: str
) -> ScaledRows:
    """activation(x W^T + b) in 8 bits.

    Args:
        x: [num_rows, in_features].
        weight: [out_features, in_features], from `scaled_weight`.
        bias: [out_features] bfloat16, or None.
        activation: A key of `linear.ACTIVATIONS`.

    Returns:
        [num_rows, out_features].
    """
    if activation in fused_linear.GELUS:
        return scaled_bias_gelu(scaled_linear(x, weight), bias, fused_linear.GELUS[activation])
    return quantize_rows(linear.ACTIVATIONS[activation](scaled_linear(x, weight, bias)))


def scaled_linear_swiglu(x: ScaledRows, weights: GateUpWeights) -> ScaledRows:
    """silu(gate) * up in 8 bits.

    Args:
        x: [num_rows, in_features].
        weights: From `gate_up_weights`.

    Returns:
        [num_rows, intermediate].
    """
    if fuses(weights.rows.values):
        return quantize_rows(quack_linear().scaled_linear_swiglu(x, weights, _tile(SWIGLU, x)))
    return scaled_swiglu(scaled_linear(x, weights.rows))


def scaled_linear_norm_rope(
    x: ScaledRows, weights: ScaledNormRopeWeights, positions: Tensor
) -> Tensor:
    """`fused_linear.linear_norm_rope` of rows in 8 bits, on a device with quack-kernels."""
    tile = _tile(NORM_ROPE, x)
    return quack_linear().scaled_linear_norm_rope(x, weights, positions.int(), tile)


def _tile(tiles: Tiles, x: ScaledRows) -> Tile:
    return tiles.many if x.values.shape[0] >= tiles.min_rows else tiles.few
