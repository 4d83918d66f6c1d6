"""What the engine refuses at start, with the reason."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from flowerbed.config import DType
from flowerbed.errors import ConfigError, DeviceError, ModelError
from flowerbed.rose import device as devices
from flowerbed.rose.device import fault_of, pick_device, pick_dtype

CPU = torch.device("cpu")


@pytest.fixture
def folder(make_folder, pool):
    return make_folder(pool("mean"))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"position_embedding_type": "alibi"},
            "position_embedding_type='alibi' is not .*'absolute'",
        ),
        ({"is_decoder": True}, "is_decoder='True' is not supported; supported: False"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_act": "laplace"}, "hidden_act='laplace' is not supported; supported: gelu, "),
        ({"hidden_act": 3}, "hidden_act should be str"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: bert"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map asks for the folder's own code"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"num_attention_heads": 5}, "hidden_size=32 is no multiple of num_attention_heads=5"),
        ({"vocab_size": "many"}, "vocab_size should be int"),
        ({"num_hidden_layers": 0}, "num_hidden_layers should be a whole number above 0"),
        (
            {"intermediate_size": 65},
            r"intermediate.dense.weight has shape \[64, 32\]; .* says \[65, 32\]",
        ),
        ({"num_hidden_layers": 3}, "no tensor encoder.layer.2.attention.self.query.weight"),
        ({"num_hidden_layers": 1}, "does not know: encoder.layer.1.*and 13 more"),
    ],
)
def test_NU_14_settings_that_cannot_be_honoured_are_refused(folder, load, changes, message):
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_OP_18_a_missing_tensor_is_named(folder, load):
    rewrite(folder, lambda tensors: tensors.pop("embeddings.LayerNorm.bias"))
    with pytest.raises(
        ModelError, match="model.safetensors has no tensor embeddings.LayerNorm.bias"
    ):
        load(folder)


def test_OP_18_an_unknown_tensor_is_named(folder, load):
    rewrite(folder, lambda tensors: tensors.update({"encoder.extra": torch.zeros(1)}))
    with pytest.raises(ModelError, match="does not know: encoder.extra"):
        load(folder)


def test_weights_that_are_no_floats_are_refused(folder, load):
    rewrite(
        folder,
        lambda tensors: tensors.update(
            {"embeddings.LayerNorm.bias": torch.ones(32, dtype=torch.int8)}
        ),
    )
    with pytest.raises(ModelError, match="only float weights are supported"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\xff" * 64])
def test_OP_18_damaged_weights_are_refused(folder, load, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="not a good safetensors file"):
        load(folder)


def test_weights_cut_short_are_refused(folder, load):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="not a good safetensors file"):
        load(folder)


@pytest.mark.parametrize(
    ("has_bfloat16", "usable"),
    [(False, "--dtype float32$"), (True, "--dtype float32 or bfloat16$")],
)
def test_NU_04_float16_on_a_cpu_is_refused_with_what_to_use(monkeypatch, has_bfloat16, usable):
    monkeypatch.setattr(devices.torch.cpu, "get_capabilities", lambda: {"amx_bf16": has_bfloat16})
    with pytest.raises(ConfigError, match=f"float16 is not supported on a CPU; use {usable}"):
        pick_dtype(DType.FLOAT16, CPU, DType.FLOAT16)


def test_NU_04_bfloat16_needs_a_cpu_that_has_it(monkeypatch):
    monkeypatch.setattr(devices.torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    with pytest.raises(
        ConfigError, match="needs a CPU with avx512_bf16 or amx_bf16; use --dtype float32$"
    ):
        pick_dtype(DType.BFLOAT16, CPU, DType.BFLOAT16)
    monkeypatch.setattr(devices.torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert pick_dtype(DType.BFLOAT16, CPU, DType.BFLOAT16) is DType.BFLOAT16


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            "memory",
        ),
        (MemoryError(), "memory"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "device"),
        (DeviceError("it fell off the bus"), "device"),
        (IndexError("index out of range in self"), "input"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "input"),
    ],
)
def test_a_step_that_raises_is_laid_to_input_memory_or_device(error, fault):
    assert fault_of(error) == fault


def test_OP_03_torch_without_memory_on_a_cpu_is_a_fault_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert fault_of(caught.value) == "memory"


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [((9, 0), DType.BFLOAT16), ((8, 0), DType.BFLOAT16), ((7, 5), DType.FLOAT32)],
)
def test_NU_04_auto_is_safe_on_every_gpu(monkeypatch, capability, dtype):
    monkeypatch.setattr(devices.torch.cuda, "get_device_capability", lambda device: capability)
    assert pick_dtype(DType.AUTO, torch.device("cuda", 0), DType.BFLOAT16) is dtype


def test_auto_is_float32_on_a_cpu():
    for preferred in (DType.BFLOAT16, DType.FLOAT16):
        assert pick_dtype(DType.AUTO, CPU, preferred) is DType.FLOAT32


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:0", ""])
def test_unknown_devices_are_refused(name):
    with pytest.raises(ConfigError, match="use auto, cpu, cuda or cuda:N"):
        pick_device(name)


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(devices.torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(devices.torch.version, "cuda", "13.0")
    with pytest.raises(DeviceError, match="cuda:1 is not there; torch sees 0 GPUs"):
        pick_device("cuda:1")
    monkeypatch.setattr(devices.torch.version, "cuda", None)
    with pytest.raises(DeviceError, match="built with CUDA"):
        pick_device("cuda")
