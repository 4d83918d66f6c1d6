"""FlashInfer's steps on a device that only plays one, with a FlashInfer that computes by torch."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fake_device import FakeDevice, FakeEvent, read_on_the_device
from flowerbed.config import Attention, GraphCapture
from flowerbed.errors import ConfigError
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose import device as picks
from flowerbed.rose.engine import Engine
from flowerbed.rose.forward import RaggedModel
from flowerbed.rose.graphs import StepSizes
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels import flash_attention, flashinfer_attention
from flowerbed.rose.kernels.attention import AttentionPlan, Backend, attention
from flowerbed.rose.lane import STEPS_IN_FLIGHT
from flowerbed.rose.ragged import RaggedRunner
from qwen import QWEN3_EMBEDDING_CONFIG, save_weights, write_json
from references import lowest_cosine

HIDDEN = 32


class Event(FakeEvent):
    """Tells its device, when it is waited for, how far a stream has come."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream, self.place = "", 0

    def record(self, stream: str) -> None:
        self.stream, self.place = stream, self.device.enqueued[stream]

    def synchronize(self) -> None:
        if self.place:
            self.device.done[self.stream] = max(self.device.done[self.stream], self.place)


class Device(FakeDevice):
    """Nothing is done on it until it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.enqueued: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def event(self, *, is_urgent: bool) -> Event:
        super().event(is_urgent=is_urgent)
        return Event(self)

    def enqueue(self) -> int:
        self.enqueued[self.current] += 1
        return self.enqueued[self.current]


class Wrapper:
    """What is used of flashinfer.BatchPrefillWithRaggedKVCacheWrapper, with its own checks and ours."""

    device: Device
    made: list[Wrapper]

    def __init__(self, float_workspace_buffer: Tensor) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        self.place, self.stream = 0, self.device.current
        self.num_plans = 0
        self.made.append(self)

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        **options: Any,
    ) -> None:
        assert options.keys() == {"causal", "window_left", "q_data_type"}
        assert self.device.current == self.stream
        assert self.place <= self.device.done[self.stream], "its last copy may be under way"
        assert qo_indptr.dtype == torch.int32
        assert torch.equal(qo_indptr, kv_indptr)
        self.place = self.device.enqueue()
        self.bounds = qo_indptr.tolist()
        assert self.bounds == sorted(self.bounds)
        self.sizes = num_qo_heads, num_kv_heads, head_dim_qk, options["q_data_type"]
        self.causal, self.window = options["causal"], options["window_left"]
        self.num_plans += 1

    def run(self, q: Tensor, k: Tensor, v: Tensor, *, enable_pdl: bool) -> Tensor:
        assert len(q) == self.bounds[-1]  # it refuses rows of no sequence
        assert (q.shape[1], k.shape[1], q.shape[2], q.dtype) == self.sizes
        out = torch.full(q.shape, torch.nan)
        for start, end in pairwise(self.bounds):
            place = torch.arange(end - start)
            ahead = place[None, :] - place[:, None]
            seen = (ahead <= 0) if self.causal else torch.ones_like(ahead, dtype=torch.bool)
            if self.window >= 0:
                seen &= ahead >= -self.window
            parts = (rows[start:end].transpose(0, 1) for rows in (q, k, v))
            mixed = functional.scaled_dot_product_attention(*parts, seen, enable_gqa=True)
            out[start:end] = mixed.transpose(0, 1)
        return out


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(Wrapper, "device", device, raising=False)
    monkeypatch.setattr(Wrapper, "made", [], raising=False)
    fake = SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=Wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    flashinfer_attention.flashinfer_library.cache_clear()
    monkeypatch.setattr(flash_attention, "flash_attention", read_on_the_device)
    return device


@pytest.fixture(scope="module", params=["bert", "causal", "window", "window to both sides"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: Any, tiny_bert: Path) -> Engine:
    folder = tmp_path_factory.mktemp("flashinfer") / "tiny"
    if request.param == "bert":
        shutil.copytree(tiny_bert, folder)
    else:
        window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
        config = QWEN3_EMBEDDING_CONFIG | ({} if request.param == "causal" else window)
        is_causal = request.param != "window to both sides"
        write_json(folder / "config.json", config | {"is_causal": is_causal})
        save_weights(folder, with_head=False)
        (folder / "tokenizer.json").write_text("{}")
    pooling = {"embedding_dimension": HIDDEN, "pooling_mode": "mean"}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return Engine.load(read_folder(resolve(str(folder))), device="cpu")


@pytest.fixture
def runner(plain: Engine, device: Device) -> RaggedRunner:
    model = RaggedModel(
        plain._encoder, plain._heads, Backend.FLASHINFER, plain.folder.text.max_length, None
    )
    with torch.inference_mode():
        runner = RaggedRunner(model, device)
        runner.capture(StepSizes(64, 320, 4 * HIDDEN), GraphCapture.START, 1 << 40)
    return runner


def batch_of(lengths: list[int], *, stream: str = "normal", head: str = "embed") -> PackedBatch:
    generator = torch.Generator().manual_seed(sum(lengths))
    ids = [torch.randint(0, 990, (n,), generator=generator).tolist() for n in lengths]
    built = PackedBatch.build(ids, RowFormat(HIDDEN), head=head)
    return PackedBatch(**{**{n: getattr(built, n) for n in built.__slots__}, "stream": stream})


def rows(result: Any, batch: PackedBatch) -> Any:
    data = result.numpy()
    assert not data[batch.num_result_bytes :].any()
    return data[: batch.num_result_bytes].view("float32").reshape(batch.num_rows, -1)


@pytest.mark.parametrize("head", ["embed", "tokens"])
def test_rows_equal_plain_ones(
    plain: Engine, runner: RaggedRunner, device: Device, head: str
) -> None:
    for lengths in ([1], [64], [65], [3, 40, 1, 20], [200, 7], [1] * 70, [128, 128]):
        for stream in ("normal", "online"):
            batch = batch_of(lengths, stream=stream, head=head)
            with torch.inference_mode():
                result = runner.step(batch)
            assert result.mode == "eager"
            assert lowest_cosine(rows(result, batch), rows(plain.step(batch), batch)) > 0.999999
    assert device.num_captures == 0


def test_a_plan_is_not_written_again_while_its_step_is_in_flight(
    plain: Engine, runner: RaggedRunner, device: Device
) -> None:
    waiting = []
    with torch.inference_mode():
        for number in range(12):
            batch = batch_of([5 + number, 3], stream="online" if number % 3 else "normal")
            waiting.append((batch, runner.step(batch)))  # nobody waits for a result
    for batch, result in waiting:
        assert lowest_cosine(rows(result, batch), rows(plain.step(batch), batch)) > 0.999999
    kinds = {(wrapper.causal, wrapper.window) for wrapper in Wrapper.made}
    assert len(Wrapper.made) == device.num_streams * STEPS_IN_FLIGHT * len(kinds)
    assert all(wrapper.num_plans >= 2 for wrapper in Wrapper.made)


def test_layers_of_a_kind_share_a_plan_and_windows_to_both_sides_go_to_torch(
    plain: Engine, runner: RaggedRunner
) -> None:
    with torch.inference_mode():
        runner.step(batch_of([30, 4]))
    seen = {(w.causal, w.window) for w in Wrapper.made}
    config = getattr(plain._encoder, "config", None)
    causal = getattr(config, "causal", False)
    windows = set(getattr(config, "windows", [None]))
    expected = {(causal, -1 if w is None else w) for w in windows if causal or w is None}
    assert seen == expected


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(flash_attention, "why_no_triton", lambda: None)
    monkeypatch.setattr(flash_attention, "why_no_package", lambda _: None)


def pick(attention: Attention, head_dim: int = 128, dtype: torch.dtype = torch.bfloat16) -> Backend:
    return picks.pick_attention(attention, torch.device("cuda", 0), dtype, head_dim)


def test_it_is_chosen_by_name_alone(
    hopper: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        assert pick(Attention.FLASHINFER, 64, torch.float16) is Backend.FLASHINFER
    assert "CUDA graphs are off" in caplog.text
    assert pick(Attention.AUTO) is Backend.FLASH_ATTN_4
    assert pick(Attention.AUTO, 256) is Backend.TORCH_FLASH
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert pick(Attention.AUTO) is Backend.TORCH_FLASH
    assert pick(Attention.FLASHINFER) is Backend.FLASHINFER


@pytest.mark.parametrize(
    ("head_dim", "dtype", "reason"),
    [
        (32, torch.bfloat16, "flashinfer has no heads of 32, only of 64, 128, 256"),
        (128, torch.float32, "ragged attention has no float32"),
    ],
)
def test_what_it_cannot_serve_is_refused(
    hopper: None, head_dim: int, dtype: torch.dtype, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"flashinfer cannot be honoured on cuda:0: {reason}"):
        pick(Attention.FLASHINFER, head_dim, dtype)


def test_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="honoured on cpu: ragged attention needs a GPU"):
        picks.pick_attention(Attention.FLASHINFER, torch.device("cpu"), torch.float32, 64)


def test_a_missing_package_is_named_with_its_command(
    hopper: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "flashinfer-python is not installed"
    monkeypatch.setattr(flash_attention, "why_no_package", lambda _: missing)
    with pytest.raises(ConfigError, match=missing) as caught:
        pick(Attention.FLASHINFER)
    assert caught.value.__notes__ == ["pip install 'flowerbed[engine,flashinfer]'"]


@pytest.mark.parametrize("error", [RuntimeError("Ninja build failed."), FileNotFoundError("ninja")])
def test_kernels_that_cannot_be_compiled_are_an_error_of_the_option(
    device: Device, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Wrapper, "plan", fail)
    plan = flashinfer_attention.FlashInferPlan(torch.empty(1, dtype=torch.uint8))
    plan.begin(torch.tensor([0, 4], dtype=torch.int32))
    heads = torch.zeros(4, 2, 64)
    step = AttentionPlan(Backend.FLASHINFER, torch.tensor([0, 4]), 4, on_host=plan)
    with pytest.raises(ConfigError, match="could not compile its kernels, which takes nvcc and n"):
        attention(heads, heads, heads, step)
