"""The packaged model in the engine, and tiny random checkpoints."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine

HIDDEN = 32
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)

MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads that spin at a barrier make tests ten times slower beside other work on two cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm() -> Engine:
    return Engine.load(read_folder(resolve(None)), device="cpu")


def load_engine(folder: Path, **options: Any) -> Engine:
    return Engine.load(read_folder(resolve(str(folder))), device="cpu", **options)


@pytest.fixture
def load() -> Callable[..., Engine]:
    return load_engine


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Path:
    """A transformers folder: 2 layers of 32, random weights, MiniLM's tokenizer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(7)
    config = BertConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
    )
    return save_with_tokenizer(
        BertModel(config), tmp_path_factory.mktemp("tiny-bert"), minilm_folder
    )


def save_with_tokenizer(encoder: Any, folder: Path, minilm_folder: Path) -> Path:
    encoder.eval().save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(minilm_folder / name, folder / name)
    return folder


@pytest.fixture
def save_encoder(tmp_path: Path, minilm_folder: Path) -> Callable[[Any], Path]:
    """Saves an encoder of transformers with MiniLM's tokenizer."""
    return lambda encoder: save_with_tokenizer(encoder, tmp_path / "encoder", minilm_folder)


@pytest.fixture
def make_folder(tmp_path: Path, tiny_bert: Path) -> MakeFolder:
    """Saves the tiny model with the given modules after the Transformer, as sentence-transformers does."""

    def make(*modules: Any, name: str = "tiny", encoder: Path = tiny_bert, **options: Any) -> Path:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Transformer

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = SentenceTransformer(
                modules=[Transformer(str(encoder)), *modules], device="cpu", **options
            )
            model.save(str(tmp_path / name), create_model_card=False)
        return tmp_path / name

    return make


def pooling(*modes: str, include_prompt: bool = True) -> Any:
    from sentence_transformers.sentence_transformer.modules import Pooling

    return Pooling(HIDDEN, pooling_mode=modes, include_prompt=include_prompt)


@pytest.fixture
def pool() -> Callable[..., Any]:
    return pooling


@pytest.fixture(scope="session")
def sample_texts(real_texts: Sequence[str]) -> list[str]:
    """Twelve texts of mixed lengths."""
    return list(real_texts[::17])
