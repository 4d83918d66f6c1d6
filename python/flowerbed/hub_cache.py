"""The hub library's cache on this machine, read without any network.

`models--OWNER--NAME/{refs/BRANCH, snapshots/COMMIT/FILE -> ../../blobs/HASH}`: a blob's name is the
hash of its contents. Called by `flowerbed.hub`, `flowerbed.pull` and `flowerbed.doctor`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flowerbed import manifest
from flowerbed.folder_files import FolderFiles

_PREFIX = "models--"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One commit of a model in the cache."""

    id: str
    commit: str
    path: Path
    refs: tuple[str, ...]  # branches and tags that meant this commit when last seen

    def num_bytes(self) -> int:
        """What its files take."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())


def root() -> Path:
    """Folder of the cache: HF_HUB_CACHE, or `hub` in HF_HOME."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids all network."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def find(model: str, revision: str | None) -> CachedModel | None:
    """The commit that `revision` (None: main) of `model` meant when last seen; None if not cached."""
    wanted = revision or "main"
    for cached in _commits(root() / (_PREFIX + model.replace("/", "--"))):
        if wanted == cached.commit or wanted in cached.refs:
            return cached
    return None


def listed() -> list[CachedModel]:
    """Every cached commit that has weights in safetensors."""
    folders = sorted(root().glob(f"{_PREFIX}*"))
    return [
        cached
        for folder in folders
        for cached in _commits(folder)
        if any(cached.path.rglob("*.safetensors"))
    ]


def model_of_snapshot(folder: Path) -> CachedModel | None:
    """What a folder of the cache holds, by its place; None for any other folder."""
    real = folder.resolve()
    home = real.parent.parent
    if real.parent.name != "snapshots" or not home.name.startswith(_PREFIX):
        return None
    return next((cached for cached in _commits(home) if cached.path.resolve() == real), None)


def damaged_files(folder: Path) -> list[manifest.Difference]:
    """Files of a snapshot whose contents are not those that their blob's name promises."""
    files = FolderFiles(folder)
    found: list[manifest.Difference] = []
    for name in manifest.names_in(folder):
        path = files.path(name)
        if path is None:
            found.append(manifest.Difference("missing", name, "a link to nothing"))
            continue
        promised = path.resolve().name
        if _SHA256.fullmatch(promised):
            digest = files.sha256(name)
        elif _GIT_SHA1.fullmatch(promised):
            digest = manifest.git_sha1(path)
        else:  # no link: the cache cannot tell
            continue
        if digest != promised:
            found.append(manifest.Difference("changed", name, f"its hash is {digest}"))
    return found


def drop(folder: Path, name: str) -> None:
    """Removes a file of a snapshot and its blob, so that the next download fetches it again."""
    path = FolderFiles(folder).path(name)
    if path is not None:
        path.resolve().unlink(missing_ok=True)
    (folder / name).unlink(missing_ok=True)


def _commits(home: Path) -> Iterator[CachedModel]:
    model_id = home.name.removeprefix(_PREFIX).replace("--", "/")
    refs: dict[str, list[str]] = {}
    for path in sorted((home / "refs").rglob("*")):
        if path.is_file():
            commit = path.read_text(encoding="utf-8").strip()
            refs.setdefault(commit, []).append(path.relative_to(home / "refs").as_posix())
    for path in sorted((home / "snapshots").glob("*")):
        if path.is_dir():
            yield CachedModel(model_id, path.name, path, tuple(refs.get(path.name, ())))
