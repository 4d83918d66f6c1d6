"""Every Triton kernel compiles for each GPU that is supported, on a machine without one."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def report(compiled):
    return compiled("compile_kernels.py")


@pytest.mark.timeout(300)  # under a minute where Triton's cache is empty; seconds later
def test_every_kernel_compiles_for_every_gpu(report):
    assert {case["case"]: case["error"] for case in report["results"] if case["error"]} == {}
    assert all(case["bytes"] > 0 for case in report["results"])
    for capability in (80, 90, 100):
        assert any(case["case"].endswith(f"sm_{capability}") for case in report["results"])


@pytest.mark.timeout(300)
def test_no_kernel_lacks_cases_and_no_triton_function_is_unused(report):
    assert report["uncovered"] == []
