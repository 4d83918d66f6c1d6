"""Pulls models for machines without a network, and checks that what was pulled is still the same.

Called by `flowerbed models`. Knows nothing of what the files mean.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from flowerbed import hub, hub_cache, manifest
from flowerbed.errors import ModelError
from flowerbed.hub_download import SKIPPED_PATTERNS, TEXT_PATTERNS, download
from flowerbed.hub_progress import Progress
from flowerbed.manifest import Difference, Manifest


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared, and what of it is not as it should be."""

    id: str
    revision: str
    path: Path
    num_files: int
    differences: tuple[Difference, ...]


def pull(
    model: str, revision: str | None, to: Path | None = None, *, progress: Progress | None = None
) -> tuple[Path, Manifest]:
    """Downloads a model, checks every file against the hub's hash, and records them in a manifest.

    Args:
        model: Hub id.
        revision: Branch, tag or commit; None for the default branch.
        to: A new or empty folder that gets a copy without links; None leaves it in the hub's cache.
        progress: Told the bytes of the download.

    Returns:
        The folder and its manifest.

    Raises:
        ModelError: The model cannot be had, is damaged, or the folder is in use.
    """
    if Path(model).expanduser().is_dir():
        raise ModelError(f"{model} is a folder on this machine; pull takes a hub id")
    if to is not None and to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ModelError(f"{to} exists and is not an empty folder: choose another for --to")
    snapshot = download(model, revision, progress=progress)
    _refuse_damaged(model, snapshot)
    names = [name for name in manifest.names_in(snapshot) if _is_fetched(name)]
    if not any(name.endswith(".safetensors") for name in names):
        raise ModelError(
            f"{model} at {snapshot.name} has no weights in safetensors, and other formats are not fetched: "
            "convert them (load and save the model with transformers)"
        )
    recorded = manifest.build(snapshot, model, snapshot.name, names)
    if to is None:
        manifest.write(snapshot, recorded)
        return snapshot, recorded
    _copy(snapshot, recorded, to)
    return to, recorded


def verify(model: str | None, revision: str | None = None) -> Verified:
    """Reads every file of a pulled model again. Never touches the network.

    Args:
        model: A folder with a manifest, the hub id of a cached model, or None for the packaged default,
            which its id means too where the cache lacks it.
        revision: Of a hub id.

    Raises:
        ModelError: There is nothing to compare, or nothing to compare with.
    """
    if model is None:
        return _verify_default()
    folder = Path(model).expanduser()
    if folder.is_dir():
        pulled = manifest.read(folder)
        if pulled is None:
            raise ModelError(
                f"{model} has no {manifest.NAME}, so there is nothing to compare it with: "
                "`flowerbed models pull ID --to FOLDER` writes one"
            )
        in_cache = hub_cache.model_of_snapshot(folder) is not None
        found = manifest.compare(folder, pulled, counts_as_extra=_is_fetched if in_cache else _any)
        return Verified(pulled.id, pulled.commit, folder, len(pulled.files), tuple(found))
    cached = hub_cache.find(model, revision)
    if cached is None and _is_packaged(model, revision):
        return _verify_default()
    if cached is None:
        what = model if revision is None else f"{model} at {revision}"
        raise ModelError(
            f"{what} is neither a folder nor in the hub's cache: run `flowerbed models pull {model}`"
        )
    pulled = manifest.read(cached.path)
    names = manifest.names_in(cached.path)
    found = hub_cache.damaged_files(cached.path)
    if pulled is not None:
        recorded = manifest.compare(cached.path, pulled, counts_as_extra=_is_fetched)
        found = [*recorded, *(d for d in found if d.file not in {r.file for r in recorded})]
        names = list(pulled.files)
    return Verified(cached.id, cached.commit, cached.path, len(names), tuple(found))


def _is_packaged(model: str, revision: str | None) -> bool:
    """Whether this is how `flowerbed models list` names the packaged model."""
    return model == hub.DEFAULT_MODEL_ID and revision in (None, hub.DEFAULT_PACKAGE_VERSION)


def _verify_default() -> Verified:
    found = tuple(hub.packaged_differences())
    path, revision = hub.packaged_folder(), hub.DEFAULT_PACKAGE_VERSION
    return Verified(hub.DEFAULT_MODEL_ID, revision, path, len(hub.DEFAULT_SHA256), found)


def _refuse_damaged(model: str, snapshot: Path) -> None:
    damaged = hub_cache.damaged_files(snapshot)
    for difference in damaged:
        hub_cache.drop(snapshot, difference.file)
    if damaged:
        raise ModelError(
            f"{model} at {snapshot.name}: {damaged[0].file} is not what the hub says it is, and was removed "
            "from the cache: run the same command again"
        )


def _copy(snapshot: Path, recorded: Manifest, to: Path) -> None:
    """Copies beside `to` first: a folder of that name is whole or not there."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
        try:
            part.chmod(0o755)
            for name in recorded.files:
                target = part / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(snapshot / name, target)
            manifest.write(part, recorded)
            damaged = manifest.compare(part, recorded, counts_as_extra=_any)
            if damaged:
                raise ModelError(f"{to.parent} does not keep what is written: {damaged[0]}")
            part.replace(to)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"cannot write to {to}: {error.strerror}") from error


def _is_fetched(name: str) -> bool:
    """Whether a file of this name is one that pull fetches; other tools share the hub's cache."""
    is_skipped = any(fnmatch(name, pattern) for pattern in SKIPPED_PATTERNS)
    return not is_skipped and any(fnmatch(name, p) for p in (*TEXT_PATTERNS, "*.safetensors"))


def _any(_name: str) -> bool:
    return True
