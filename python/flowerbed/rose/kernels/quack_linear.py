"""Products with more in their kernels, by quack's CuTe kernels for Hopper.

A kernel is compiled at its first call, in 1 to 5 s, and kept on disk (QUACK_CACHE_DIR, else in the
folder for temporary files); it serves any number of rows and sizes. Launching one takes 13 to 24 µs of
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
from flowerbed.rose.kernels.fused_linear import HEAD_DIM, NormRopeWeights, Tile


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
                _launch=False,
            )
        run_gemm_epi_plan(self.plan, x, weight.T, out, None, operands)


@cache
def _swiglu(tile: Tile, _dtype: torch.dtype, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.swiglu, tile, halves=True)


@cache
def _bias_gelu(tile: Tile, _dtype: torch.dtype, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.bias_gelu, tile)


@cache
def _norm_rope(eps: float, tile: Tile, _dtype: torch.dtype, _device: torch.device) -> Kernel:
    return Kernel(quack_epilogues.norm_rope(eps), tile)


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
    operands = {
        "head": HEAD_DIM,
        "norm": weights.norm[None],
        "keep": weights.keep[None],
        "position": positions[None],
        "frequency": weights.frequency[None],
    }
    _norm_rope(weights.eps, tile, x.dtype, x.device)(x, weights.rows, out, operands)
    return out
