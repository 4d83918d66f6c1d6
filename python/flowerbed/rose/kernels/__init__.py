"""Functions on tensors: no weights, no configuration. torch operations on every device.

`X.py` holds the public functions and their torch references; `triton_X.py`, imported only when
`backend.use_triton` says so, holds the same in Triton. Every `@triton.jit` function of a
`triton_X.py` either is named `*_kernel` and has entries in that module's `COMPILE_CASES`
(`dict[str, list[CompileCase]]`, by kernel name), or is called by another one of the module;
`tests/kernels/test_compile.py` compiles all cases for each supported GPU and fails for a kernel that
has none.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class CompileCase(NamedTuple):
    """One way in which a Triton kernel is launched."""

    types: dict[str, str]
    """Type of each run-time argument: `*i32`, `i32`, `fp32`, ...; `*x` points to the activations'
    dtype and is compiled for bf16, fp16 and fp32."""
    constexprs: dict[str, Any]
    """Value of each constexpr argument."""
    options: dict[str, Any] | None = None
    """Launch options, such as num_warps."""
    min_capability: tuple[int, int] = (8, 0)
    """Compute capability from which on it is launched."""
