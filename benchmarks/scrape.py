"""Reads Prometheus text: sums of counters, and what histograms grew by between two scrapes."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? ([-+.\w]+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of one scrape: (name, labels, value)."""

    samples: tuple[tuple[str, dict[str, str], float], ...]

    @classmethod
    def of(cls, address: str) -> Scrape:
        """Asks a running server."""
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
            return cls.parse(answer.read().decode())

    @classmethod
    def parse(cls, text: str) -> Scrape:
        """Reads the text format; comments are skipped."""
        found = (_SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
        return cls(
            tuple(
                (match[1], dict(_LABEL.findall(match[2] or "")), float(match[3]))
                for match in found
                if match
            )
        )

    def total(self, name: str, **labels: str) -> float:
        """Sum over the samples that carry these labels."""
        return sum(
            value
            for found, theirs, value in self.samples
            if found == name and labels.items() <= theirs.items()
        )

    def mean_since(self, before: Scrape, name: str, **labels: str) -> float:
        """Mean of what a histogram took since `before`; 0 if nothing."""
        count = self.total(f"{name}_count", **labels) - before.total(f"{name}_count", **labels)
        total = self.total(f"{name}_sum", **labels) - before.total(f"{name}_sum", **labels)
        return total / count if count else 0.0
