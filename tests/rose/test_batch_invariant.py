"""Who gets batch-invariant steps, and what is refused; that bits are equal only a GPU can show."""

from __future__ import annotations

import pytest
import torch

from flowerbed.config import BatchInvariant, DType
from flowerbed.errors import ConfigError
from flowerbed.rose import device as devices
from flowerbed.rose.device import pick_batch_invariance
from flowerbed.rose.kernels.attention import Backend

FLASH = Backend.FLASH_ATTN_4


@pytest.fixture
def folder(make_folder, pool):
    return make_folder(pool("mean"))


@pytest.mark.parametrize(
    ("major", "backend", "dtype", "prefers_float16", "automatic", "refusal"),
    [
        (9.5, FLASH, DType.BFLOAT16, True, False, "quack-kernels does not load"),
        (9, FLASH, DType.BFLOAT16, True, True, None),
        (9, FLASH, DType.FLOAT16, True, False, None),
        (9, FLASH, DType.BFLOAT16, False, False, None),
        (9, FLASH, DType.FP8, True, False, "fp8 has other products; use --dtype bfloat16"),
        (9, Backend.TORCH_FLASH, DType.BFLOAT16, True, False, "attention by torch-flash is not"),
        (9, Backend.SDPA, DType.FLOAT32, True, False, "float32 has other products"),
        (8, Backend.TORCH_FLASH, DType.BFLOAT16, True, False, "only kernels of Hopper GPUs"),
        (10, FLASH, DType.BFLOAT16, True, False, "only kernels of Hopper GPUs"),
    ],
)
def test_auto_is_for_bfloat16_of_encoders_that_prefer_float16_where_the_device_can(
    monkeypatch, major, backend, dtype, prefers_float16, automatic, refusal
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (int(major), 0))
    has_quack = major == 9  # 9.5 stands for the same GPU without it
    monkeypatch.setattr(devices, "fuses_products", lambda device, dtype: has_quack)
    gpu = torch.device("cuda", 0)

    def pick(asked):
        return pick_batch_invariance(asked, gpu, backend, dtype, prefers_float16=prefers_float16)

    assert pick(BatchInvariant.AUTO) is automatic
    assert pick(BatchInvariant.OFF) is False
    if refusal is None:
        assert pick(BatchInvariant.ON) is True
    else:
        with pytest.raises(ConfigError, match=f"batch_invariant on cannot .* cuda:0: {refusal}"):
            pick(BatchInvariant.ON)


def test_a_cpu_refuses_it_by_name_and_takes_auto(folder, load):
    with pytest.raises(
        ConfigError, match="batch_invariant on cannot be honoured on cpu: only kernels of Hopper"
    ):
        load(folder, batch_invariant=BatchInvariant.ON)
    engine = load(folder)
    assert engine.batch_invariant is False
    assert engine.kernels == ()


def test_the_space_of_the_mode_is_its_own(folder, load):
    engine = load(folder)
    before = engine.space
    engine.batch_invariant = True
    assert engine.kernels == ("batch-invariant",)
    assert engine.space != before
