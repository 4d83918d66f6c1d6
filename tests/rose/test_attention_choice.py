"""Which attention serves a GPU, and what is said where it is not the best one. No GPU is needed."""

from __future__ import annotations

import logging
import sys
from functools import partial

import pytest
import torch

from flowerbed.config import Attention
from flowerbed.errors import ConfigError
from flowerbed.rose import device as devices
from flowerbed.rose import engine
from flowerbed.rose.kernels import backend, flash_attention
from flowerbed.rose.kernels.attention import Backend

GPU = torch.device("cuda", 0)
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
NO_FLASH, NO_TRITON = "flash-attn-4 is not installed", "triton is not installed"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Sets what a GPU can do and why libraries are missing."""

    def has(
        capability: tuple[int, int] = (9, 0), triton: str | None = None, flash: str | None = None
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(flash_attention, "why_no_triton", lambda: triton)
        monkeypatch.setattr(
            flash_attention,
            "why_no_package",
            lambda name: flash if name == "flash-attn-4" else None,
        )

    return has


@pytest.mark.parametrize(
    ("found", "dtype", "head_dim", "chosen", "said"),
    [
        ({}, BFLOAT16, 128, "flash-attn-4", None),
        ({"flash": NO_FLASH}, BFLOAT16, 64, "torch-flash", "flash-attn-4 is not installed: attention by torch-flash;"),
        ({"capability": (8, 0)}, BFLOAT16, 64, "torch-flash", "flash-attn-4 needs sm_90 and this GPU is sm_80: attention by torch-flash;"),
        ({"capability": (8, 9), "flash": NO_FLASH}, torch.float16, 64, "torch-flash", "flash-attn-4 needs sm_90 and this GPU is sm_89"),
        ({}, BFLOAT16, 256, "torch-flash", "flash-attn-4 has no heads of 256, only of 8 to 128"),
        ({}, BFLOAT16, 100, "sdpa", "torch-flash has no heads of 100, only of 8 to 256"),
        ({}, FLOAT32, 64, "sdpa", "ragged attention has no float32: attention by sdpa, steps one by one and without CUDA graphs;"),
        ({"capability": (7, 5)}, torch.float16, 64, "sdpa", "torch-flash needs sm_80 and this GPU is sm_75: attention by sdpa"),
        ({"triton": NO_TRITON}, BFLOAT16, 64, "sdpa", "triton is not installed: attention by sdpa"),
        ({"triton": NO_TRITON, "flash": NO_FLASH}, BFLOAT16, 64, "sdpa", "triton is not installed: attention by sdpa"),
    ],
)  # fmt: skip
def test_the_best_that_there_is_is_chosen_and_one_line_says_why_not_more(
    machine, caplog, found, dtype, head_dim, chosen, said
) -> None:
    machine(**found)
    with caplog.at_level(logging.INFO, logger=devices.log.name):
        assert devices.pick_attention(Attention.AUTO, GPU, dtype, head_dim) == chosen
    lines = [record.getMessage() for record in caplog.records]
    if said is None:
        assert lines == []
    else:
        [line] = lines
        assert line.startswith(said)
        assert line.endswith("; vectors are the same, steps are slower")


def test_what_is_asked_for_by_name_is_used_without_a_word_or_refused_with_the_reason(
    machine, caplog
) -> None:
    machine(flash=NO_FLASH)
    for name in ("torch-flash", "sdpa"):
        assert devices.pick_attention(Attention(name), GPU, BFLOAT16, 64) == name
    assert not caplog.records
    with pytest.raises(
        ConfigError, match="flash-attn-4 cannot be honoured on cuda:0: flash-attn-4 is not"
    ):
        devices.pick_attention(Attention.FLASH_ATTN_4, GPU, BFLOAT16, 64)
    with pytest.raises(ConfigError, match="on cpu: ragged attention needs a GPU"):
        devices.pick_attention(Attention.TORCH_FLASH, torch.device("cpu"), BFLOAT16, 64)


def test_a_cpu_has_its_own_attention_and_nothing_is_said(machine, caplog) -> None:
    machine()
    assert devices.pick_attention(Attention.AUTO, torch.device("cpu"), FLOAT32, 64) == "sdpa"
    assert not caplog.records


def test_triton_that_is_not_installed_or_does_not_start_is_told_apart(monkeypatch) -> None:
    ask = backend.why_no_triton.__wrapped__
    monkeypatch.setitem(sys.modules, "triton", None)
    assert ask() == "triton is not installed"
    monkeypatch.undo()

    class Broken:
        @property
        def active(self):
            raise RuntimeError("Failed to find C compiler.\nPlease specify it")

    import triton

    monkeypatch.setattr(triton.runtime, "driver", Broken())
    assert ask() == "triton does not start (Failed to find C compiler.)"


def test_flash_attn_4_that_is_not_installed_or_does_not_load_is_told_apart(monkeypatch) -> None:
    ask = partial(flash_attention.why_no_package.__wrapped__, Backend.FLASH_ATTN_4)
    assert ask() == "flash-attn-4 is not installed"

    monkeypatch.setattr(flash_attention, "version", lambda name: "4.0.0b36")
    for error in (ImportError, TypeError, ValueError):

        def broken(error=error):
            raise error("libcutlass.so: cannot open shared object file\nmore")

        monkeypatch.setattr(flash_attention, "_flash_attn_4", broken)
        assert ask() == (
            "flash-attn-4 4.0.0b36 does not load (libcutlass.so: cannot open shared object file)"
        )


def test_flashinfer_that_does_not_load_is_refused_with_the_reason(monkeypatch) -> None:
    def broken():
        raise RuntimeError("flashinfer-cubin version 0.6.1 does not match\nmore")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(flash_attention, "why_no_triton", lambda: None)
    monkeypatch.setattr(
        flash_attention, "why_no_package", flash_attention.why_no_package.__wrapped__
    )
    monkeypatch.setattr(flash_attention, "version", lambda name: "0.6.12")
    monkeypatch.setattr(flash_attention, "flashinfer_library", broken)
    reason = (
        r"flashinfer-python 0.6.12 does not load \(flashinfer-cubin version 0.6.1 does not match"
    )
    with pytest.raises(ConfigError, match=reason):
        devices.pick_attention(Attention.FLASHINFER, GPU, BFLOAT16, 128)


FLAGS = [f"allow_{dtype}_reduced_precision_reduction" for dtype in ("bf16", "fp16")]


@pytest.fixture
def matmul():
    """Torch's settings of products, put back later."""
    found = torch.backends.cuda.matmul
    before = [getattr(found, flag) for flag in FLAGS]
    yield found
    for flag, value in zip(FLAGS, before, strict=True):
        setattr(found, flag, value)


@pytest.mark.parametrize(("device", "is_rounded"), [(GPU, False), (torch.device("cpu"), True)])
def test_sums_of_a_gpu_are_not_rounded_on_their_way_where_torch_attends_either(
    minilm, matmul, device, is_rounded
) -> None:
    for flag in FLAGS:
        setattr(matmul, flag, True)
    engine._runner(minilm.folder, minilm._encoder, minilm._heads, device, Backend.SDPA)
    assert [getattr(matmul, flag) for flag in FLAGS] == [is_rounded] * 2
