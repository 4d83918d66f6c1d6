"""Where and with what a figure was measured. Stands beside every row of a benchmark."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from flowerbed.machine import gpu_names

_PACKAGES = ("torch", "triton", "numpy", "tokenizers")


def describe() -> dict[str, str | int]:
    """Processor, GPUs, versions and commit of this run."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": ", ".join(gpu_names()) or "none",
        "python": platform.python_version(),
        "commit": _commit(),
        "core": _core_profile(),
        **{name: version(name) for name in ("flowerbed", *_PACKAGES)},
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def _core_profile() -> str:
    try:
        from flowerbed import _core
    except ImportError:
        return "not built"
    return _core.build_info()["profile"]


def version(package: str) -> str:
    """Of an installed distribution, or `not installed`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
