"""Words that name devices, and which of them this machine has. Knows nothing of torch."""

from __future__ import annotations

import ctypes
import os
import re

from flowerbed.errors import ConfigError, DeviceError

ALLOWED = "auto, cpu, cuda (all GPUs) or a list such as cuda:0 or cuda:0,1"
MAX_WORKERS_PER_CORE = 4
"""Two serve one core without a gap when they are restarted in turn; many more are a mistake of the caller's."""
_WORD = re.compile(r"auto|cpu|cuda(:\d+(,\d+)*)?")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def check(word: str) -> str:
    """Returns `word`.

    Raises:
        ConfigError: it names no device; the message lists what does.
    """
    if not _WORD.fullmatch(word):
        raise ConfigError(f"unknown device {word!r}: allowed are {ALLOWED}")
    indices = word.partition(":")[2].split(",")
    if len(set(indices)) != len(indices):
        raise ConfigError(f"a device is named twice: {word}")
    return word


def expand(word: str) -> tuple[str, ...]:
    """The devices that `word` means here, one a worker: `("cpu",)` or `("cuda:0", "cuda:1")`.

    Raises:
        ConfigError: `word` names no device.
        DeviceError: this machine lacks it.
    """
    check(word)
    if word == "cpu":
        return ("cpu",)
    num_gpus = count_gpus()
    if word == "auto" and num_gpus == 0:
        return ("cpu",)
    if num_gpus == 0:
        error = DeviceError(f"no GPU was found for --device {word}")
        error.add_note("`nvidia-smi` shows what the driver sees; --device cpu needs no GPU")
        raise error
    listed = word.partition(":")[2]
    indices = [int(index) for index in listed.split(",")] if listed else list(range(num_gpus))
    missing = [index for index in indices if index >= num_gpus]
    if missing:
        raise DeviceError(
            f"--device {word} names GPU {missing[0]}: GPUs here are 0 to {num_gpus - 1}"
        )
    return tuple(f"cuda:{index}" for index in indices)


def one_a_worker(word: str, num_workers: int | None) -> tuple[str, ...]:
    """The device of each worker: on a CPU some for each core, on GPUs one a device.

    Raises:
        ConfigError: So many workers cannot be had there.
    """
    found = expand(word)
    if num_workers is None or num_workers == len(found):
        return found
    if found == ("cpu",):
        most = MAX_WORKERS_PER_CORE * len(os.sched_getaffinity(0))
        if num_workers > most:
            raise ConfigError(
                f"{num_workers} workers were asked for, but each has a copy of the model, and more than {most} "
                "would only take turns on this machine's cores: ask for fewer"
            )
        return found * num_workers
    raise ConfigError(
        f"{num_workers} workers were asked for, but --device {word} is {len(found)} GPU(s) here and "
        "each has one worker: name as many devices, or leave the number of workers out"
    )


def visible(device: str) -> str:
    """Value of CUDA_VISIBLE_DEVICES with which a child sees `device` as its only one."""
    if device == "cpu":
        return ""
    index = int(device.partition(":")[2])
    inherited = os.environ.get(_VISIBLE)
    return inherited.split(",")[index].strip() if inherited else str(index)


def count_gpus() -> int:
    """GPUs that CUDA shows to this process; zero without a driver. Makes no context on any."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
