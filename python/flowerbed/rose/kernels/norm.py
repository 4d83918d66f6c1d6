"""Layer normalisation, with and without a residual, and rows scaled to length 1.

Knows no models. Called by `layers` and `kernels.pack`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

MIN_NORM = 1e-12
"""Shorter rows are divided by this instead, so that a zero row stays zero and is no NaN."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis, in fp32.

    Args:
        x: [num_tokens, hidden].
        weight: [hidden].
        bias: [hidden].
        eps: Added to the variance.

    Returns:
        [num_tokens, hidden], dtype of x.
    """
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """layer_norm(x + residual). Overwrites x."""
    return functional.layer_norm(x.add_(residual), weight.shape, weight, bias, eps)


def normalize_rows(rows: Tensor) -> Tensor:
    """Divides each row by max(|row|, 1e-12), norms in fp32.

    Args:
        rows: [num_rows, dimensions] float32.
    """
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.clamp_min(MIN_NORM)
