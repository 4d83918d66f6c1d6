"""`saturation` in Triton. Called by the other Triton files; adds nothing to kernels of other formats."""

# pyright: reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

COMPILE_CASES: dict[str, list[object]] = {}


@triton.jit
def saturated(values, dtype: tl.constexpr):
    """fp32 values, of any shape; see `saturation.saturated`."""
    if dtype == tl.float16:
        values = tl.clamp(values, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return values
