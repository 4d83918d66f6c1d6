"""The private folder that holds the Unix sockets of one `serve`.

Mode 0700, with a path short enough for a socket address. It goes when its owner ends; one that a
killed owner left is found by its unlocked lock file and removed by the next `serve`.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "flowerbed-"
_LOCK = "owner.lock"
_MAX_BASE_BYTES = 60  # a socket address holds 108 bytes in all
_YOUNG_S = 60.0
"""Younger folders are left alone: their owner may not have locked them yet."""


@contextmanager
def runtime_folder() -> Generator[Path]:
    """Makes the folder, and removes it at the end."""
    base = Path(tempfile.gettempdir())
    if len(str(base).encode()) > _MAX_BASE_BYTES:
        base = Path("/tmp")  # noqa: S108 (mkdtemp: no guessable name, mode 0700)
    _remove_left_behind(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_behind(base: Path) -> None:
    for lock_file in base.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if time.time() - lock_file.stat().st_mtime < _YOUNG_S:
                continue
            with lock_file.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
        except OSError:  # another user's, in use, or just removed
            continue
