"""Products with more in their kernels, by quack's CuTe kernels for Hopper.

A kernel is compiled at its first call or by `build_linear`, in 1 to 5 s, and kept on disk (QUACK_CACHE_DIR, else in
the folder for temporary files); it serves any number of rows and sizes. Launching one takes 13 to 24 µs of
the processor, where a Triton kernel takes 46. Imported by `fused_linear`, only where quack is there.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from quack.gemm_runtime.host import run_gemm_epi_plan
from torch import Tensor

from flowerbed.rose.kernels import quack_epilogues
from flowerbed.rose.kernels.fused_linear import Tile
from flowerbed.rose.kernels.norm_rope import HEAD_DIM, NormRopeWeights
from flowerbed.rose.kernels.scaled_linear import RESULT, GateUpWeights, ScaledNormRopeWeights
from flowerbed.rose.kernels.scaled_rows import ScaledRows

FAST = (("fp8_slow_accum", False),)
"""Sums of 8-bit products stay in the tensor cores' registers, of about 14 bits, as torch's fast ones."""


class Kernel:
    """An epilogue and a tile, compiled for one number format and device."""

    def __init__(self, epilogue: Any, tile: Tile, *, halves: bool = False) -> None:
        """With `halves`, row i of the weight's first half meets row i of its second."""
        self.epilogue = epilogue
        self.tile = tile
        self.concat_layout = ("B",) if halves else None
        self.plan: Any = None

    def __call__(self, x: Tensor, weight: Tensor, out: Tensor | None, operands: Any) -> None:
        """Enqueues it. `out` is the product's own; the epilogue's outputs are among the operands."""
        self.build(x, weight, out, operands)
        run_gemm_epi_plan(self.plan, x, weight.T, out, None, operands)

    def build(self, x: Tensor, weight: Tensor, out: Tensor | None, operands: Any) -> None:
        """Compiles it, unless that is done."""
        if self.plan is None:
            self.plan = self.epilogue.gemm(
                x,
                weight.T,
                out,
                epi_args=operands,
                tile_M=self.tile.rows,
                tile_N=self.tile.columns,
                cluster_M=self.tile.cluster,
                cluster_N=1,
                pingpong=True,
                b_kn=True,
                concat_layout=self.concat_layout,
                post_init_attrs=FAST if x.itemsize == 1 else (),
                _launch=False,
            )


@cache
def _linear(tile: Tile, has_bias: bool, _dtype: torch.dtype, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.biased if has_bias else quack_epilogues.plain, tile)


@cache
def _swiglu(tile: Tile, dtype: torch.dtype, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.swiglu(dtype), tile, halves=True)


@cache
def _bias_gelu(tile: Tile, dtype: torch.dtype, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.bias_gelu(dtype), tile)


@cache
def _norm_rope(eps: float, tile: Tile, dtype: torch.dtype, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.norm_rope(eps, dtype), tile)


@cache
def _scaled(tile: Tile, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.scaled, tile)


@cache
def _scaled_swiglu(tile: Tile, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.scaled_swiglu, tile, halves=True)


@cache
def _scaled_norm_rope(eps: float, tile: Tile, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.scaled_norm_rope(eps), tile)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> Tensor:
    """X W^T + b, rounded once."""
    out = x.new_empty(x.shape[0], weight.shape[0])
    operands = {} if bias is None else {"bias": bias[None]}
    _linear(tile, bias is not None, x.dtype, x.device)(x, weight, out, operands)
    return out


def build_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
    """Compiles what `linear` runs for such tensors of any number of rows."""
    kernel = _linear(tile, bias is not None, x.dtype, x.device)
    if kernel.plan is None:
        operands = {} if bias is None else {"bias": bias[None]}
        kernel.build(x, weight, x.new_empty(x.shape[0], weight.shape[0]), operands)


def linear_swiglu(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """See `fused_linear.linear_swiglu`."""
    out = x.new_empty(x.shape[0], weight.shape[0] // 2)
    _swiglu(tile, x.dtype, x.device)(x, weight, None, {"out": out})
    return out


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, tile: Tile) -> Tensor:
    """gelu(x W^T + b), with erf."""
    out = x.new_empty(x.shape[0], weight.shape[0])
    _bias_gelu(tile, x.dtype, x.device)(x, weight, out, {"bias": bias[None]})
    return out


def linear_norm_rope(x: Tensor, weights: NormRopeWeights, positions: Tensor, tile: Tile) -> Tensor:
    """See `fused_linear.linear_norm_rope`. positions: int32."""
    out = x.new_empty(x.shape[0], weights.rows.shape[0])
    operands = _turns(weights, positions)
    _norm_rope(weights.eps, tile, x.dtype, x.device)(x, weights.rows, out, operands)
    return out


def scaled_linear(x: ScaledRows, weight: ScaledRows, tile: Tile) -> Tensor:
    """See `scaled_linear.scaled_linear`; without a bias."""
    values = x.values
    out = values.new_empty(values.shape[0], weight.values.shape[0], dtype=RESULT)
    operands = {"rows": x.scales.T, "columns": weight.scales.T}
    _scaled(tile, values.device)(values, weight.values, out, operands)
    return out


def scaled_linear_swiglu(x: ScaledRows, weights: GateUpWeights, tile: Tile) -> Tensor:
    """`scaled_linear.scaled_linear_swiglu`, not yet in 8 bits: [num_rows, intermediate] bfloat16."""
    values, rows = x.values, weights.rows.values
    out = values.new_empty(values.shape[0], rows.shape[0] // 2, dtype=RESULT)
    operands = {"out": out, "rows": x.scales.T, "columns": weights.pair_scales.T}
    _scaled_swiglu(tile, values.device)(values, rows, None, operands)
    return out


def scaled_linear_norm_rope(
    x: ScaledRows, weights: ScaledNormRopeWeights, positions: Tensor, tile: Tile
) -> Tensor:
    """See `scaled_linear.scaled_linear_norm_rope`. positions: int32."""
    values, (rows, scales) = x.values, weights.rows
    out = values.new_empty(values.shape[0], rows.shape[0], dtype=RESULT)
    operands = _turns(weights.turns, positions) | {"rows": x.scales.T, "columns": scales.T}
    kernel = _scaled_norm_rope(weights.turns.eps, tile, values.device)
    kernel(values, rows, out, operands)
    return out


def _turns(weights: NormRopeWeights, positions: Tensor) -> dict[str, Any]:
    return {
        "head": HEAD_DIM,
        "norm": weights.norm[None],
        "keep": weights.keep[None],
        "position": positions[None],
        "frequency": weights.frequency[None],
    }
