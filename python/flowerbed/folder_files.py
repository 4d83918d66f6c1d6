"""Reads files of a model folder as hostile input: names stay inside it, sizes are bounded.

Knows nothing of what the files mean. Called by `flowerbed.folder`, `flowerbed.folder_text` and
`flowerbed.rose.weights`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import inf
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from flowerbed.errors import ModelError

MAX_JSON_BYTES = 16 << 20
"""Largest configuration or weight index; an index of 100,000 tensors has about 10 MB."""
MAX_TOKENIZER_BYTES = 256 << 20
"""Largest tokenizer.json; those of 250,000 pieces have 17 to 35 MB."""

JsonObject = dict[str, Any]
T = TypeVar("T")


class FolderFiles:
    """The files of one model folder.

    A symbolic link may point inside the folder or, in a hub cache, into the blobs beside the snapshot.
    """

    def __init__(self, root: Path) -> None:
        """Takes the folder; ModelError if there is none."""
        if not root.is_dir():
            raise ModelError(f"{root} is not a folder")
        self.root = root
        real = root.resolve()
        self._allowed = [real]
        if real.parent.name == "snapshots":
            self._allowed.append(real.parent.parent / "blobs")

    def path(self, name: str) -> Path | None:
        """Where file `name` lies; None if there is none. ModelError if it leads out of the folder."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
            raise ModelError(f"file name {name[:200]!r} leads out of the model's folder")
        path = self.root.joinpath(*parts)
        try:
            real = path.resolve()
            is_file, exists = path.is_file(), path.exists()
        except (OSError, RuntimeError) as error:
            raise ModelError(f"file {name[:200]!r} of the model cannot be read: {error}") from error
        if not any(real.is_relative_to(place) for place in self._allowed):
            raise ModelError(f"file {name!r} is a link that leads out of the model's folder")
        if exists and not is_file:
            raise ModelError(f"{name!r} should be a file of the model's folder, and is none")
        return path if exists else None

    def need(self, name: str, why: str) -> Path:
        """Like `path`, but a missing file is a ModelError that says why it is needed."""
        path = self.path(name)
        if path is None:
            raise ModelError(f"the model's folder has no {name}: {why}")
        return path

    def json(self, name: str, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
        """Contents of a JSON file; None if there is no such file."""
        path = self.path(name)
        if path is None:
            return None
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ModelError(f"{name} has more than {max_bytes:,} bytes, too many for its purpose")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{name} is not good JSON: {str(error)[:200]}") from error

    def json_object(self, name: str, *, max_bytes: int = MAX_JSON_BYTES) -> JsonObject | None:
        """Contents of a file that holds one JSON object; None if there is no such file."""
        value = self.json(name, max_bytes=max_bytes)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{name} should hold a JSON object, not {type(value).__name__}")
        return value

    def sha256(self, name: str) -> str:
        """Hash of a file that must exist, in hexadecimal digits."""
        with self.need(name, "its hash is needed").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def setting(where: str, values: JsonObject, name: str, kind: type[T], default: T) -> T:
    """`values[name]`, checked to be a `kind`; `default` if it is absent or null."""
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
        raise ModelError(f"{where}: {name} should be {kind.__name__}, not {str(value)[:80]!r}")
    return value


def positive(where: str, values: JsonObject, name: str) -> int:
    """`values[name]`, which must be there and be a whole number above zero."""
    value = setting(where, values, name, int, 0)
    if value <= 0:
        raise ModelError(
            f"{where}: {name} should be a whole number above 0, not {values.get(name)!r}"
        )
    return value


def positive_number(where: str, values: JsonObject, name: str) -> float:
    """`values[name]`, which must be there and be a finite number above zero."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ModelError(f"{where}: {name} should be a number above 0, not {str(value)[:80]!r}")
    return float(value)


def check_supported(
    where: str, values: JsonObject, supported: Mapping[str, tuple[object, ...]]
) -> None:
    """Refuses a setting whose value is none of those that can be honoured, null or absent."""
    for name, choices in supported.items():
        value = values.get(name)
        if value is not None and value not in choices:
            raise ModelError(
                f"{where}: {name}={str(value)[:80]!r} is not supported; supported: {choices[0]!r}"
            )


def canonical_sha256(value: object) -> str:
    """Hash of a value as JSON with sorted keys and no white space, in hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
