"""Triton's kernels on a GPU, or interpreted on a machine without one."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Read when triton is imported, which nothing of the tests before this folder's does.
    os.environ["TRITON_INTERPRET"] = "1"

DEVICES = [
    pytest.param("cpu", id="interpreted"),
    pytest.param("cuda", id="gpu", marks=pytest.mark.gpu),
]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Threads that spin at a barrier make tests ten times slower beside other work."""
    torch.set_num_threads(1)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest):
    """Where the Triton kernels of a test run."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("with a GPU kernels are compiled, not interpreted")
    with np.errstate(all="ignore"):  # the interpreter computes in numpy
        yield torch.device(request.param)
