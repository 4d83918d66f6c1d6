"""`flowerbed models verify`: what differs from what was recorded, and what there is to compare."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flowerbed import hub, hub_cache, manifest, pull
from flowerbed.manifest import Difference
from hub.conftest import MODEL


def test_verify_names_each_missing_changed_and_extra_file(hub, flowerbed, model_files, tmp_path):
    hub.commit(MODEL, model_files)
    folder = tmp_path / "copy"
    flowerbed("models", "pull", MODEL, "--to", str(folder))
    good = flowerbed("models", "verify", str(folder))
    assert (good.returncode, good.stderr) == (0, "")
    assert "7 files, all as recorded" in good.stdout
    (folder / "modules.json").unlink()
    (folder / "config.json").write_bytes(model_files["config.json"] + b"\n")
    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:  # the same size
        file.seek(5_000_000)
        file.write(b"\xff" if model_files["model.safetensors"][5_000_000] != 255 else b"\0")
    (folder / "notes.txt").write_text("mine")
    done = flowerbed("models", "verify", str(folder))
    assert done.returncode == 1
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()[:-1]] == [
        "changed: config.json", "changed: model.safetensors", "missing: modules.json",
        "extra: notes.txt",
    ]  # fmt: skip
    as_json = json.loads(flowerbed("models", "verify", str(folder), "--json").stdout)
    assert [d["kind"] for d in as_json["differences"]] == ["changed", "changed", "missing", "extra"]


def test_verify_checks_a_cached_model_by_the_hubs_own_hashes_without_a_manifest(
    hub, flowerbed, resolved, model_files
):
    commit = hub.commit(MODEL, model_files)
    snapshot = Path(resolved(MODEL)["path"])
    hub.asked.clear()
    assert flowerbed("models", "verify", MODEL).returncode == 0
    (snapshot / "config.json").resolve().write_bytes(b"{}")
    (snapshot / "modules.json").resolve().unlink()
    done = flowerbed("models", "verify", MODEL, "--revision", commit)
    assert done.returncode == 1
    assert "changed: config.json" in done.stdout
    assert "missing: modules.json" in done.stdout
    assert hub.asked == []


def test_verify_ignores_what_other_tools_put_into_the_cache(hub, flowerbed, model_files):
    hub.commit(MODEL, model_files)
    snapshot = Path(flowerbed("models", "pull", MODEL).stdout.splitlines()[-1])
    (snapshot / "README.md").write_text("of another tool")
    assert flowerbed("models", "verify", MODEL).returncode == 0
    (snapshot / "2_Dense").mkdir()
    (snapshot / "2_Dense" / "model.safetensors").write_bytes(b"no part of the commit")
    done = flowerbed("models", "verify", MODEL)
    assert done.returncode == 1
    assert "extra: 2_Dense/model.safetensors" in done.stdout


def test_verify_says_what_there_is_nothing_to_compare_with(flowerbed, tmp_path):
    (tmp_path / "plain").mkdir()
    done = flowerbed("models", "verify", str(tmp_path / "plain"))
    assert done.returncode == 1
    assert "has no flowerbed-manifest.json" in done.stderr
    done = flowerbed("models", "verify", "garden/tulip")
    assert done.returncode == 1
    assert "run `flowerbed models pull garden/tulip`" in done.stderr


def test_the_packaged_model_is_verified_by_the_id_that_list_shows(flowerbed):
    listed = json.loads(flowerbed("models", "list", "--json").stdout)[0]
    for revision in [(), ("--revision", listed["revision"])]:
        done = flowerbed("models", "verify", listed["id"], *revision)
        assert done.returncode == 0
        assert done.stdout.startswith(
            f"{listed['id']} at {listed['revision']}: 8 files, all as recorded"
        )
    done = flowerbed("models", "verify", listed["id"], "--revision", "main")
    assert done.returncode == 1
    assert "nor in the hub's cache" in done.stderr


def test_the_packaged_model_is_verified_against_known_hashes(minilm_folder, tmp_path, monkeypatch):
    assert pull.verify(None).differences == ()
    (tmp_path / "model" / "1_Pooling").mkdir(parents=True)
    for name in hub.DEFAULT_SHA256:
        shutil.copyfile(minilm_folder / name, tmp_path / "model" / name)
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        file.write(b"\1")
    (tmp_path / "model" / "tokenizer.json").unlink()

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec)
    found = pull.verify(None).differences
    assert [(d.kind, d.file) for d in found] == [
        ("changed", "model.safetensors"), ("missing", "tokenizer.json"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2 is not known"),
        ({"id": "/home/me/models"}, "id or commit is not one of a hub"),
        ({"commit": "main"}, "id or commit is not one of a hub"),
        ({"files": {"config.json": {"size": "2"}}}, "should have a size and a sha256"),
        ({"files": {"../x": {"size": 2, "sha256": "0" * 64}}}, "leads out of the model's folder"),
        ({"files": {"gone.json": {"size": 2, "sha256": "0" * 64}}}, "gone.json is missing"),
        ({"files": {"config.json": {"size": 3, "sha256": "0" * 64}}}, "config.json is altered"),
    ],
)
def test_a_manifest_is_hostile_input(resolved, tmp_path, change, message):
    (tmp_path / "config.json").write_text("{}")
    values = {"format": 1, "id": MODEL, "commit": "a" * 40, "created": "", "files": {}}
    (tmp_path / manifest.NAME).write_text(json.dumps(values))
    assert resolved(str(tmp_path))["id"] == MODEL
    (tmp_path / manifest.NAME).write_text(json.dumps({**values, **change}))
    assert message in resolved(str(tmp_path))["error"]


def test_files_of_the_cache_that_are_no_links_are_not_judged(tmp_path):
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "gone.json").symlink_to("../../blobs/nothing")
    assert hub_cache.damaged_files(snapshot) == [
        Difference("missing", "gone.json", "a link to nothing")
    ]
