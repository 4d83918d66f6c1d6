"""The lines on stdout that say how far a start is. Written and read here only.

`flowerbed is ready at http://127.0.0.1:8000 (model BAAI/bge-small-en, device cpu)`

Scripts wait for it, and so does the supervisor for its children's. A worker under a supervisor
also says how much of the weights it has loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"flowerbed(?P<part> gateway| worker)? (is ready|listens) at (?P<address>\S+) \((?P<facts>.*)\)"
)

_LOADED = re.compile(r"flowerbed worker has loaded (\d+) of (\d+) bytes")


@dataclass(frozen=True, slots=True)
class Ready:
    """A process that listens. A gateway may still be waiting for its workers."""

    part: str  # gateway, worker, or empty for the whole
    address: str  # http://host:port, host:port or unix:path
    facts: str  # `model …, device …`

    def __str__(self) -> str:
        part = f" {self.part}" if self.part else ""
        state = "listens" if self.part == "gateway" else "is ready"
        return f"flowerbed{part} {state} at {self.address} ({self.facts})"


@dataclass(frozen=True, slots=True)
class Loaded:
    """How far a worker is with the weights."""

    num_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        return f"flowerbed worker has loaded {self.num_bytes} of {self.total_bytes} bytes"


def parse_loaded(line: str) -> Loaded | None:
    """Reads a line of a worker's stdout; None if it is about something else."""
    match = _LOADED.fullmatch(line.strip())
    return Loaded(int(match[1]), int(match[2])) if match else None


def parse(line: str) -> Ready | None:
    """Reads a line of a child's stdout; None if it is about something else."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    return Ready((match["part"] or "").strip(), match["address"], match["facts"])
