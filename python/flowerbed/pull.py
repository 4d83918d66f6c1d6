"""Pulls models for machines without a network, and checks that what was pulled is still the same.

Called by `flowerbed models`. Knows nothing of what the files mean.
"""

from __future__ import annotations

import hashlib
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

DEFAULT_SHA256 = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": (
        "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
    ),
    "model.safetensors": hub.DEFAULT_WEIGHTS_SHA256,
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
}
"""Of those files of the packaged model that are read."""


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
    model = hub.resolve(None, weights=False)
    found: list[Difference] = []
    for name, expected in DEFAULT_SHA256.items():
        path = model.path / name
        if not path.is_file():
            found.append(Difference("missing", name))
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected:
            found.append(Difference("changed", name, f"sha256 {digest}, not {expected}"))
    return Verified(model.id, model.revision, model.path, len(DEFAULT_SHA256), tuple(found))


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
