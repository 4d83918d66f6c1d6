"""A fake hub, a cache of its own for each test, and the command line as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowerbed.errors import ModelError
from flowerbed.hub import resolve as resolve_here
from hub.fake_hub import FakeHub

MODEL = "garden/rose"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    served = FakeHub()
    yield served
    served.close()


@pytest.fixture
def run(hub: FakeHub, tmp_path: Path) -> Run:
    """Runs `python ARGUMENTS` with an empty cache and the fake hub; variables come on top."""

    def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("HF_", "HUGGING", "FLOWERBED_", "TRANSFORMERS_", "XDG_"))
        }
        environment = {
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "XDG_CACHE_HOME": str(tmp_path / "xdg"),
            "no_proxy": "*",
        }
        return subprocess.run(
            [sys.executable, *arguments],
            env={**inherited, **environment, **variables},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return command


@pytest.fixture
def flowerbed(run: Run) -> Run:
    """Runs `flowerbed ARGUMENTS`."""
    return lambda *arguments, **variables: run("-m", "flowerbed", *arguments, **variables)


@pytest.fixture
def resolved(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[..., dict[str, str]]:
    """What `hub.resolve` finds or the message of its refusal, and what it logged; in this process."""
    from huggingface_hub import constants

    def resolve(model: str, options: dict | None = None, **variables: str) -> dict[str, str]:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        if "HF_TOKEN" in variables:
            monkeypatch.setenv("HF_TOKEN", variables["HF_TOKEN"])
        home = variables.get("HF_HOME", str(tmp_path / "hf"))
        endpoint = variables.get("HF_ENDPOINT", hub.url)
        settings = {
            "HF_HUB_CACHE": f"{home}/hub",
            "HF_TOKEN_PATH": variables.get("HF_TOKEN_PATH", f"{home}/token"),
            "ENDPOINT": endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": variables.get("HF_HUB_OFFLINE") == "1",
            "HF_HUB_DISABLE_TELEMETRY": False,
        }
        for name, value in settings.items():
            assert hasattr(constants, name)
            monkeypatch.setattr(constants, name, value)
        caplog.clear()
        try:
            found = resolve_here(model, **(options or {}))
        except ModelError as error:
            return {"error": str(error), "log": caplog.text}
        path = str(found.path)
        return {"id": found.id, "revision": found.revision, "path": path, "log": caplog.text}

    return resolve


@pytest.fixture(scope="session")
def model_files(minilm_folder: Path) -> dict[str, bytes]:
    """MiniLM's folder by file names, with short weights, and files that must not be fetched."""
    names = ("config.json", "modules.json", "1_Pooling/config.json", "tokenizer.json")
    names += ("sentence_bert_config.json", "config_sentence_transformers.json")
    files = {name: (minilm_folder / name).read_bytes() for name in names}
    return {
        **files,
        "model.safetensors": bytes(range(256)) * 40_000,
        "pytorch_model.bin": b"a pickle",
        "modeling_rose.py": b"raise SystemExit",
        "onnx/model.onnx": b"another engine",
        "onnx/config.json": b"{}",
        "README.md": b"# Rose",
    }


@pytest.fixture(scope="session")
def sharded_files(model_files: dict[str, bytes]) -> dict[str, bytes]:
    files = {name: data for name, data in model_files.items() if name != "model.safetensors"}
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": {"a": shards[0], "b": shards[1]}}
    return {
        **files,
        "model.safetensors.index.json": json.dumps(index).encode(),
        **{shard: shard.encode() * 1_000 for shard in shards},
        "consolidated.safetensors": b"the same again",
    }


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Path:
    """A sentence-transformers folder of one layer of 32 with random weights."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(11)
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    BertModel(BertConfig(num_hidden_layers=1, **sizes)).eval().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).write_bytes((minilm_folder / name).read_bytes())
    (folder / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": 32, "pooling_mode": "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder
