"""Shared fixtures: the packaged model and real texts, neither of which needs a network."""

from __future__ import annotations

import ast
import signal
import sysconfig
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from flowerbed.hub import resolve

# A server that inherits an ignored SIGHUP, as from nohup, keeps ignoring it; tests send it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

TEXT_SOURCES = (
    "argparse",
    "decimal",
    "statistics",
    "tarfile",
    "turtle",
    "typing",
    "uuid",
)
MORE_TEXT_SOURCES = (
    "ast", "calendar", "codecs", "configparser", "datetime", "difflib", "doctest", "fractions",
    "functools", "inspect", "ipaddress", "mailbox", "optparse", "pdb", "pickletools", "random",
    "shutil", "smtplib", "socket", "ssl", "subprocess", "threading",
)  # fmt: skip
MAX_TOKENS = 512
NUM_TEXTS = 200


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """Folder of the packaged all-MiniLM-L6-v2."""
    return resolve(None).path


@pytest.fixture(scope="session")
def real_texts(minilm_folder: Path) -> list[str]:
    """200 different texts of the standard library's docstrings, spread over 3 to 512 tokens."""
    by_length = _texts_by_length(minilm_folder, TEXT_SOURCES)
    lengths = sorted(by_length)
    return [
        by_length[lengths[i * (len(lengths) - 1) // (NUM_TEXTS - 1)]][0] for i in range(NUM_TEXTS)
    ]


@pytest.fixture(scope="session")
def many_real_texts(minilm_folder: Path) -> list[str]:
    """1,000 of them, from more modules."""
    by_length = _texts_by_length(minilm_folder, (*TEXT_SOURCES, *MORE_TEXT_SOURCES))
    rounds = zip_longest(*(by_length[length] for length in sorted(by_length)))
    return [text for texts in rounds for text in texts if text is not None][:1_000]


def _texts_by_length(folder: Path, modules: Iterable[str]) -> dict[int, list[str]]:
    """Different texts by their number of tokens, 3 to 512."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    docstrings: list[str] = []
    for module in modules:
        source = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstrings.append(ast.get_docstring(node) or "")
    docstrings = sorted(filter(None, set(docstrings)))
    # Neighbours joined give the long texts, single words the short ones.
    texts = [text.split()[0] for text in docstrings[::8]]
    for size in (1, 3, 9):
        texts += [" ".join(docstrings[at : at + size]) for at in range(0, len(docstrings), size)]
    by_length: dict[int, list[str]] = {}
    for text in dict.fromkeys(texts):
        by_length.setdefault(len(tokenizer.encode(text).ids), []).append(text)
    return {length: texts for length, texts in by_length.items() if length <= MAX_TOKENS}
