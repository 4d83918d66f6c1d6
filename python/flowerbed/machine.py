"""What this machine is: processor, cores, GPUs, limits. Knows nothing of torch or of models.

Called by `flowerbed.knee`, `flowerbed.doctor` and `flowerbed.gateway`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
from pathlib import Path

THREADS_VARIABLE = "OMP_NUM_THREADS"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

_CPU_FEATURES = {  # ours -> as /proc/cpuinfo writes it
    "avx2": "avx2",
    "avx512": "avx512f",
    "avx512_bf16": "avx512_bf16",
    "amx_bf16": "amx_bf16",
    "vnni": "avx512_vnni",
    "avx_vnni": "avx_vnni",
}


MAX_POOLED_BYTES = 1 << 20
_M_MMAP_THRESHOLD = -3


def give_large_buffers_back() -> None:
    """Lets the C library return large buffers to the system when they are freed.

    It would raise the size from which on it does so after each that it returned, up to 32 MB, and keep smaller
    ones in pools of its threads: bodies and answers would hold memory that counts against no limit.
    """
    given = os.environ.get("GLIBC_TUNABLES", "")
    library = ctypes.CDLL(None)
    if "mmap_threshold" not in given and hasattr(library, "mallopt"):  # musl has none
        library.mallopt(_M_MMAP_THRESHOLD, MAX_POOLED_BYTES)


def cpu_name() -> str:
    """Model of the processor."""
    return _cpuinfo("model name") or platform.machine()


def cpu_features() -> dict[str, bool]:
    """Whether the processor has what makes products fast."""
    flags = set(_cpuinfo("flags").split())
    return {name: flag in flags for name, flag in _CPU_FEATURES.items()}


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def num_threads() -> int:
    """Threads that a worker on the CPU computes with: OMP_NUM_THREADS, else one a core."""
    given = os.environ.get(THREADS_VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) > 0 else num_cores()


def gpu_names() -> list[str]:
    """Names of the GPUs that CUDA shows to this process."""
    return [name for name, _ in gpus()]


def gpus() -> list[tuple[str, tuple[int, int]]]:
    """Name and compute capability of each GPU that CUDA shows to this process. Makes no context on any."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found: list[tuple[str, tuple[int, int]]] = []
    for index in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(128)
        is_known = cuda.cuDeviceGet(ctypes.byref(device), index) == 0
        is_known = is_known and cuda.cuDeviceGetName(name, len(name), device) == 0
        major, minor = ctypes.c_int(), ctypes.c_int()
        for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        text = name.value.decode(errors="replace") if is_known else "unknown"
        found.append((text, (major.value, minor.value)))
    return found


def max_open_files() -> int:
    """File descriptors that a process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def why_not_bindable(host: str, port: int) -> OSError | None:
    """Why nothing can listen there; None if something can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None


def bind_hint(error: OSError, *, host_option: str, port_option: str) -> str | None:
    """What to do where nothing can listen; None if the error is about something else."""
    match error.errno:
        case errno.EADDRINUSE:
            return f"another process listens there: choose another with {port_option}"
        case errno.EADDRNOTAVAIL:
            return (
                "this machine has no such address: choose one that `ip address` lists, or 0.0.0.0 for "
                f"all of them, with {host_option}"
            )
        case errno.EACCES:
            return (
                "this user may not: ports below 1024 are for root, and a socket's folder must be "
                f"writable; choose another with {port_option}"
            )
        case _:
            return None


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
