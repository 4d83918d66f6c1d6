"""The default budget of a step, by what `flowerbed doctor --measure` found on this machine, if it did.

A knee belongs to a device, a model's space, its attention and the versions that computed it; under any
other of these it is not used. Kept in the user's cache, never fetched. Called by the worker and by `flowerbed.doctor`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from flowerbed import machine
from flowerbed.config import (
    CPU_BATCH_TOKENS,
    CPU_SATURATION_BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    GPU_ONE_STREAM_BATCH_TOKENS,
    GPU_SATURATION_BATCH_TOKENS,
    MIN_SPIN_CORES,
    SPIN_MS,
)

log = logging.getLogger(__name__)

FORMAT = 2
MAX_KNEE_TOKENS = 1 << 20
_MAX_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a knee was measured under."""

    device: str  # name of the processor or GPU, and threads
    space: str  # the model, its number format included
    attention: str  # what computed it
    flowerbed: str
    torch: str


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest step that is nearly as efficient as the best one."""

    conditions: Conditions
    model: str
    tokens: int
    tokens_per_second: float  # of whole steps of that size
    measured: str  # ISO 8601, UTC


def conditions(device: str, space: str, attention: str) -> Conditions:
    """Those of this process.

    Args:
        device: cpu, cuda or cuda:N.
        space: Of the model that it runs.
        attention: `Engine.attention`.
    """
    versions = _version("flowerbed"), _version("torch")
    return Conditions(device_name(device), space, str(attention), *versions)


def device_name(device: str) -> str:
    """The device by what moves its speed: `Xeon 8480, 2 threads` or `NVIDIA H200`."""
    if device == "cpu":
        return f"{machine.cpu_name()}, {machine.num_threads()} threads"
    index = int(device.partition(":")[2] or 0)
    names = machine.gpu_names()
    return names[index] if index < len(names) else device


def default_budget(device: str, space: str, attention: str, streams: Sequence[str]) -> int:
    """Tokens of a step where nobody set them: `budget` of the measured knee, if there is one.

    Args:
        device: cpu, cuda or cuda:N.
        space: Of the model that it runs.
        attention: `Engine.attention`.
        streams: `Engine.streams`.
    """
    found = find(conditions(device, space, attention))
    return budget(device, streams, None if found is None else found.tokens)


def budget(device: str, streams: Sequence[str], knee_tokens: int | None) -> int:
    """Tokens of a step of other work while queries come.

    Where queries share its stream they wait for it, so that it is as short as it may be: the knee, and the
    default only until that is measured. Where they have a stream of their own they hardly wait, and the
    default is for throughput, beyond the knee of an H200: a knee can raise it, never lower it.

    Args:
        device: cpu, cuda or cuda:N.
        streams: `Engine.streams`; whether queries have one of their own.
        knee_tokens: As measured, or None.
    """
    if "online" in streams:
        return max(GPU_BATCH_TOKENS, knee_tokens or 0)
    return knee_tokens or (CPU_BATCH_TOKENS if device == "cpu" else GPU_ONE_STREAM_BATCH_TOKENS)


def default_saturation(device: str) -> int:
    """Tokens of a step of bulk work alone, where nobody set them."""
    return CPU_SATURATION_BATCH_TOKENS if device == "cpu" else GPU_SATURATION_BATCH_TOKENS


def default_spin(device: str, num_gpus: int) -> int:
    """Milliseconds for which threads stay awake after a query, where nobody set them.

    Args:
        device: cpu, cuda or cuda:N.
        num_gpus: That share this machine's cores.
    """
    is_wide = machine.num_cores() >= MIN_SPIN_CORES * num_gpus
    return SPIN_MS if device != "cpu" and is_wide else 0


def find(wanted: Conditions) -> Knee | None:
    """The knee that was measured under just these conditions."""
    return next((knee for knee in stored() if knee.conditions == wanted), None)


def stored() -> list[Knee]:
    """All knees of the cache, the latest first; a damaged cache has none."""
    try:
        values = json.loads(cache_file().read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            return []
        return [_knee(entry) for entry in values["knees"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        log.warning("%s cannot be used, so the default budget is: %s", cache_file(), error)
        return []


def store(knee: Knee) -> Path:
    """Puts a knee in front of the others, in place of an older one of the same conditions.

    Raises:
        OSError: The cache cannot be written.
    """
    others = [other for other in stored() if other.conditions != knee.conditions]
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"format": FORMAT, "knees": [asdict(k) for k in [knee, *others][:_MAX_ENTRIES]]}
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def cache_file() -> Path:
    """`flowerbed/knees.json` in XDG_CACHE_HOME or ~/.cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path is to be ignored.
    home = Path(given) if given.startswith("/") else Path("~/.cache").expanduser()
    return home / "flowerbed" / "knees.json"


def _knee(entry: Any) -> Knee:
    values: dict[str, Any] = {**entry, "conditions": Conditions(**entry["conditions"])}
    knee = Knee(**values)
    if type(knee.tokens) is not int or not 0 < knee.tokens <= MAX_KNEE_TOKENS:
        raise ValueError(f"a knee of {knee.tokens!r:.40} tokens")
    return knee


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
