"""Fetches a model from the Hugging Face hub into that library's cache.

Data only: never pickles and never code. Each way to fail has a message of its own that says what to do;
the token is in none of them. Knows nothing of what the files mean. Called by `flowerbed.hub`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from flowerbed import hub_cache
from flowerbed.errors import ModelError
from flowerbed.hub_progress import Meter, Progress

log = logging.getLogger("flowerbed.hub")

TEXT_PATTERNS = ("*.json", "*.txt")
"""All that a gateway needs: configurations and tokenizer."""
WEIGHT_PATTERNS = ("model.safetensors", "*/model.safetensors")
"""Weights in one file; shards are fetched by the names that their index lists."""
SKIPPED_PATTERNS = ("onnx/*", "openvino/*")
"""Exports for other engines, often larger than the model."""

_MAX_INDEX_BYTES = 16 << 20
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def download(
    model: str, revision: str | None, *, weights: bool = True, progress: Progress | None = None
) -> Path:
    """Folder of the snapshot, named by its commit; what is cached already is not fetched again.

    Args:
        model: Hub id.
        revision: Branch, tag or commit; None for the default branch.
        weights: False fetches configurations and tokenizer only.
        progress: Told the bytes fetched; None writes log lines instead.

    Raises:
        ModelError: The model cannot be had; the message says why and what to do.
    """
    # The import costs 0.3 s, and folders do not need it.
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub import logging as hub_logging
    from huggingface_hub.errors import HFValidationError

    hub_logging.set_verbosity_error()  # its warnings quote signed addresses
    constants.HF_HUB_DISABLE_TELEMETRY = True
    meter = Meter(model, progress)
    offline = hub_cache.is_offline()
    snapshot_download = cast("Any", huggingface_hub).snapshot_download

    def fetch(wanted: str | None, patterns: list[str]) -> Path:
        path: str = snapshot_download(
            model,
            revision=wanted,
            allow_patterns=patterns,
            ignore_patterns=list(SKIPPED_PATTERNS),
            tqdm_class=meter.bar_class(),
            local_files_only=offline,
        )
        return Path(path)

    try:
        path = fetch(revision, list(TEXT_PATTERNS))
        if not meter.was_online and not offline:
            cannot = "%s cannot be reached: taking %s at %s, as the cache has it"
            log.warning(cannot, _host(), model, path.name)
        if weights:
            patterns = [*TEXT_PATTERNS, *WEIGHT_PATTERNS, *_shards(path)]
            path = fetch(path.name, patterns)
    except HFValidationError:
        raise ModelError(
            f"{model} is neither a folder on this machine nor a hub id of the form owner/name"
        ) from None
    except OSError as error:  # the hub library's errors are OSErrors too
        raise ModelError(_explain(error, model, revision)) from error
    except Exception as error:
        if not type(error).__module__.startswith(("httpx2", "huggingface_hub", "hf_xet")):
            raise
        raise ModelError(_failed(model, error)) from error
    meter.finish(path.name)
    return path


def has_token() -> bool:
    """Whether HF_TOKEN or the hub library's store holds a token. Its value stays there.

    The library itself is not asked: it may refresh a token over the network.
    """
    from huggingface_hub import constants

    if any(os.environ.get(name, "").strip() for name in _TOKEN_VARIABLES):
        return True
    try:
        return Path(constants.HF_TOKEN_PATH).read_text(encoding="utf-8").strip() != ""
    except (OSError, UnicodeDecodeError):
        return False


def _shards(folder: Path) -> list[str]:
    """Exact names, as patterns, of the files that the weight indexes list.

    A damaged index lists none here: whoever reads the folder says what is wrong with it.
    """
    names: set[str] = set()
    for index in folder.rglob("model.safetensors.index.json"):
        prefix = index.parent.relative_to(folder)
        try:
            if index.stat().st_size > _MAX_INDEX_BYTES:
                continue
            files = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        names |= {
            (prefix / name).as_posix()
            for name in files
            if isinstance(name, str) and name.endswith(".safetensors")
        }
    return sorted(
        name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") for name in names
    )


def _explain(error: OSError, model: str, revision: str | None) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = model if revision is None else f"{model} at {revision}"
    token = has_token()
    if isinstance(error, GatedRepoError):
        who = "with the account of the token in use" if token else "then set HF_TOKEN"
        return f"the hub wants its terms for {model} accepted: do so on its page, {who}"
    if isinstance(error, RepositoryNotFoundError):
        who = "the token in use may not read it" if token else "it is private"
        return (
            f"the hub has no model {model}, or {who}: check the name, or set HF_TOKEN to a token that "
            "may read it"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"the hub's model {model} has no revision {revision!r}; its page lists branches and tags"
    if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        return _unreachable(error, what, model)
    if isinstance(error, HfHubHTTPError):
        return _refused(error.response.status_code, model, error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space is left in {hub_cache.root()} for {model}: make room, or set HF_HOME to a folder "
            "on another disk; what is complete is kept"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"cannot write to {hub_cache.root()}: set HF_HOME to a folder that this user may write to"
    return _failed(model, error)


def _unreachable(error: OSError, what: str, model: str) -> str:
    from huggingface_hub.errors import HfHubHTTPError, IncompleteSnapshotError

    is_partial = isinstance(error, IncompleteSnapshotError)
    state = "only in part in" if is_partial else "not in"
    elsewhere = (
        f"`flowerbed models pull {model} --to FOLDER` on a connected machine, and give FOLDER"
    )
    if hub_cache.is_offline():
        return (
            f"{what} is {state} the local cache, and HF_HUB_OFFLINE forbids to fetch it: unset it once, "
            f"or run {elsewhere}"
        )
    if isinstance(error.__cause__, HfHubHTTPError):
        return _refused(error.__cause__.response.status_code, model, error.__cause__)
    return (
        f"{what} is {state} the local cache and the hub ({_host()}) cannot be reached: check the network "
        f"and HF_ENDPOINT, or run {elsewhere}"
    )


def _refused(status: int, model: str, error: Exception) -> str:
    if status == 401:
        return (
            "the hub does not know the token in use: make a new one on its page of access tokens and set "
            "HF_TOKEN"
        )
    if status == 403:
        return (
            f"the token in use may not read {model}: give it that right, or set HF_TOKEN to another"
        )
    if status == 429:
        return (
            "the hub takes no more requests from here for now: wait some minutes, or set HF_TOKEN"
        )
    if status >= 500:
        return f"the hub ({_host()}) answers {status}: try again later"
    return _failed(model, error)


def _failed(model: str, error: Exception) -> str:
    return (
        f"downloading {model} failed ({type(error).__name__}): run the same command again; what is "
        "complete is kept"
    )


def _host() -> str:
    from huggingface_hub import constants

    parts = urlsplit(constants.ENDPOINT)
    return parts.hostname or "no host"
