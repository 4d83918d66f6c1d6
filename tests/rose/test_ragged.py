"""Staged, padded, captured and replayed steps against plain ones, on a device that only plays one."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fake_device import FakeDevice, read_on_the_device
from flowerbed.config import GraphCapture
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose import graphs
from flowerbed.rose.engine import Engine
from flowerbed.rose.forward import RaggedModel
from flowerbed.rose.graphs import StepSizes
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels import flash_attention
from flowerbed.rose.kernels.attention import Backend
from flowerbed.rose.kernels.pack import RowDtype
from flowerbed.rose.ragged import RaggedRunner
from flowerbed.rose.staging import StagedInputs

MAX_ROW_BYTES = 4 * 32


@pytest.fixture(scope="module")
def plain(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("ragged") / "tiny"
    shutil.copytree(tiny_bert, folder)
    (folder / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": 32, "pooling_mode": "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return Engine.load(read_folder(resolve(str(folder))), device="cpu")


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def runner(plain: Engine, device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> RaggedRunner:
    monkeypatch.setattr(flash_attention, "flash_attention", read_on_the_device)
    model = RaggedModel(
        plain._encoder, plain._heads, Backend.FLASH_ATTN_4, plain.folder.text.max_length, None
    )
    return RaggedRunner(model, device)


def capture(runner: RaggedRunner, when: GraphCapture, max_tokens: int = 320) -> None:
    with torch.inference_mode():
        runner.capture(StepSizes(64, max_tokens, MAX_ROW_BYTES), when, 1 << 40)


def batch_of(
    lengths: list[int],
    *,
    stream: str = "normal",
    formats: RowFormat | list[RowFormat] | None = None,
) -> PackedBatch:
    rng = np.random.default_rng(sum(lengths))
    sequences = [rng.integers(0, 30_000, length).tolist() for length in lengths]
    built = PackedBatch.build(sequences, formats or RowFormat(32))
    return PackedBatch(**{**{n: getattr(built, n) for n in built.__slots__}, "stream": stream})


def rows(result: NDArray[np.uint8], batch: PackedBatch) -> NDArray[np.float32]:
    assert not result[batch.num_result_bytes :].any()  # every status is good
    return values(result, batch)


def values(result: NDArray[np.uint8], batch: PackedBatch) -> NDArray[np.float32]:
    return result[: batch.num_result_bytes].view(np.float32).reshape(batch.num_rows, -1)


@pytest.mark.parametrize("when", GraphCapture)
def test_rows_equal_plain_steps_at_every_border_of_a_bucket(
    plain: Engine, runner: RaggedRunner, when: GraphCapture
) -> None:
    capture(runner, when)
    rng = np.random.default_rng(3)
    for total in (1, 32, 33, 63, 64, 65, 127, 128, 129, 319, 320):
        cuts = np.sort(rng.choice(np.arange(1, total), min(total - 1, 12), replace=False))
        lengths = np.diff([0, *cuts, total]).tolist()
        batch = batch_of(lengths)
        for _ in range(3):  # lazily: eager, captured, replayed
            with torch.inference_mode():
                result = runner.step(batch)
            np.testing.assert_allclose(
                rows(result.numpy(), batch), rows(plain.step(batch).numpy(), batch), atol=2e-6
            )
            multiple = 32 if total <= 32 and when is not GraphCapture.OFF else 64
            assert result.padding_tokens == -(-total // multiple) * multiple - total


def test_formats_mix_in_one_step_and_equal_plain_ones(plain: Engine, runner: RaggedRunner) -> None:
    capture(runner, GraphCapture.START)
    formats = [RowFormat(d, dtype, n) for dtype in RowDtype for d, n in ((32, True), (24, False))]
    batch = batch_of([5] * len(formats), formats=formats)
    with torch.inference_mode():
        ours = runner.step(batch).numpy()
    theirs = plain.step(batch).numpy()
    assert (ours[batch.num_result_bytes :] == theirs[batch.num_result_bytes :]).all()
    at = 0
    for row in formats:
        width = row.dtype.row_bytes(row.dimensions)
        got, wanted = (values_of(data[at : at + width], row.dtype) for data in (ours, theirs))
        np.testing.assert_allclose(
            got, wanted, rtol=LAST_BIT[row.dtype], atol=4e-6, err_msg=str(row)
        )
        at += width
    assert at == batch.num_result_bytes


# One step of each format; whole numbers differ by it where a value lies next to a tie.
LAST_BIT = {
    RowDtype.FLOAT32: 1e-5,
    RowDtype.FLOAT16: 2**-10,
    RowDtype.BFLOAT16: 2**-7,
} | dict.fromkeys((RowDtype.INT8, RowDtype.UINT8, RowDtype.BINARY, RowDtype.UBINARY), 0)


def values_of(data: NDArray[np.uint8], dtype: RowDtype) -> NDArray[np.float64]:
    """A packed row's numbers; bits as 0 and 1."""
    torch_dtypes = {
        RowDtype.FLOAT32: torch.float32,
        RowDtype.FLOAT16: torch.float16,
        RowDtype.BFLOAT16: torch.bfloat16,
        RowDtype.INT8: torch.int8,
    }
    if dtype in (RowDtype.BINARY, RowDtype.UBINARY):
        return np.unpackbits(data ^ (0x80 if dtype is RowDtype.BINARY else 0)).astype(np.float64)
    return torch.from_numpy(data.copy()).view(torch_dtypes.get(dtype, torch.uint8)).double().numpy()


def test_queries_take_turns_on_two_streams_and_all_else_has_one(
    plain: Engine, runner: RaggedRunner, device: FakeDevice
) -> None:
    capture(runner, GraphCapture.START)
    for stream in ("online", "normal", "online", "normal", "online"):
        batch = batch_of([5, 9], stream=stream)
        with torch.inference_mode():
            result = runner.step(batch).numpy()
        np.testing.assert_allclose(
            rows(result, batch), rows(plain.step(batch).numpy(), batch), atol=2e-6
        )
    first, normal, second, *again = device.used
    assert again == [normal, first]
    assert len({first, second, normal}) == 3
    assert first.startswith("urgent")
    assert second.startswith("urgent")


def test_every_size_is_captured_before_the_first_step(
    runner: RaggedRunner, device: FakeDevice
) -> None:
    capture(runner, GraphCapture.START)
    at_start = device.num_captures
    # Two slot classes, buckets to 64, twice, and to 320; of many slots 64, twice, 256 and 320.
    assert at_start == 2 * (2 * 2 + 6) + 2 * 1 + 2
    with torch.inference_mode():
        assert runner.step(batch_of([7, 9])).mode == "replay"
        assert runner.step(batch_of([7], stream="online")).mode == "replay"
    assert device.num_captures == at_start


@pytest.mark.parametrize("when", [GraphCapture.OFF, GraphCapture.LAZY])
def test_without_graphs_a_start_runs_a_step_for_each_kernel(
    runner: RaggedRunner, monkeypatch: pytest.MonkeyPatch, when: GraphCapture
) -> None:
    sizes: list[tuple[int, int, int]] = []

    def forward(
        _model: RaggedModel, inputs: StagedInputs, _head: str, max_seqlen: int, *_: object
    ) -> None:
        sizes.append((len(inputs.ids), len(inputs.pair_starts), max_seqlen))

    monkeypatch.setattr(RaggedModel, "forward", forward)
    capture(runner, when, 5_000)
    online = [(64, 128, 64)]  # the largest, which is short
    normal = [(size, 16, size) for size in (192, 2_048, 4_096)]
    normal = [(5_120, 128, 5_120), *normal, (5_120, 128, 64)]
    if when is GraphCapture.OFF:
        assert sizes == [*online, *online, *normal]
    else:
        assert {*online, *normal} <= {*sizes}


def test_captured_again_for_other_sizes_steps_are_right(
    plain: Engine, runner: RaggedRunner
) -> None:
    for max_tokens in (320, 1_300, 128):
        capture(runner, GraphCapture.START, max_tokens)
        for lengths in ([40, 3, 60], [64] * 2, [5] * 20):
            batch = batch_of(lengths)
            with torch.inference_mode():
                result = runner.step(batch)
            assert result.mode == "replay"
            np.testing.assert_allclose(
                rows(result.numpy(), batch), rows(plain.step(batch).numpy(), batch), atol=2e-6
            )


def test_steps_that_fit_no_graph_are_right_all_the_same(
    plain: Engine, runner: RaggedRunner
) -> None:
    capture(runner, GraphCapture.START)
    for lengths, stream in (([100], "online"), ([3] * 130, "normal"), ([200, 200], "normal")):
        batch = batch_of(lengths, stream=stream)
        with torch.inference_mode():
            result = runner.step(batch)
        assert result.mode == "eager"
        np.testing.assert_allclose(
            rows(result.numpy(), batch), rows(plain.step(batch).numpy(), batch), atol=2e-6
        )


@pytest.mark.parametrize("when", [GraphCapture.START, GraphCapture.OFF])
def test_steps_of_short_sequences_need_no_long_kernel(
    plain: Engine, runner: RaggedRunner, monkeypatch: pytest.MonkeyPatch, when: GraphCapture
) -> None:
    monkeypatch.setattr(graphs, "MIN_SHORT_TOKENS", 256)
    monkeypatch.setattr(graphs, "BUCKET_STEPS", ((64, 64), (1 << 20, 256)))
    capture(runner, when, 576)
    monkeypatch.setattr(flash_attention, "flash_attention", None)
    for lengths in ([64, 1, 63, 0, 5], [6] * 64, [40, 64, 2, 50]):
        batch = batch_of(lengths)
        with torch.inference_mode():
            result = runner.step(batch)
        is_captured = when is GraphCapture.START
        assert result.mode == ("replay" if is_captured else "eager")
        assert (result.padding_tokens > 64) == is_captured
        statuses = result.numpy()[batch.num_result_bytes :]
        assert [bool(status) for status in statuses] == [length == 0 for length in lengths]
        np.testing.assert_allclose(
            values(result.numpy(), batch), values(plain.step(batch).numpy(), batch), atol=2e-6
        )


def test_rows_of_tokens_run_without_a_graph(plain: Engine, runner: RaggedRunner) -> None:
    capture(runner, GraphCapture.START)
    batch = PackedBatch.build([[5, 6, 7], [8]], RowFormat(32, normalize=False), head="tokens")
    with torch.inference_mode():
        result = runner.step(batch)
    np.testing.assert_allclose(
        rows(result.numpy(), batch), rows(plain.step(batch).numpy(), batch), atol=2e-6
    )


def test_a_result_keeps_its_bytes_while_later_steps_run(runner: RaggedRunner) -> None:
    capture(runner, GraphCapture.START)
    first = batch_of([9, 4])
    with torch.inference_mode():
        kept = runner.step(first)
        before = kept.host().tobytes()
        later = [runner.step(batch_of([n])) for n in range(1, 8)]
        assert kept.host().tobytes() == before
        assert len({result.device_rows().pointer for result in (kept, *later)}) == 8  # pyright: ignore
        del later
        gc.collect()
        runner.step(batch_of([3]))
    assert kept.host().tobytes() == before


def test_a_batch_whose_parts_do_not_fit_leaves_its_place_to_later_steps(
    runner: RaggedRunner,
) -> None:
    capture(runner, GraphCapture.START)
    with torch.inference_mode():
        broken = PackedBatch(
            **{
                **{n: getattr(batch_of([4]), n) for n in PackedBatch.__slots__},
                "offsets": np.array([0, 9], np.int32),
            }
        )
        with pytest.raises(ValueError, match="cu_seqlens"):
            runner.step(broken)
        assert runner.step(batch_of([4])).mode == "replay"
