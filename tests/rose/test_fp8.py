"""Models whose products are in 8 bits: who may ask for it, and how near vectors stay to those of float32.

On a CPU, where it is refused, the references of the kernels compute it all the same.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

import qwen
from flowerbed.config import DType, GraphCapture
from flowerbed.errors import ConfigError
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose import device as devices
from flowerbed.rose import engine as engines
from flowerbed.rose.engine import Engine
from flowerbed.rose.kernels import fused_linear, scaled_linear
from flowerbed.rose.kernels.attention import Backend
from flowerbed.rose.layers import linear
from references import (
    engine_rows,
    lowest_cosine,
    reference_ids,
    reference_model,
    reference_rows,
)

LEAST = 0.99
"""Of MiniLM and of random models; bfloat16 has 0.9999."""
LENGTHS = (1, 2, 7, 31, 64)


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Lets a CPU compute in 8 bits, with weights that are laid out as on a GPU."""
    monkeypatch.setattr(engines, "pick_dtype", lambda dtype, *_: dtype)
    monkeypatch.setattr(linear, "pack_weight", lambda weight: weight)


def random_ids(num_words, lengths=LENGTHS):
    dice = random.Random(sum(lengths))
    return [[dice.randrange(num_words) for _ in range(length)] for length in lengths]


def test_a_cpu_is_refused(load, minilm_folder):
    with pytest.raises(ConfigError, match=r"^dtype fp8 is not supported on a CPU; use --dtype"):
        load(minilm_folder, dtype=DType.FP8)


@pytest.mark.parametrize(
    ("capability", "other"), [((8, 6), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float32")]
)
def test_GPUs_without_it_are_refused(monkeypatch, capability, other):
    monkeypatch.setattr(devices.torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(ConfigError, match=f"fp8 needs a GPU of compute capability 8.9.*{other}$"):
        devices.pick_dtype(DType.FP8, torch.device("cuda", 0), DType.BFLOAT16)


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (12, 0)])
def test_it_is_there_for_who_asks_and_never_chosen(monkeypatch, capability):
    monkeypatch.setattr(devices.torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda", 0)
    for preferred in (DType.BFLOAT16, DType.FLOAT16):
        assert devices.pick_dtype(DType.FP8, device, preferred) is DType.FP8
        assert devices.pick_dtype(DType.AUTO, device, preferred) is preferred


def test_it_has_a_space_of_its_own(minilm_folder):
    folder = read_folder(resolve(str(minilm_folder)))
    digests = folder.weight_digests()
    assert len({folder.space(dtype, digests) for dtype in DType}) == len(DType)


def test_its_space_names_whose_kernels_made_the_vectors(on_a_cpu, load, minilm_folder, monkeypatch):
    engine = load(minilm_folder, dtype=DType.FP8)
    assert (
        engine.info().space
        == engine.space
        == engine.folder.space("fp8", kernels=("torch", "torch", "sdpa"))
    )
    others = [engine.space]
    monkeypatch.setattr(fused_linear, "fuses_products", lambda device, dtype: True)
    others.append(engine.space)
    engine.attention = Backend.FLASH_ATTN_4
    others.append(engine.space)
    monkeypatch.setattr(scaled_linear, "why_no_triton", lambda: None)
    engine.device = torch.device("cuda", 0)
    others.append(engine.space)
    assert len({*others, engine.folder.space("fp8")}) == 5
    engine.dtype = DType.BFLOAT16
    assert engine.space == engine.folder.space("bfloat16")


def test_sizes_that_no_kernel_serves_are_refused(on_a_cpu, load, tmp_path, real_texts):
    qwen.write_qwen3_embedding(tmp_path, real_texts)
    qwen.edit_json(tmp_path / "config.json", intermediate_size=72)
    qwen.save_weights(tmp_path, with_head=True)
    with pytest.raises(ConfigError, match="multiples of 16; this model has one of 72 to 32"):
        load(tmp_path, dtype=DType.FP8)


def test_MiniLM_stays_near_sentence_transformers(on_a_cpu, load, minilm_folder, sample_texts):
    reference = reference_model(minilm_folder)
    engine = load(minilm_folder, dtype=DType.FP8)
    rows = engine_rows(engine, reference_ids(reference, sample_texts))
    cosine = lowest_cosine(rows, reference_rows(reference, sample_texts))
    assert LEAST < cosine < 0.9995  # products that were not in 8 bits would be nearer
    assert engine.info().dtype == "fp8"


@pytest.mark.parametrize("causal", [True, False])
def test_Qwen3_stays_near_float32(on_a_cpu, load, tmp_path, real_texts, causal):
    qwen.write_qwen3_embedding(tmp_path, real_texts)
    qwen.edit_json(tmp_path / "config.json", is_causal=causal)
    qwen.save_weights(tmp_path, with_head=True)
    sequences = random_ids(qwen.VOCAB_ROWS)
    engine = load(tmp_path, dtype=DType.FP8)
    rows = engine_rows(engine, sequences)
    exact = engine_rows(load(tmp_path, dtype=DType.FLOAT32), sequences)
    assert 0.97 < lowest_cosine(rows, exact) < 0.9999
    alone = np.concatenate([engine_rows(engine, [sequence]) for sequence in sequences])
    assert lowest_cosine(rows, alone) >= 0.999


@pytest.fixture(scope="module", params=["bert", "qwen3", "qwen3 of other heads"])
def gpu_folder(request, tmp_path_factory):
    """Random models; all of MiniLM's width but one, whose heads have kernels of their own."""
    import transformers

    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("fp8") / "random"
    shape = {"vocab_size": 2_000, "num_hidden_layers": 4, "max_position_embeddings": 2_048}
    if request.param == "bert":
        config = transformers.BertConfig(hidden_size=384, intermediate_size=1_536, **shape)
        transformers.BertModel(config).save_pretrained(path)
    else:
        head_dim = 128 if request.param == "qwen3" else 64
        config = transformers.Qwen3Config(
            hidden_size=512,
            intermediate_size=1_536,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=head_dim,
            **shape,
        )
        transformers.Qwen3Model(config).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    (path / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": config.hidden_size, "pooling_mode": "mean"}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return read_folder(resolve(str(path)))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # flash-attn-4 imports torch's compiler
def test_vectors_on_a_gpu(gpu_folder):
    sequences = random_ids(2_000, (1, 2, 31, 31, 64, 200, 7, 512, 1_300))
    exact = engine_rows(Engine.load(gpu_folder, device="cpu"), sequences)
    engine = Engine.load(gpu_folder, device="cuda", dtype=DType.FP8)
    together = engine_rows(engine, sequences)
    assert LEAST < lowest_cosine(together, exact) < 0.99999
    alone = np.concatenate([engine_rows(engine, [sequence]) for sequence in sequences])
    assert lowest_cosine(together, alone) >= 0.999
    engine.capture(
        online_tokens=64, normal_tokens=4_096, when=GraphCapture.START, memory_limit=1 << 30
    )
    for _ in range(5):
        assert lowest_cosine(engine_rows(engine, sequences), together) >= 0.9999
        assert lowest_cosine(engine_rows(engine, sequences[:3]), alone[:3]) >= 0.999
