"""Real English texts of chosen lengths: the standard library's docstrings, cut by words."""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_MODULES = (
    "argparse", "ast", "calendar", "codecs", "configparser", "datetime", "decimal", "difflib",
    "doctest", "fractions", "functools", "inspect", "ipaddress", "mailbox", "optparse",
    "pdb", "pickletools", "random", "shutil", "smtplib", "socket", "ssl", "statistics",
    "subprocess", "tarfile", "threading", "turtle", "typing", "uuid",
)  # fmt: skip


@cache
def words() -> tuple[str, ...]:
    """All docstrings end to end."""
    return tuple(word for text in _docstrings() for word in text.split())


def queries(count: int, num_words: int = 12, seed: int = 1) -> list[str]:
    """Texts of equal length from different places."""
    source, rng = words(), random.Random(seed)  # noqa: S311 (texts, no secrets)
    starts = rng.sample(range(len(source) - num_words), count)
    return [" ".join(source[start : start + num_words]) for start in starts]


def random_words(count: int, seed: int) -> str:
    """One text of the vocabulary that `random_models.py` gives its tokenizers."""
    rng = random.Random(seed)  # noqa: S311 (texts, no secrets)
    return " ".join(f"w{rng.randrange(20_000)}" for _ in range(count))


def documents(count: int, mean_words: int = 70, seed: int = 2) -> list[str]:
    """Texts of lognormal lengths, as chunks of real documents have."""
    source, rng = words(), random.Random(seed)  # noqa: S311 (texts, no secrets)
    lengths = [max(4, int(mean_words * rng.lognormvariate(-0.125, 0.5))) for _ in range(count)]
    starts = [rng.randrange(len(source) - length) for length in lengths]
    pairs = zip(starts, lengths, strict=True)
    return [" ".join(source[start : start + length]) for start, length in pairs]


def _docstrings() -> Iterator[str]:
    for module in _MODULES:
        path = Path(sysconfig.get_path("stdlib"), f"{module}.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""
