"""What a batch made in this process gets wrong is named before anything of it reaches a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fake_device import FakeDevice, read_on_the_device
from flowerbed.config import GraphCapture
from flowerbed.rose.engine import Engine
from flowerbed.rose.forward import RaggedModel
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels import flash_attention
from flowerbed.rose.kernels.attention import Backend
from flowerbed.rose.kernels.pack import RowDtype
from flowerbed.rose.ragged import RaggedRunner
from references import engine_rows

ROW = RowFormat(384)
GOOD = [[101, 2000, 102], [101, 102]]


@pytest.fixture(params=["grouped", "ragged"])
def engine(request: pytest.FixtureRequest, minilm: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The packaged model in both runners; the ragged one on a device that only plays one."""
    if request.param == "grouped":
        return minilm
    monkeypatch.setattr(flash_attention, "flash_attention", read_on_the_device)
    encoder, heads = minilm._encoder, minilm._heads
    model = RaggedModel(encoder, heads, Backend.FLASH_ATTN_4, minilm.folder.text.max_length, None)
    runner = RaggedRunner(model, FakeDevice())
    device = torch.device("cpu")
    ragged = Engine(minilm.folder, encoder, heads, runner, device, minilm.dtype)
    ragged.capture(
        online_tokens=32, normal_tokens=64, when=GraphCapture.START, memory_limit=1 << 30
    )
    return ragged


def changed(batch: PackedBatch, **parts: Any) -> PackedBatch:
    return PackedBatch(**{name: getattr(batch, name) for name in batch.__slots__} | parts)


def with_format(column: int, value: int) -> PackedBatch:
    """A good batch of two rows, but for one number of the second row's format."""
    batch = PackedBatch.build(GOOD, ROW)
    batch.formats[1, column] = value
    return batch


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (PackedBatch.build([[101, 102], [101, 30522]], ROW), IndexError, r"token 3: id 30522 is not in 0..30521"),
        (PackedBatch.build([[-1]], ROW), IndexError, "token 0: id -1 is not in 0..30521"),
        (PackedBatch.build([[101], [101] * 513], ROW), IndexError, "sequence 1: 513 tokens, but the model has 512"),
        (with_format(0, 2), ValueError, "row 1: segment 2 of 2"),
        (with_format(0, -1), ValueError, "row 1: segment -1 of 2"),
        (with_format(1, 1535), ValueError, "row 1: it overlaps another one"),
        (with_format(1, 1540), ValueError, "row 1: it overlaps another one, or leaves a gap"),
        (with_format(1, -4), ValueError, "row 1: it overlaps"),
        (with_format(2, 8), ValueError, "row 1: 8 is no dtype"),
        (with_format(2, 0), ValueError, "row 1: 0 is no dtype"),
        (with_format(3, 385), ValueError, "row 1: 385 dimensions were asked for, of 1 to 384"),
        (with_format(3, 0), ValueError, "row 1: 0 dimensions were asked for"),
        (changed(PackedBatch.build(GOOD, ROW), num_result_bytes=1 << 20), ValueError, "the rows take 3072 bytes, not 1048576"),
        (PackedBatch.build(GOOD, ROW, pair_starts=[1]), ValueError, "1 pair starts for 2 sequences"),
        (PackedBatch.build(GOOD, ROW, pair_starts=[1, -1]), ValueError, "sequence 1: its second text starts before it"),
        (PackedBatch.build(GOOD, ROW, spans=[(0, 0, 9)]), ValueError, "a segment lies outside"),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_fit_is_refused_with_its_place_and_later_ones_run(
    engine: Engine, batch: PackedBatch, error: type[Exception], message: str
) -> None:
    expected = engine_rows(engine, GOOD)
    with pytest.raises(error, match=message):
        engine.step(batch)
    np.testing.assert_array_equal(engine_rows(engine, GOOD), expected)


def test_rows_in_any_order_that_fill_the_result_are_good(engine: Engine) -> None:
    expected = engine_rows(engine, GOOD)
    batch = PackedBatch.build(GOOD, ROW)
    batch.formats[:, 1] = [1536, 0]
    found = engine.step(batch).numpy()[: batch.num_result_bytes].view(np.float32).reshape(2, -1)
    np.testing.assert_array_equal(found, expected[::-1])


def test_rows_of_tokens_have_the_hidden_size(engine: Engine) -> None:
    good = PackedBatch.build(GOOD, RowFormat(384, RowDtype.FLOAT16), head="tokens")
    assert not engine.step(good).numpy()[good.num_result_bytes :].any()
    with pytest.raises(ValueError, match="row 0: 500 dimensions were asked for, of 1 to 384"):
        engine.step(PackedBatch.build(GOOD, RowFormat(500), head="tokens"))
