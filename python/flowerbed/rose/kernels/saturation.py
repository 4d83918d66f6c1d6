"""float16 ends at 65,504: what models of wider formats have beyond it is read as the largest value.

Infinities of a product's sums are such values, too; what is no number stays none, so that damage shows. Knows no
models. Called by the other files of `kernels`.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT16_MAX = torch.finfo(torch.float16).max


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x, within the range of float16 if `dtype`, which it has or is about to be rounded to, is that.

    Args:
        x: Any shape and float dtype; returned itself where nothing is to do.
        dtype: Of the values that follow.
    """
    return x.clamp(-FLOAT16_MAX, FLOAT16_MAX) if dtype == torch.float16 else x
