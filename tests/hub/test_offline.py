"""OP-18: offline, local paths, incomplete folders and full disks; each says what is the matter."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from hub.conftest import MODEL


def test_OP_18_offline_a_cached_model_is_found_and_no_network_is_tried(hub, resolved, model_files):
    commit = hub.commit(MODEL, model_files, "main", "v1")
    resolved(MODEL)
    hub.asked.clear()
    for revision in (None, "main", commit):
        found = resolved(MODEL, {"revision": revision}, HF_HUB_OFFLINE="1")
        assert (found["revision"], found["log"]) == (commit, "")
    missing = resolved(MODEL, {"revision": "v1"}, HF_HUB_OFFLINE="1")["error"]
    assert missing.startswith(
        f"{MODEL} at v1 is not in the local cache, and HF_HUB_OFFLINE forbids"
    )
    assert "flowerbed models pull garden/rose --to FOLDER" in missing
    assert hub.asked == []


def test_OP_18_offline_a_text_only_cache_is_not_taken_for_the_whole_model(
    hub, resolved, model_files
):
    hub.commit(MODEL, model_files)
    resolved(MODEL, {"weights": False})
    assert "revision" in resolved(MODEL, {"weights": False}, HF_HUB_OFFLINE="1")
    error = resolved(MODEL, HF_HUB_OFFLINE="1")["error"]
    assert error.startswith(f"{MODEL} is only in part in the local cache")


def test_a_hub_that_cannot_be_reached_serves_from_the_cache_and_says_so(
    hub, run, flowerbed, resolved, model_files
):
    commit = hub.commit(MODEL, model_files)
    nowhere = "http://127.0.0.1:9"
    error = resolved(MODEL, HF_ENDPOINT=nowhere)["error"]
    assert "is not in the local cache and the hub (127.0.0.1) cannot be reached" in error
    resolved(MODEL)
    done = flowerbed("models", "pull", MODEL, HF_ENDPOINT=nowhere)
    assert done.returncode == 0
    assert f"127.0.0.1 cannot be reached: taking {MODEL} at {commit}, as the cache has it" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space is left in .*hub for garden/rose: make room, or set HF_HOME"),
        (
            errno.EACCES,
            "cannot write to .*hub: set HF_HOME to a folder that this user may write to",
        ),
        (errno.EIO, "downloading garden/rose failed .OSError.: run the same command again"),
    ],
)
def test_a_disk_that_is_full_or_closed_says_so_and_keeps_nothing_half_valid(
    hub, resolved, model_files, tmp_path, monkeypatch, number, message
):
    hub.commit(MODEL, model_files)
    whole = "huggingface_hub.file_download.http_get"

    def fails(url, file, **settings):
        file.write(b"half")
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(whole, fails)
        assert re.search(message, resolved(MODEL)["error"])
    assert [path for path in (tmp_path / "hf").rglob("blobs/*") if path.is_file()] == []
    assert "revision" in resolved(MODEL)


def test_OP_18_what_looks_like_a_path_never_asks_the_hub(hub, resolved):
    for path in ("./garden/rose", "../rose", "/garden/rose", "~/rose", "a/b/c"):
        assert "neither a folder on this machine nor a hub id" in resolved(path)["error"]
    assert hub.asked == []


def test_OP_18_a_snapshot_given_as_a_folder_keeps_its_id(hub, resolved, model_files):
    commit = hub.commit(MODEL, model_files)
    snapshot = resolved(MODEL)["path"]
    hub.asked.clear()
    found = resolved(snapshot)
    assert (found["id"], found["revision"]) == (MODEL, commit)
    assert hub.asked == []


@pytest.mark.parametrize("form", ["cache", "folder"])
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("tokenizer.json", "has no tokenizer.json"),
        ("modules.json", "no modules.json that says in which order|neither modules.json"),
        ("1_Pooling/config.json", "has no 1_Pooling/config.json"),
        ("config.json", "has no config.json"),
        ("model-00002-of-00002.safetensors", "names this shard of the weights"),
        ("model.safetensors.index.json", "their index model.safetensors.index.json is missing"),
    ],
)
def test_OP_18_each_missing_file_has_its_own_message_and_exit_code_1(
    hub, flowerbed, resolved, sharded_files, tmp_path, form, missing, message
):
    files = {**sharded_files, "2_Normalize/config.json": b"{}"}
    hub.commit(MODEL, files)
    snapshot = Path(resolved(MODEL)["path"])
    folder = snapshot
    if form == "folder":
        folder = tmp_path / "plain"
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(files[name])
    (folder / missing).unlink()
    hub.asked.clear()
    done = flowerbed("serve", str(folder), "--port", "0", "--device", "cpu")
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
    assert done.stdout == ""
    assert hub.asked == []
