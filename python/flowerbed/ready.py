"""The one line on stdout that says where a process listens. Written and read here only.

`flowerbed is ready at http://127.0.0.1:8000 (model all-MiniLM-L6-v2, device cpu)`

Scripts wait for it, and so does the supervisor for its children's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"flowerbed(?P<part> gateway| worker)? is ready at (?P<address>\S+) \((?P<facts>.*)\)")


@dataclass(frozen=True, slots=True)
class Ready:
    """A process that listens."""

    part: str  # gateway, worker, or empty for the whole
    address: str  # http://host:port, host:port or unix:path
    facts: str  # `model …, device …`

    def __str__(self) -> str:
        part = f" {self.part}" if self.part else ""
        return f"flowerbed{part} is ready at {self.address} ({self.facts})"


def parse(line: str) -> Ready | None:
    """Reads a line of a child's stdout; None if it is about something else."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    return Ready((match["part"] or "").strip(), match["address"], match["facts"])
