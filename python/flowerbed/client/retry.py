"""When a refused request is sent again, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass

RETRIED_STATUSES = frozenset({429, 503})
"""The server is full, or has no worker right now. It did no work, so sending again is safe."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently."""

    max_retries: int = 4
    first_delay_s: float = 0.2  # doubles; used where the server names no time
    max_delay_s: float = 10.0  # caps the server's Retry-After too

    def delay_s(self, num_retries: int, retry_after: str | None) -> float:
        """Seconds to wait before retry `num_retries`, counted from 0."""
        asked_s = _seconds(retry_after)
        if asked_s is not None:
            return min(asked_s, self.max_delay_s)
        doubled_s = min(self.first_delay_s * 2.0**num_retries, self.max_delay_s)
        return doubled_s * random.uniform(0.5, 1.0)  # noqa: S311 (spreads clients)


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After as seconds; its form with a date is not used by flowerbed."""
    try:
        seconds = float(retry_after) if retry_after is not None else -1.0
    except ValueError:
        return None
    return seconds if seconds >= 0.0 else None
