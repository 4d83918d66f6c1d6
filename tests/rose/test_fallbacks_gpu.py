"""One NVIDIA GPU without each thing that makes steps fast: one line says so, and vectors stay the same."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flowerbed.config import Attention, DType, GraphCapture
from flowerbed.folder import ModelFolder
from flowerbed.rose.engine import Engine
from flowerbed.rose.kernels import backend, flash_attention, fused_linear, small_linear
from flowerbed.rose.kernels.attention import Backend
from references import engine_rows, lowest_cosine
from small_models import VOCAB_ROWS, small_model

pytestmark = [
    pytest.mark.gpu,
    # flash-attn-4 and quack import the compiler of torch, which warns of its own code.
    pytest.mark.filterwarnings("ignore"),
]

BATCHES = ([1], [7, 13], [5, 1, 17, 105], [64] * 5 + [300, 400], [512] * 5 + [77, 2])
"""Lengths of the sequences of each step, 1 to 2,639 tokens: products of every kind."""
MIN_COSINE = 0.9999
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module", params=("bert", "qwen3", "pplx"))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Wide enough for every kernel of the full engine."""
    head_dim = 64 if request.param == "bert" else 128
    path = tmp_path_factory.mktemp("fallbacks") / request.param
    return small_model(request.param, path, hidden=256, head_dim=head_dim)


@pytest.fixture(scope="module")
def full_rows(folder: ModelFolder) -> list[NDArray[np.float32]]:
    """Rows of each batch by the engine with all that is installed here."""
    missing = flash_attention.why_not(
        Backend.FLASH_ATTN_4, torch.device("cuda", 0), torch.bfloat16, 64
    )
    if missing is not None:
        pytest.skip(f"nothing to compare with: {missing}")
    return rows_of(Engine.load(folder, device="cuda", dtype=DType.BFLOAT16))


def rows_of(engine: Engine) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(8)
    batches = [[rng.integers(5, VOCAB_ROWS, n).tolist() for n in lengths] for lengths in BATCHES]
    return [engine_rows(engine, sequences) for sequences in batches]


def without(package: str) -> Patch:
    def found(name: str) -> str:
        if name == package:
            raise PackageNotFoundError(name)
        return version(name)

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flash_attention, "version", found)
        monkeypatch.setattr(fused_linear, "version", found)

    return patch


def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)


def as_if_older(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.why_no_triton() is None  # it has asked for the capability, and compiles for it
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))


CACHES = (
    backend.why_no_triton,
    flash_attention.why_no_package,
    fused_linear._has_kernels,
    small_linear.starts_early,
)


@pytest.fixture
def asked_again(full_rows: object) -> Iterator[None]:
    """What a test found of this machine is forgotten."""
    yield
    for cached in CACHES:
        cached.cache_clear()


@pytest.mark.parametrize(
    ("patch", "attention", "told"),
    [
        (without("flash-attn-4"), "torch-flash", "flash-attn-4 is not installed: attention by torch-flash"),
        (without_triton, "sdpa", "triton is not installed: attention by sdpa, steps one by one"),
        (without("quack-kernels"), "flash-attn-4", "quack-kernels is not installed: products of large"),
        (as_if_older, "torch-flash", "flash-attn-4 needs sm_90 and this GPU is sm_80: attention by"),
    ],
    ids=["flash-attn-4", "triton", "quack", "sm_80"],
)  # fmt: skip
def test_what_is_missing_is_told_in_one_line_and_vectors_stay_the_same(
    folder: ModelFolder,
    full_rows: list[NDArray[np.float32]],
    asked_again: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    patch: Patch,
    attention: str,
    told: str,
) -> None:
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patch(patched)
        for cached in CACHES:
            cached.cache_clear()
        engine = Engine.load(folder, device="cuda", dtype=DType.BFLOAT16)
        assert engine.attention == attention
        eager = rows_of(engine)
        engine.capture(
            online_tokens=64,
            normal_tokens=1_024,
            when=GraphCapture.LAZY,
            memory_limit=1 << 30,
        )
        captured = [rows_of(engine) for _ in range(3)][-1]  # seen, captured, replayed
    lines = [
        record.getMessage() for record in caplog.records if record.name.startswith("flowerbed")
    ]
    worst = [
        min(lowest_cosine(found, expected) for found, expected in zip(rows, full_rows, strict=True))
        for rows in (eager, captured)
    ]
    print(f"{folder.path.name} {attention}: lowest cosines {worst}, told {lines}")
    assert len(lines) == 1
    assert told in lines[0]
    assert min(worst) >= MIN_COSINE


@pytest.mark.parametrize("attention", [Attention.TORCH_FLASH, Attention.SDPA])
def test_attention_by_name_gives_the_same_vectors(
    folder: ModelFolder, full_rows: list[NDArray[np.float32]], attention: Attention
) -> None:
    engine = Engine.load(folder, device="cuda", dtype=DType.BFLOAT16, attention=attention)
    assert engine.attention == attention
    for found, expected in zip(rows_of(engine), full_rows, strict=True):
        assert lowest_cosine(found, expected) >= MIN_COSINE
