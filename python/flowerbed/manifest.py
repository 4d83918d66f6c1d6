"""`flowerbed-manifest.json`: what a pulled model is, and the hash of each of its files.

It lets a plain folder keep the id and the commit that it came with, and shows what was altered since.
A manifest is hostile input like the folder it lies in. Called by `flowerbed.hub` and `flowerbed.pull`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from flowerbed.errors import ModelError
from flowerbed.folder_files import FolderFiles, JsonObject, setting

NAME = "flowerbed-manifest.json"
FORMAT = 1

_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file was when it was pulled."""

    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a folder holds."""

    id: str
    commit: str
    files: Mapping[str, FileRecord]  # by their names inside the folder
    created: str  # ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that is not as it was recorded."""

    kind: Literal["missing", "changed", "extra"]
    file: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}" + (f" ({self.detail})" if self.detail else "")


def build(folder: Path, model_id: str, commit: str, names: list[str]) -> Manifest:
    """Hashes the files `names` of `folder`."""
    files = FolderFiles(folder)
    records: dict[str, FileRecord] = {}
    for name in sorted(names):
        size = files.need(name, "it was to be recorded").stat().st_size
        records[name] = FileRecord(size, files.sha256(name))
    created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Manifest(model_id, commit, records, created)


def write(folder: Path, manifest: Manifest) -> None:
    """Puts the manifest into the folder, whole or not at all.

    Raises:
        ModelError: The folder cannot be written to.
    """
    values = {
        "format": FORMAT,
        "id": manifest.id,
        "commit": manifest.commit,
        "created": manifest.created,
        "files": {
            name: {"size": record.size, "sha256": record.sha256}
            for name, record in manifest.files.items()
        },
    }
    part = folder / f".{NAME}.{os.getpid()}"
    try:
        part.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        part.replace(folder / NAME)
    except OSError as error:
        raise ModelError(f"cannot write {NAME} into {folder}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def read(folder: Path) -> Manifest | None:
    """The manifest of a folder; None if it has none.

    Raises:
        ModelError: It is not what `write` writes.
    """
    values = FolderFiles(folder).json_object(NAME)
    if values is None:
        return None
    if values.get("format") != FORMAT:
        raise ModelError(f"{NAME}: format {values.get('format')!r:.40} is not known, only {FORMAT}")
    model_id, commit = (setting(NAME, values, key, str, "") for key in ("id", "commit"))
    if not _ID.fullmatch(model_id) or not _COMMIT.fullmatch(commit):
        raise ModelError(
            f"{NAME}: id or commit is not one of a hub: {model_id!r:.80}, {commit!r:.80}"
        )
    listed: JsonObject = setting(NAME, values, "files", dict, {})
    records = {name: _record(name, entry) for name, entry in listed.items()}
    return Manifest(model_id, commit, records, setting(NAME, values, "created", str, ""))


def check_sizes(folder: Path, manifest: Manifest, *, weights: bool) -> None:
    """Refuses a folder whose files cannot be those of the manifest, without reading them.

    Args:
        folder: Where the files lie.
        manifest: What they should be.
        weights: False if the weights are not used and may be missing.

    Raises:
        ModelError: A file is missing, or has another size.
    """
    files = FolderFiles(folder)
    for name, record in manifest.files.items():
        path = files.path(name)
        if path is None and not weights and name.endswith(".safetensors"):
            continue
        if path is None or path.stat().st_size != record.size:
            state = "missing" if path is None else "altered"
            raise ModelError(
                f"file {name} is {state}, so the folder is not {manifest.id} at {manifest.commit} as its "
                f"{NAME} says: pull it again, or remove {NAME} to serve the folder under its own name"
            )


def compare(
    folder: Path, manifest: Manifest, *, counts_as_extra: Callable[[str], bool]
) -> list[Difference]:
    """Reads every file and names those that are not as recorded.

    Args:
        folder: Where the files lie.
        manifest: What they should be.
        counts_as_extra: Whether an unrecorded file of this name is a difference.
    """
    files = FolderFiles(folder)
    found: list[Difference] = []
    for name, record in manifest.files.items():
        path = files.path(name)
        if path is None:
            found.append(Difference("missing", name))
        elif (size := path.stat().st_size) != record.size:
            found.append(Difference("changed", name, f"{size:,} bytes, not {record.size:,}"))
        elif (digest := files.sha256(name)) != record.sha256:
            found.append(Difference("changed", name, f"sha256 {digest}, not {record.sha256}"))
    found += [
        Difference("extra", name)
        for name in names_in(folder)
        if name not in manifest.files and counts_as_extra(name)
    ]
    return found


def names_in(folder: Path) -> list[str]:
    """Names of all files of a folder but the manifest, relative to it; broken links included."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.name != NAME
    )


def git_sha1(path: Path) -> str:
    """Name that git gives to a file's contents, in hexadecimal digits."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _record(name: str, entry: Any) -> FileRecord:
    values = cast("JsonObject", entry) if isinstance(entry, dict) else {}
    size, sha256 = values.get("size"), values.get("sha256")
    if type(size) is not int or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ModelError(f"{NAME}: file {name!r:.80} should have a size and a sha256")
    return FileRecord(size, sha256)
