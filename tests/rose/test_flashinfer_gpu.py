"""FlashInfer on an NVIDIA GPU: its kernels against torch's in float32, its engine against torch-flash's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flowerbed.config import Attention, DType, GraphCapture
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.host_plans import HostPlans
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels.attention import AttentionPlan, Backend, attention
from flowerbed.rose.kernels.flash_attention import why_no_package
from flowerbed.rose.lazy import LazyTensor
from references import engine_rows, lowest_cosine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        why_no_package(Backend.FLASHINFER) is not None,
        reason="flashinfer-python is not installed: pip install 'flowerbed[engine,flashinfer]'",
    ),
    pytest.mark.timeout(600),  # nvcc
    pytest.mark.filterwarnings("ignore"),  # of code that is not ours, while it is compiled
]

LENGTHS = (
    [1],
    [64],
    [127, 129, 1],
    [0, 3, 0, 250, 0, 0],
    [700, 5, 191, 193, 1, 1],
    [1_025],
    [2] * 66,
)
VOCAB_ROWS = 1_000


def reference(parts: tuple[Tensor, ...], bounds: list[int], *, causal: bool, window: int | None):
    out = torch.zeros(parts[0].shape, device="cuda")
    for start, end in pairwise(bounds):
        place = torch.arange(end - start, device="cuda")
        ahead = place[None, :] - place[:, None]
        seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
        if window is not None:
            seen &= ahead.abs() <= window
        q, k, v = (rows[start:end].float().transpose(0, 1) for rows in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        out[start:end] = mixed.transpose(0, 1)
    return out.flatten(1)


@pytest.mark.parametrize(
    ("causal", "window"), [(False, None), (True, None), (True, 40), (False, 40)]
)
@pytest.mark.parametrize(
    ("heads", "head_dim", "dtype"),
    [
        ((16, 8), 128, torch.bfloat16),
        ((12, 12), 64, torch.bfloat16),
        ((16, 8), 128, torch.float16),
    ],
)
def test_odd_shapes_equal_float32(heads, head_dim, dtype, causal, window):
    if causal and window is not None and (head_dim, dtype) != (128, torch.bfloat16):
        pytest.skip("one more module to compile, which takes a minute")
    torch.manual_seed(3)
    stream = torch.cuda.current_stream()
    plans = HostPlans(torch.device("cuda"), stream, torch.cuda.Event, 2)
    worst = 0.0
    for lengths in LENGTHS:
        bounds = np.cumsum([0, *lengths, -sum(lengths) % 64]).tolist()
        num_heads, num_kv_heads = heads
        qkv = torch.randn(bounds[-1], num_heads + 2 * num_kv_heads, head_dim, device="cuda")
        parts = qkv.to(dtype).split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32, pin_memory=True)
        with plans.step(cu_seqlens) as on_host:
            plan = AttentionPlan(Backend.FLASHINFER, cu_seqlens.cuda(), bounds[-1], on_host=on_host)
            rows = attention(*parts, plan, causal=causal, window=window)
        wanted = reference(parts, bounds, causal=causal, window=window)
        worst = max(worst, float((rows.float() - wanted).abs().max()))
    print(f"{heads} x {head_dim} {dtype}, causal {causal}, window {window}: worst {worst:.5f}")
    assert worst < (0.03 if dtype == torch.bfloat16 else 0.004)


@pytest.fixture(scope="module", params=["causal", "both sides", "window", "window to both sides"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Random Qwen3; its tokenizer is never used."""
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(5)
    config = Qwen3Config(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=514,
        vocab_size=VOCAB_ROWS,
        initializer_range=0.1,
        use_sliding_window="window" in request.param,
        sliding_window=30,
        max_window_layers=1,
    )
    path: Path = tmp_path_factory.mktemp("flashinfer") / "random"
    Qwen3Model(config).save_pretrained(path)
    values = json.loads((path / "config.json").read_text())
    values["is_causal"] = "both sides" not in request.param
    (path / "config.json").write_text(json.dumps(values))
    (path / "tokenizer.json").write_text("{}")
    (path / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": 256, "pooling_mode": "mean"}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return read_folder(resolve(str(path)))


def load(folder: Any, attention: Attention) -> Engine:
    engine = Engine.load(folder, device="cuda", dtype=DType.BFLOAT16, attention=attention)
    engine.capture(
        online_tokens=256, normal_tokens=1_300, when=GraphCapture.START, memory_limit=1 << 30
    )
    return engine


def random_batch(rng: np.random.Generator, stream: str) -> PackedBatch:
    lengths = rng.integers(1, 300 if stream == "normal" else 60, int(rng.integers(1, 9)))
    ids = [rng.integers(5, VOCAB_ROWS, n).tolist() for n in lengths]
    built = PackedBatch.build(ids, RowFormat(256, normalize=False))
    return PackedBatch(**{**{n: getattr(built, n) for n in built.__slots__}, "stream": stream})


def rows(result: LazyTensor, batch: PackedBatch) -> Any:
    data = result.numpy()
    assert not data[batch.num_result_bytes :].any()
    return data[: batch.num_result_bytes].view(np.float32).reshape(batch.num_rows, -1)


def test_vectors_equal_those_of_torch_with_steps_in_flight_on_both_streams(folder):
    ours, torchs = load(folder, Attention.FLASHINFER), load(folder, Attention.TORCH_FLASH)
    assert ours.attention is Backend.FLASHINFER
    rng = np.random.default_rng(4)
    batches = [random_batch(rng, "online" if n % 2 else "normal") for n in range(60)]
    expected = [rows(torchs.step(batch), batch) for batch in batches]
    results = [ours.step(batch) for batch in batches]  # more in flight than there are plans
    assert {result.mode for result in results} == {"eager"}
    worst = min(
        lowest_cosine(rows(result, batch), wanted)
        for batch, result, wanted in zip(batches, results, expected, strict=True)
    )
    print(f"lowest cosine to torch-flash {worst:.6f}")
    assert worst >= 0.9999
    ids = [[7, 8, 9] * 40, [5]]
    tokens = {"head": "tokens", "spans": None}
    assert (
        lowest_cosine(engine_rows(ours, ids, **tokens), engine_rows(torchs, ids, **tokens)) > 0.999
    )
