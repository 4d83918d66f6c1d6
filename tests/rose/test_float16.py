"""float16: what `auto` chooses, and values of a wider format's models that are beyond its range."""

from __future__ import annotations

import logging
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flowerbed.config import DType
from flowerbed.errors import ModelError
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose import device as devices
from flowerbed.rose import engine as engines
from flowerbed.rose.engine import Engine
from flowerbed.rose.layers import linear
from flowerbed.rose.models import bert, registry
from references import engine_rows, lowest_cosine, reference_ids, reference_model, reference_rows
from small_models import VOCAB_ROWS, small_model

LAYER = "encoder.layer.1"
UNIT, COLUMN = 100, 7
BEYOND = 100_000.0
CUDA = torch.device("cuda", 0)


def widen_bias(weights):
    """One hidden unit by its bias, whatever the text."""
    weights[f"{LAYER}.intermediate.dense.bias"][UNIT] = BEYOND


def widen_weight(weights):
    """One hidden unit by its product, of some tokens in either direction."""
    weights[f"{LAYER}.intermediate.dense.weight"][UNIT] *= BEYOND


def widen_product(weights):
    """One sum of the second product, by a hidden unit that is within the range."""
    weights[f"{LAYER}.intermediate.dense.bias"][UNIT] = 1_000.0
    weights[f"{LAYER}.output.dense.weight"][COLUMN, UNIT] = -1_000.0


def widen_sum(weights):
    """One sum of attention's last product, by its bias."""
    weights[f"{LAYER}.attention.output.dense.bias"][COLUMN] = BEYOND


WIDER = (widen_bias, widen_weight, widen_product, widen_sum)


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Lets a CPU compute in float16, with weights that are laid out as on a GPU."""
    monkeypatch.setattr(engines, "pick_dtype", lambda dtype, *_: dtype)
    monkeypatch.setattr(linear, "pack_weight", lambda weight: weight)


@pytest.fixture
def doctored(tmp_path, request):
    """Copies MiniLM, or another folder, with weights that a function has changed."""

    def make(change, original=None):
        folder = tmp_path / change.__name__
        # Asked for where it is needed: a machine with a GPU may not have the packaged model.
        shutil.copytree(original or request.getfixturevalue("minilm_folder"), folder)
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")
        return folder

    return make


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("change", WIDER)
def test_NU_04_a_value_beyond_its_range_gives_a_vector_near_that_of_float32(
    change, small, on_a_cpu, doctored, load, sample_texts, monkeypatch
):
    folder = doctored(change)
    model = reference_model(folder)
    expected = reference_rows(model, sample_texts)
    if small:
        monkeypatch.setattr(bert, "is_small_step", lambda x, _: True)
    rows = engine_rows(load(folder, dtype=DType.FLOAT16), reference_ids(model, sample_texts))
    assert np.isfinite(rows).all()
    assert lowest_cosine(rows, expected) >= 0.999


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # flash-attn-4 imports torch's compiler
@pytest.mark.parametrize("change", WIDER)
def test_a_gpu_gives_near_vectors_too_in_small_steps_and_in_large_ones(
    change, doctored, load, tmp_path
):
    sizes = {"hidden": 768, "intermediate_size": 3_072}
    folder = doctored(change, small_model("bert", tmp_path / "random", **sizes).path)
    dice = random.Random(3)
    ids = [[dice.randrange(VOCAB_ROWS) for _ in range(n)] for n in (1, 7, 50, 128, 129, 400)]
    expected = engine_rows(load(folder), ids)
    engine = Engine.load(read_folder(resolve(str(folder))), device="cuda")
    assert engine.dtype is DType.FLOAT16
    alone = np.concatenate([engine_rows(engine, [sequence]) for sequence in ids])
    many = engine_rows(engine, ids * 6)[: len(ids)]  # past where products have kernels of their own
    assert lowest_cosine(alone, expected) >= 0.999
    assert lowest_cosine(many, expected) >= 0.999


def test_weights_beyond_its_range_are_told(on_a_cpu, doctored, load, caplog):
    with caplog.at_level(logging.WARNING):
        load(doctored(widen_bias), dtype=DType.FLOAT16)
    [message] = caplog.messages
    assert f"{LAYER}.intermediate.dense.bias has values beyond float16's range" in message
    assert "--dtype bfloat16 and float32" in message


@pytest.mark.parametrize("name", ["intermediate.dense.bias", "output.dense.bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_NU_03_damaged_weights_are_not_taken_for_large_ones(name, value, on_a_cpu, doctored, load):
    def damage(weights):
        weights[f"{LAYER}.{name}"][UNIT] = value

    is_nan = value != value
    words = "in float16 gives a vector that is not finite" if is_nan else "holds an infinite value"
    with pytest.raises(ModelError, match=words):
        load(doctored(damage), dtype=DType.FLOAT16)


def test_NU_04_a_model_that_it_cannot_hold_is_refused_with_what_to_use(on_a_cpu, doctored, load):
    def widen_queries(weights):
        weights[f"{LAYER}.attention.self.query.weight"] *= BEYOND

    with pytest.raises(ModelError, match=r"or need --dtype bfloat16 or float32$"):
        load(doctored(widen_queries), dtype=DType.FLOAT16)


MODEL_TYPES = {
    "bert": DType.FLOAT16,
    "bidirectional_pplx_qwen3": DType.BFLOAT16,
    "camembert": DType.FLOAT16,
    "qwen3": DType.BFLOAT16,
    "roberta": DType.FLOAT16,
    "xlm-roberta": DType.FLOAT16,
}
ASKED_FOR = {
    (7, 5): {DType.FLOAT32, DType.FLOAT16},
    (8, 0): {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16},
    (9, 0): {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FP8},
}
"""What each compute capability computes in, by name."""


def test_every_architecture_says_what_auto_means_on_a_GPU():
    found = {name: registry.encoder_class({"model_type": name}) for name in registry.ARCHITECTURES}
    assert {name: model.gpu_dtype for name, model in found.items()} == MODEL_TYPES


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("capability", ASKED_FOR)
def test_NU_04_auto_is_what_the_architecture_says_and_a_name_is_honoured(
    model_type, capability, monkeypatch, caplog
):
    monkeypatch.setattr(devices.torch.cuda, "get_device_capability", lambda device: capability)
    preferred = registry.encoder_class({"model_type": model_type}).gpu_dtype
    with caplog.at_level(logging.INFO, logger=devices.log.name):
        chosen = devices.pick_dtype(DType.AUTO, CUDA, preferred)
        for dtype in ASKED_FOR[capability]:
            assert devices.pick_dtype(dtype, CUDA, preferred) is dtype
    assert chosen is (MODEL_TYPES[model_type] if capability >= (8, 0) else DType.FLOAT32)
    [message] = caplog.messages
    reason = {
        DType.FLOAT32: "its compute capability is below 8.0",
        DType.FLOAT16: "this architecture stays within its range",
        DType.BFLOAT16: "this architecture may leave the range of float16",
    }[chosen]
    assert message.startswith(f"dtype auto is {chosen} on cuda:0: ")
    assert reason in message


def test_the_engine_asks_the_architecture(tmp_path, monkeypatch):
    """Up to where a device would be needed."""

    class AskedError(Exception):
        pass

    def pick(dtype, device, preferred):
        raise AskedError(preferred)

    monkeypatch.setattr(engines, "pick_dtype", pick)
    for kind, preferred in (("xlm-roberta", "float16"), ("qwen3", "bfloat16")):
        folder = small_model(kind, tmp_path / kind)
        with pytest.raises(AskedError, match=f"^{preferred}$"):
            Engine.load(folder, device="cpu")


def test_what_auto_chose_is_another_space_than_bfloat16(on_a_cpu, load, minilm_folder):
    engine = load(minilm_folder, dtype=DType.FLOAT16)
    folder = read_folder(resolve(str(minilm_folder)))
    assert engine.info().dtype == "float16"
    assert engine.info().space == engine.space == folder.space("float16")
    assert len({folder.space(dtype) for dtype in ("float16", "bfloat16", "float32")}) == 3
