"""Activations of feed-forward blocks: SwiGLU, and GELU with the bias of the product before it.

Arithmetic is in fp32; results are rounded once, to the dtype of the input; GELU in float16 has no overflow
(`saturation`). Knows no models. Called by
`layers` and `kernels.linear`.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional

from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.saturation import saturated

Approximation = Literal["none", "tanh"]


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up.

    Args:
        gate_up: [num_tokens, 2 * intermediate], each row's gate first.

    Returns:
        [num_tokens, intermediate].
    """
    if use_triton(gate_up):
        from flowerbed.rose.kernels import triton_activation

        return triton_activation.swiglu(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: Approximation) -> Tensor:
    """gelu(x + bias). x may be overwritten and be what it returns.

    Args:
        x: [num_tokens, intermediate].
        bias: [intermediate], or None.
        approximate: `none` is x/2 (1 + erf(x / √2)); `tanh` is torch's approximation of it.

    Returns:
        [num_tokens, intermediate].
    """
    if use_triton(x):
        from flowerbed.rose.kernels import triton_activation

        return triton_activation.bias_gelu(x, bias, approximate)
    values = x.float() if bias is None else x.float() + bias.float()
    values = saturated(values, x.dtype)
    return functional.gelu(values, approximate=approximate).to(x.dtype)
