"""Facts about an installation and what is wrong with it. Called by `flowerbed.doctor`, shown by the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong and how to mend it."""

    level: Literal["error", "warning"]
    what: str
    fix: str = ""


@dataclass(slots=True)
class Report:
    """Facts by topic and name, and what is wrong with them."""

    facts: dict[str, dict[str, Value]] = field(default_factory=dict[str, dict[str, Value]])
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def is_good(self) -> bool:
        """Whether serving would work."""
        return not any(problem.level == "error" for problem in self.problems)

    def add(self, topic: str, **facts: Value) -> None:
        """Facts of a topic, after those it has."""
        self.facts.setdefault(topic, {}).update(facts)

    def error(self, what: str, fix: str = "") -> None:
        """Serving would not work."""
        self.problems.append(Problem("error", what, fix))

    def warn(self, what: str, fix: str = "") -> None:
        """Serving would work, but not as well as it could."""
        self.problems.append(Problem("warning", what, fix))

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        problems = [asdict(problem) for problem in self.problems]
        return {"ok": self.is_good, "problems": problems, "facts": self.facts}
