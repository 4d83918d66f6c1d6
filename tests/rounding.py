"""How far a kernel may be from its reference in fp32."""

from __future__ import annotations

import torch

DTYPES = {
    # The interpreter truncates bfloat16.
    "cpu": (torch.float32, torch.float16),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}
FP32_ERROR = 2e-6
"""Of sums, approximate divisions and powers, relative and absolute; values in tests are about 1."""


def assert_rounded_once(found, expected):
    """found is expected, [any] float32, computed to a few bits of fp32 and rounded to found's dtype."""
    assert expected.dtype == torch.float32
    assert found.shape == expected.shape
    info = torch.finfo(found.dtype)
    unit = info.eps / 2 if found.dtype != torch.float32 else 0.0
    error = (found.cpu().double() - expected.double()).abs()
    limit = expected.double().abs() * (1.001 * unit + FP32_ERROR) + FP32_ERROR
    assert torch.isfinite(error).all()
    worst = (error / limit).max().item()
    assert worst <= 1, f"{worst:.2f} times the rounding of {found.dtype}"
