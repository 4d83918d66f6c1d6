"""Who gets batch-invariant steps, what is refused, and that the mode reaches every part of a step."""

from __future__ import annotations

import pytest

from flowerbed.config import BatchInvariant, DType
from flowerbed.errors import ConfigError
from flowerbed.rose.device import pick_batch_invariance
from flowerbed.rose.kernels.attention import Backend

FLASH = Backend.FLASH_ATTN_4


@pytest.fixture
def folder(make_folder, pool):
    return make_folder(pool("mean"))


@pytest.mark.parametrize(
    ("backend", "dtype", "prefers_float16", "automatic"),
    [
        (FLASH, DType.BFLOAT16, True, True),
        (FLASH, DType.FLOAT16, True, False),
        (FLASH, DType.BFLOAT16, False, False),
        (FLASH, DType.FP8, True, False),
        (Backend.TORCH_FLASH, DType.BFLOAT16, True, False),
        (Backend.SDPA, DType.BFLOAT16, True, False),
        (Backend.SDPA, DType.FLOAT32, True, False),
    ],
)
def test_auto_is_for_bfloat16_of_encoders_that_prefer_float16_where_the_device_can(
    backend, dtype, prefers_float16, automatic
):
    def pick(asked):
        return pick_batch_invariance(asked, backend, dtype, prefers_float16=prefers_float16)

    assert pick(BatchInvariant.AUTO) is automatic
    assert pick(BatchInvariant.OFF) is False
    if backend is FLASH and dtype is not DType.FP8:
        assert pick(BatchInvariant.ON) is True
    else:
        with pytest.raises(ConfigError, match=f"batch_invariant on needs .* {dtype} .* {backend}"):
            pick(BatchInvariant.ON)


def test_a_cpu_refuses_it_by_name_and_takes_auto(folder, load):
    with pytest.raises(ConfigError, match="batch_invariant on needs flash-attn-4"):
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
