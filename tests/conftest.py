"""Shared fixtures: the packaged model and real texts, neither of which needs a network."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from flowerbed.hub import resolve

TEXT_SOURCES = (
    "argparse",
    "decimal",
    "pathlib",
    "statistics",
    "tarfile",
    "turtle",
    "typing",
    "uuid",
)
MAX_TOKENS = 512
NUM_TEXTS = 200


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """Folder of the packaged all-MiniLM-L6-v2."""
    return resolve(None).path


@pytest.fixture(scope="session")
def real_texts(minilm_folder: Path) -> list[str]:
    """200 different texts of the standard library's docstrings, spread over 3 to 512 tokens."""
    tokenizer = Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    docstrings: list[str] = []
    for module in TEXT_SOURCES:
        source = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstrings.append(ast.get_docstring(node) or "")
    docstrings = sorted(filter(None, set(docstrings)))
    # Neighbours joined give the long texts, single words the short ones.
    texts = [text.split()[0] for text in docstrings[::8]]
    for size in (1, 3, 9):
        texts += [" ".join(docstrings[at : at + size]) for at in range(0, len(docstrings), size)]
    by_length = {len(tokenizer.encode(text).ids): text for text in texts}
    lengths = sorted(length for length in by_length if length <= MAX_TOKENS)
    return [by_length[lengths[i * (len(lengths) - 1) // (NUM_TEXTS - 1)]] for i in range(NUM_TEXTS)]
