"""Triton's kernels on a GPU, or interpreted on a machine without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], Any]:
    """Runs a script of this folder that compiles kernels for GPUs, and reads the JSON that it prints."""

    def run(name: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("TRITON_INTERPRET", None)
        command = [sys.executable, str(Path(__file__).with_name(name))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest):
    """Where the Triton kernels of a test run."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("with a GPU kernels are compiled, not interpreted")
    with np.errstate(all="ignore"):  # the interpreter computes in numpy
        yield torch.device(request.param)
