"""`flowerbed models pull, verify, list` against a hub on loopback."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowerbed import manifest, pull
from flowerbed.errors import ModelError
from hub.conftest import MODEL

FETCHED = [
    "1_Pooling/config.json",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
]


def test_pull_fetches_data_only_and_records_the_sha256_of_every_file(hub, flowerbed, model_files):
    commit = hub.commit(MODEL, model_files)
    done = flowerbed("models", "pull", MODEL)
    assert done.returncode == 0, done.stderr
    summary, folder = done.stdout.splitlines()
    assert summary.startswith(f"{MODEL} at {commit}: 7 files, ")
    assert hub.fetched() == FETCHED
    recorded = json.loads(Path(folder, "flowerbed-manifest.json").read_text())
    assert (recorded["id"], recorded["commit"], recorded["format"]) == (MODEL, commit, 1)
    assert recorded["files"] == {
        name: {
            "size": len(model_files[name]),
            "sha256": hashlib.sha256(model_files[name]).hexdigest(),
        }
        for name in FETCHED
    }


def test_what_is_fetched_is_told_on_stderr_and_data_stays_on_stdout(hub, flowerbed, model_files):
    commit = hub.commit(MODEL, model_files)
    done = flowerbed("models", "pull", MODEL, "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["target"] for line in lines] == ["flowerbed.hub"]
    assert f"fetched {MODEL} at {commit}: 10." in lines[0]["message"]
    assert "fetched" not in flowerbed("models", "pull", MODEL).stderr


def test_a_pulled_folder_has_no_links_and_is_named_by_its_manifest(
    hub, flowerbed, resolved, model_files, tmp_path
):
    commit = hub.commit(MODEL, model_files)
    folder = tmp_path / "air" / "gapped"
    done = flowerbed("models", "pull", MODEL, "--to", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(folder)
    assert manifest.names_in(folder) == FETCHED
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert [path.name for path in folder.parent.iterdir()] == ["gapped"]
    moved = folder.rename(tmp_path / "elsewhere")
    num_asked = len(hub.asked)
    found = resolved(str(moved))
    assert (found["id"], found["revision"]) == (MODEL, commit)
    assert resolved(str(moved), {"revision": commit})["revision"] == commit
    assert f"holds {MODEL} at {commit}" in resolved(str(moved), {"revision": "main"})["error"]
    assert len(hub.asked) == num_asked


def test_pull_writes_into_no_folder_that_is_in_use(hub, flowerbed, model_files, tmp_path):
    hub.commit(MODEL, model_files)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    done = flowerbed("models", "pull", MODEL, "--to", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert "is not an empty folder" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["diary.txt"]
    assert hub.asked == []


def test_a_file_that_is_not_what_the_hub_promised_is_refused_and_fetched_again(
    hub, flowerbed, model_files, tmp_path
):
    hub.commit(MODEL, model_files)
    good = model_files["model.safetensors"]
    hub.altered["model.safetensors"] = good[:-1] + b"\0"
    done = flowerbed("models", "pull", MODEL, "--to", str(tmp_path / "copy"))
    assert done.returncode == 1
    assert "model.safetensors is not what the hub says it is" in done.stderr
    assert not (tmp_path / "copy").exists()
    hub.altered.clear()
    assert flowerbed("models", "pull", MODEL, "--to", str(tmp_path / "copy")).returncode == 0
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == good


def test_a_connection_that_breaks_is_taken_up_where_it_was(hub, flowerbed, model_files):
    large = os.urandom(1 << 20) * 24
    hub.commit(MODEL, {**model_files, "model.safetensors": large})
    hub.cut_after["model.safetensors"] = [22 << 20]
    done = flowerbed("models", "pull", MODEL)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1], "model.safetensors").read_bytes() == large
    assert [asked.range for asked in hub.asked if asked.range] == [f"bytes={20 << 20}-"]


def test_a_killed_download_leaves_nothing_half_valid_and_the_next_run_completes_it(
    hub, flowerbed, model_files, tmp_path
):
    hub.commit(MODEL, model_files)
    hub.cut_after["model.safetensors"] = [1_000_000] * 100  # it tries again, and never gets far
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url}
    child = subprocess.Popen(
        [sys.executable, "-m", "flowerbed", "models", "pull", MODEL], env=environment
    )
    deadline = time.monotonic() + 30
    while "model.safetensors" not in hub.fetched() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    snapshot = next((tmp_path / "hf").rglob("snapshots/*"))
    assert not (snapshot / "model.safetensors").exists()
    assert not (snapshot / manifest.NAME).exists()
    offline = flowerbed("models", "pull", MODEL, HF_HUB_OFFLINE="1")
    assert offline.returncode == 1
    assert "only in part in the local cache" in offline.stderr
    hub.cut_after.clear()
    hub.asked.clear()
    assert flowerbed("models", "pull", MODEL).returncode == 0
    assert hub.fetched() == ["model.safetensors"]


def test_a_full_disk_says_so_and_leaves_no_folder(hub, model_files, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--garden--rose" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(pull, "download", lambda *_, **__: snapshot)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(ModelError, match="cannot write to .*copy: No space left on device"):
        pull.pull(MODEL, None, tmp_path / "copy")
    assert not any("copy" in path.name for path in tmp_path.iterdir())


def test_a_model_without_safetensors_is_refused(hub, flowerbed, model_files):
    files = {name: data for name, data in model_files.items() if name != "model.safetensors"}
    hub.commit(MODEL, files)
    done = flowerbed("models", "pull", MODEL)
    assert done.returncode == 1
    assert "has no weights in safetensors" in done.stderr
    assert "pytorch_model.bin" not in hub.fetched()


def test_list_shows_the_packaged_model_and_what_was_pulled(hub, flowerbed, model_files):
    commit = hub.commit(MODEL, model_files, "main", "v1")
    flowerbed("models", "pull", MODEL)
    flowerbed("models", "pull", MODEL, "--revision", "v1")
    rows = json.loads(flowerbed("models", "list", "--json").stdout)
    assert [(row["id"], row["revision"], row["refs"]) for row in rows] == [
        ("sentence-transformers/all-MiniLM-L6-v2", "0.1.0", "default"),
        (MODEL, commit, "main,v1"),
    ]
    assert f"{MODEL} " in flowerbed("models", "list").stdout
