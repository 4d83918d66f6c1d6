"""With batch invariance on, every layer says so to whatever chooses its kernel by the number of rows."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import torch

from fake_device import FakeDevice, read_on_the_device
from flowerbed.folder import ModelFolder
from flowerbed.rose import kernels
from flowerbed.rose.engine import Engine
from flowerbed.rose.forward import RaggedModel
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels import (
    flash_attention,
    fused_linear,
    linear,
    norm_rope,
    small_linear,
)
from flowerbed.rose.kernels.attention import AttentionPlan, Backend
from flowerbed.rose.layers import rotary
from flowerbed.rose.models import bert, qwen3, roberta
from flowerbed.rose.ragged import RaggedRunner
from small_models import add_dense, small_model

MODELS = {
    "bert": ("bert", {}),
    "tanh": ("bert", {"hidden_act": "gelu_new"}),
    "relu": ("bert", {"hidden_act": "relu"}),
    "xlm-roberta": ("xlm-roberta", {}),
    "qwen3": ("qwen3", {}),
    "fused-heads": ("qwen3", {"head_dim": 128, "hidden": 256}),
    "both-ways": ("pplx", {}),
}
"""Kinds and settings of `small_model`."""
BY_ROWS = (
    "fused_linear.fused_linear",
    "short_attention.plain_short_attention",
    "short_attention.short_attention",
    "small_linear.small_gelu",
    "small_linear.small_linear_parts",
    "add_parts.add_parts_layer_norm",
    "add_parts.add_parts_rms_norm",
)
"""Serve some numbers of rows alone, with bits of their own; they know no batch invariance."""
NUM_LAYERS = 3
MODULES = (bert, qwen3, roberta)
"""Else imported by the engine, with what a test has replaced."""
Calls = list[tuple[str, bool]]


def functions_that_can_be_told() -> dict[str, Callable[..., Any]]:
    """Those of `kernels` with a parameter `batch_invariant`, by file and name; not those in Triton, which they call."""
    found: dict[str, Callable[..., Any]] = {}
    for info in iter_modules(kernels.__path__):
        if info.name.startswith(("triton_", "quack_", "flashinfer_")):
            continue
        module = import_module(f"{kernels.__name__}.{info.name}")
        for name, value in inspect.getmembers(module, inspect.isfunction):
            is_own = value.__module__ == module.__name__
            if is_own and "batch_invariant" in inspect.signature(value).parameters:
                found[f"{info.name}.{name}"] = value
    return found


def replace_everywhere(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], other: Callable[..., Any]
) -> None:
    """Puts another in the place of a function in every file that imported it."""
    assert all(module.__name__ in sys.modules for module in MODULES)
    for name, module in list(sys.modules.items()):
        if name.startswith("flowerbed.rose"):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    monkeypatch.setattr(module, attribute, other)


def recorded(name: str, function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def record(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        calls.append((name, bound.arguments["batch_invariant"]))
        return function(*args, **options)

    return record


def forbidden(name: str) -> Callable[..., Any]:
    def fail(*_args: Any, **_options: Any) -> Any:
        raise AssertionError(f"{name} was called")

    return fail


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What each call from now on is told. All steps are small, and layers take what else only a GPU has."""
    found: Calls = []

    def attend(q: Any, k: Any, v: Any, plan: AttentionPlan, **options: Any) -> torch.Tensor:
        found.append(("attention", plan.batch_invariant))
        return read_on_the_device(q, k, v, plan, **options)

    monkeypatch.setattr(Engine, "warm_up", lambda engine: None)
    monkeypatch.setattr(flash_attention, "flash_attention", attend)
    monkeypatch.setattr(rotary, "fuses_products", lambda device, dtype: True)
    # Rows of a CPU's own layout cannot be put in another order.
    replace_everywhere(monkeypatch, linear.pack_weight, lambda weight: weight)
    replace_everywhere(monkeypatch, small_linear.is_small_step, lambda x, max_tokens: True)
    for name in BY_ROWS:
        file, _, function = name.partition(".")
        module = import_module(f"{kernels.__name__}.{file}")
        replace_everywhere(monkeypatch, getattr(module, function), forbidden(name))
    for name, function in functions_that_can_be_told().items():
        replace_everywhere(monkeypatch, function, recorded(name, function, found))
    return found


def run(folder: ModelFolder, *, batch_invariant: bool) -> None:
    """A step of a short and a long sequence, and one of short sequences alone."""
    engine = Engine.load(folder, device="cpu")
    model = RaggedModel(
        engine._encoder,
        engine._heads,
        Backend.FLASH_ATTN_4,
        folder.text.max_length,
        None,
        batch_invariant,
    )
    runner = RaggedRunner(model, FakeDevice())
    for lengths in ([5, 90], [3, 1, 60]):
        batch = PackedBatch.build([[7] * n for n in lengths], RowFormat(folder.dimensions))
        with torch.inference_mode():
            result = runner.step(batch).numpy()
        assert not result[batch.num_result_bytes :].any()


@pytest.mark.parametrize("name", ["qwen3", "fused-heads", "both-ways"])
def test_small_steps_of_qwen3_tell_whatever_can_be_told(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fused_linear, "_fuses", lambda *args: True)
    kind, settings = MODELS[name]
    run(small_model(kind, tmp_path / name, **settings), batch_invariant=True)
    assert [call for call, is_told in calls if not is_told] == []
    # Heads of 128 columns have kernels of equal bits, for which there is nothing to tell.
    own = {"attention", "fused_linear.linear_activation"}
    if name == "fused-heads":
        own = {"fused_linear.fuses_norm_rope"}
    assert {call for call, _ in calls} == {"pooling.pool_segments", *own}


@pytest.mark.parametrize("reason", ["shape", "triton"])
def test_small_steps_of_qwen3_whose_bits_may_differ_take_what_large_ones_take(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(fused_linear, "_fuses", lambda *args: False)
    monkeypatch.setattr(qwen3, "has_known_sums", lambda: reason != "triton")
    for function in (small_linear.small_linear, small_linear.small_swiglu, norm_rope.norm_rope_):
        replace_everywhere(monkeypatch, function, forbidden(function.__name__))
    kind, settings = MODELS["fused-heads"]
    run(small_model(kind, tmp_path / reason, **settings), batch_invariant=True)
    assert {"attention", "fused_linear.linear_swiglu"} < {call for call, _ in calls}


@pytest.mark.parametrize("has_dense", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_every_call_that_can_be_told_is_told(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, name: str, has_dense: bool
) -> None:
    monkeypatch.setattr(qwen3, "is_small_step", lambda x, max_tokens: False)
    kind, settings = MODELS[name]
    folder = small_model(kind, tmp_path / name, **settings)
    if has_dense:
        folder = add_dense(folder, 48, 20)
    run(folder, batch_invariant=True)
    assert [call for call, is_told in calls if not is_told] == []
    expected = {"attention", "pooling.pool_segments", "fused_linear.linear_activation"}
    if kind in ("qwen3", "pplx"):
        expected.add("fused_linear.linear_swiglu")
    if name == "fused-heads":
        expected.add("fused_linear.fuses_norm_rope")
    assert {call for call, _ in calls} == expected
    num_products = NUM_LAYERS * (3 if kind in ("qwen3", "pplx") else 4) + 2 * has_dense
    assert [call for call, _ in calls].count("fused_linear.linear_activation") == 2 * num_products


def test_a_step_that_is_not_to_be_invariant_meets_what_serves_few_rows(
    tmp_path: Path, calls: Calls
) -> None:
    folder = small_model("bert", tmp_path / "bert")
    with pytest.raises(AssertionError, match="short_attention.plain_short_attention was called"):
        run(folder, batch_invariant=False)
    assert calls == []
