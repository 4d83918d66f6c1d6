"""Who used the processor while something was measured: ours, and everybody else's share."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of processor time up to one moment."""

    at: float
    machine_s: float
    ours_s: float

    @classmethod
    def now(cls, root_pid: int) -> Usage:
        """Of the machine, and of `root_pid` with its children."""
        return cls(time.monotonic(), _machine_s(), sum(map(_process_s, _tree(root_pid))))

    def others_since(self, before: Usage, client_s: float) -> float:
        """Cores that neither the server nor the load generator used; many make a figure void."""
        used_s = self.machine_s - before.machine_s
        ours_s = self.ours_s - before.ours_s + client_s
        return max(0.0, used_s - ours_s) / (self.at - before.at)


def by_thread(pid: int) -> dict[str, float]:
    """Seconds of processor time of a process's threads up to now; those named alike but for a number are one."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip().rstrip("0123456789").rstrip("-")
        found[name] = found.get(name, 0.0) + _seconds(task / "stat")
    return found


def _machine_s() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = fields
    return (user + nice + system + irq + softirq) / _TICKS


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _tree(int(child)))]


def _process_s(pid: int) -> float:
    return _seconds(Path(f"/proc/{pid}/stat"))


def _seconds(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
