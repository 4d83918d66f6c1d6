"""What a start runs, and what it refuses, so that no request finds out."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from flowerbed import worker
from flowerbed.config import CPU_BATCH_TOKENS, CPU_SATURATION_BATCH_TOKENS, GraphCapture
from flowerbed.errors import ConfigError, ModelError
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch
from flowerbed.rose.lazy import LazyTensor


@pytest.mark.parametrize(("value", "what"), [(float("nan"), "not finite"), (0.0, "all zero")])
def test_NU_03_damaged_weights_are_refused_at_start(
    minilm_folder: Path, tmp_path: Path, value: float, what: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(minilm_folder, folder)
    weights = load_file(folder / "model.safetensors")
    for part in ("weight", "bias"):
        weights[f"encoder.layer.5.output.LayerNorm.{part}"].fill_(value)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=what):
        Engine.load(read_folder(resolve(str(folder))))


@pytest.fixture
def step_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each step that any engine runs from now on."""
    sizes: list[int] = []
    step = Engine.step

    def counted(engine: Engine, batch: PackedBatch) -> LazyTensor:
        sizes.append(batch.num_tokens)
        return step(engine, batch)

    monkeypatch.setattr(Engine, "step", counted)
    return sizes


def take_memory(engine: Engine, max_tokens: int) -> None:
    worker.take_memory(
        engine, online_tokens=1, normal_tokens=max_tokens, when=GraphCapture.OFF, memory_limit=0
    )


def test_OP_01_a_model_of_16k_tokens_starts_with_steps_of_the_budget_and_no_larger(
    make_folder, pool, save_encoder, step_sizes: list[int]
) -> None:
    encoder = BertModel(BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=16_384,
    ))  # fmt: skip
    folder = make_folder(pool("mean"), encoder=save_encoder(encoder))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16384}')
    engine = Engine.load(read_folder(resolve(str(folder))), device="cpu")
    assert engine.folder.text.max_length == 16_384
    take_memory(engine, CPU_SATURATION_BATCH_TOKENS)
    worker.cost_per_second(engine, engine.info().attention_scale, CPU_BATCH_TOKENS)
    assert max(step_sizes) == CPU_SATURATION_BATCH_TOKENS
    assert sum(step_sizes) < 10 * CPU_SATURATION_BATCH_TOKENS


def test_OP_01_a_budget_that_does_not_fit_into_memory_is_refused_at_start(
    minilm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def squeezed(engine: Engine, batch: PackedBatch) -> LazyTensor:
        assert batch.num_tokens == 700
        torch.empty(1 << 50, dtype=torch.uint8)  # more than any machine has
        raise AssertionError

    monkeypatch.setattr(Engine, "step", squeezed)
    with pytest.raises(ConfigError, match="a step of 700 tokens does not fit") as caught:
        take_memory(minilm, 700)
    assert "--max-batch-tokens" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("device", "longest", "sizes"),
    [("cuda", 32_768, [16_384, 32_768]), ("cuda", 8_192, [16_384]), ("cpu", 32_768, [16_384])],
)
def test_OP_01_the_longest_input_is_tried_alone_on_a_gpu_where_no_step_holds_it(
    monkeypatch: pytest.MonkeyPatch, device: str, longest: int, sizes: list[int]
) -> None:
    tried: list[PackedBatch] = []

    def step(_engine: Engine, batch: PackedBatch) -> SimpleNamespace:
        tried.append(batch)
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(Engine, "step", step)
    engine = of_length(longest, device)
    take_memory(engine, 16_384)
    assert [batch.num_tokens for batch in tried] == sizes
    assert tried[0].max_seqlen == min(longest, 16_384)
    assert tried[-1].max_seqlen == min(longest, sizes[-1])


def test_OP_01_a_longest_input_that_does_not_fit_into_memory_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def squeezed(_engine: Engine, batch: PackedBatch) -> SimpleNamespace:
        if batch.num_sequences == 1 and batch.num_tokens > 16_384:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(Engine, "step", squeezed)
    what = "an input of 32768 tokens, the model's longest, does not fit"
    with pytest.raises(ConfigError, match=what) as caught:
        take_memory(of_length(32_768, "cuda"), 512)
    assert "max_seq_length" in caught.value.__notes__[0]


def of_length(longest: int, device: str) -> Engine:
    """An engine in name, whose steps a test has replaced."""
    engine = Engine.__new__(Engine)
    engine.device = torch.device(device)
    engine.folder = SimpleNamespace(text=SimpleNamespace(max_length=longest), dimensions=8)
    engine._runner = SimpleNamespace(capture=lambda *_: None)
    return engine
