"""Hub ids: revisions, private and gated models, offline, shards; each failure in its own words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowerbed.errors import ModelError
from flowerbed.folder import read_folder
from flowerbed.hub import ResolvedModel, resolve
from flowerbed.hub_download import has_token
from hub.conftest import MODEL
from hub.fake_hub import Repository

SECRET = "hf_TopSecretOfTheGarden"


def test_a_branch_a_tag_and_a_commit_are_resolved_to_the_commit(hub, resolved, model_files):
    first = hub.commit(MODEL, model_files, "main", "v1")
    second = hub.commit(MODEL, {**model_files, "config.json": b"{}"})
    for revision, commit in ((None, second), ("main", second), ("v1", first), (first, first)):
        assert resolved(MODEL, {"revision": revision})["revision"] == commit


def test_a_branch_that_moved_is_followed_and_a_pinned_commit_is_not(hub, resolved, model_files):
    first = hub.commit(MODEL, model_files)
    assert resolved(MODEL)["revision"] == first
    second = hub.commit(MODEL, {**model_files, "config.json": b"{}"})
    assert resolved(MODEL)["revision"] == second
    hub.asked.clear()
    assert resolved(MODEL, {"revision": first})["revision"] == first
    assert hub.asked == []  # a commit that is cached is never asked for


def test_a_gateway_fetches_no_weights(hub, resolved, model_files, sharded_files):
    hub.commit(MODEL, model_files)
    path = Path(resolved(MODEL, {"weights": False})["path"])
    assert "tokenizer.json" in hub.fetched()
    assert not any(name.endswith(".safetensors") for name in hub.fetched())
    folder = read_folder(ResolvedModel(path, MODEL, path.name, has_weights=False))
    assert folder.text.max_length == 256
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        read_folder(ResolvedModel(path, MODEL, path.name))
    hub.asked.clear()
    assert resolved(MODEL)["path"] == str(path)
    assert hub.fetched() == ["model.safetensors"]


def test_shards_are_fetched_as_their_index_names_them(hub, resolved, sharded_files):
    hub.commit(MODEL, sharded_files)
    path = Path(resolved(MODEL)["path"])
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert [name for name in hub.fetched() if name.endswith(".safetensors")] == shards
    assert read_folder(ResolvedModel(path, MODEL, path.name)).revision == path.name


def test_OP_18_a_shard_that_the_hub_lacks_is_named(hub, resolved, sharded_files):
    missing = "model-00002-of-00002.safetensors"
    hub.commit(MODEL, {n: data for n, data in sharded_files.items() if n != missing})
    path = Path(resolved(MODEL)["path"])
    with pytest.raises(ModelError, match=f"has no {missing}: model.safetensors.index.json names"):
        read_folder(ResolvedModel(path, MODEL, path.name))


@pytest.mark.parametrize(
    "index", [b"no json", b"[]", b'{"weight_map": {"a": "../../x.safetensors"}}']
)
def test_a_hostile_index_fetches_nothing_and_is_refused(hub, resolved, sharded_files, index):
    hub.commit(MODEL, {**sharded_files, "model.safetensors.index.json": index})
    path = Path(resolved(MODEL)["path"])
    assert not any(name.endswith(".safetensors") for name in hub.fetched())
    with pytest.raises(ModelError, match=r"model.safetensors.index.json|leads out of"):
        read_folder(ResolvedModel(path, MODEL, path.name))


def test_a_private_model_needs_its_token(hub, resolved, model_files):
    commit = hub.commit(MODEL, model_files)
    hub.repositories[MODEL].token = SECRET
    without = resolved(MODEL)
    assert "it is private: check the name, or set HF_TOKEN" in without["error"]
    wrong = resolved(MODEL, HF_TOKEN="stranger")
    assert "or the token in use may not read it" in wrong["error"]
    unknown = resolved(MODEL, HF_TOKEN="hf_nobody")
    assert "the hub does not know the token in use" in unknown["error"]
    assert "hf_nobody" not in json.dumps(unknown)
    right = resolved(MODEL, HF_TOKEN=SECRET)
    assert right["revision"] == commit
    assert SECRET not in json.dumps(right)
    assert all(asked.has_token for asked in hub.asked if asked.path.startswith("/garden/rose/res"))


def test_the_hub_librarys_own_token_store_is_used(hub, resolved, model_files, tmp_path):
    commit = hub.commit(MODEL, model_files)
    hub.repositories[MODEL].token = SECRET
    (tmp_path / "token").write_text(SECRET)
    assert resolved(MODEL, HF_TOKEN_PATH=str(tmp_path / "token"))["revision"] == commit


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(hub, resolved, model_files):
    hub.commit(MODEL, model_files)
    hub.repositories[MODEL].token = SECRET
    resolved(MODEL, HF_TOKEN=SECRET)
    elsewhere = [asked for asked in hub.asked if "/cdn/" in asked.path]
    assert elsewhere
    assert not any(asked.has_token for asked in elsewhere)


@pytest.mark.parametrize("variables", [{}, {"HF_TOKEN": SECRET}])
def test_no_failure_shows_the_token_or_a_signed_address(hub, flowerbed, model_files, variables):
    hub.commit(MODEL, model_files)
    hub.repositories[MODEL].token = SECRET
    hub.cut_after["model.safetensors"] = [100] * 2
    done = flowerbed("models", "pull", MODEL, **variables)
    assert SECRET not in done.stdout + done.stderr
    assert "Signature" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gated_model_a_missing_one_and_a_missing_revision_each_say_what_to_do(
    hub, resolved, model_files
):
    hub.repositories["garden/gated"] = Repository(is_gated=True)
    hub.commit(MODEL, model_files)
    assert "wants its terms for garden/gated accepted" in resolved("garden/gated")["error"]
    assert "the hub has no model garden/lily" in resolved("garden/lily")["error"]
    assert f"{MODEL} has no revision 'v9'" in resolved(MODEL, {"revision": "v9"})["error"]


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "may not read"), (500, "answers 500: try again later"), (418, "failed")],
)
def test_a_hub_that_refuses_is_quoted_by_its_status(hub, resolved, status, message):
    hub.status = status
    assert message in resolved(MODEL)["error"]


def test_a_pulled_folder_is_loaded_under_its_id_and_commit(hub, flowerbed, tmp_path, tiny_folder):
    from flowerbed.rose.engine import Engine

    files = {
        path.relative_to(tiny_folder).as_posix(): path.read_bytes()
        for path in tiny_folder.rglob("*")
        if path.is_file()
    }
    commit = hub.commit(MODEL, files)
    done = flowerbed("models", "pull", MODEL, "--to", str(tmp_path / "copy"))
    assert done.returncode == 0, done.stderr
    info = Engine.load(read_folder(resolve(str(tmp_path / "copy"))), device="cpu").info()
    assert (info.id, info.revision) == (MODEL, commit)


def test_whether_there_is_a_token_is_known_without_asking_anybody(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    store = tmp_path / "token"
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(store))
    assert not has_token()
    store.write_text("\n")
    assert not has_token()
    store.write_text(SECRET)
    assert has_token()
    store.unlink()
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert has_token()
