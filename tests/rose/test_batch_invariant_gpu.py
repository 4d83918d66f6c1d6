"""Batch-invariant steps on an NVIDIA GPU: a text has the same vector, to the bit, alone and among any others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flowerbed.config import BatchInvariant, DType, GraphCapture
from flowerbed.folder import ModelFolder
from flowerbed.rose.engine import Engine
from flowerbed.rose.graphs import token_buckets
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels.attention import Backend
from flowerbed.rose.kernels.flash_attention import why_not
from flowerbed.rose.kernels.fused_linear import fuses_products
from references import engine_rows, lowest_cosine
from small_models import VOCAB_ROWS, add_dense, small_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    # flash-attn-4 imports the compiler of torch, which warns of its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NUM_TEXTS, MAX_LENGTH = 300, 512
MAX_TOKENS = 8_192
MODELS = {
    "bert": ("bert", {"hidden": 768, "intermediate_size": 3_072}),
    "narrow": ("bert", {"hidden": 384, "head_dim": 32, "intermediate_size": 1_536}),
    "tanh": ("bert", {"hidden_act": "gelu_new"}),
    "relu": ("bert", {"hidden_act": "relu"}),
    "xlm-roberta": ("xlm-roberta", {"hidden": 1_024, "intermediate_size": 4_096}),
    "causal": ("qwen3", {"hidden": 1_024, "head_dim": 128, "intermediate_size": 3_072}),
    "both-ways": ("pplx", {"hidden": 512, "head_dim": 128, "intermediate_size": 1_536}),
    "heads-of-64": ("qwen3", {"hidden": 256}),
}
"""Kinds and settings of `small_model`."""
Ids = list[list[int]]
Rows = NDArray[np.float32]


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    kind, settings = MODELS[request.param]
    path = tmp_path_factory.mktemp("invariant") / request.param
    return small_model(kind, path, initializer_range=0.1, **settings)


@pytest.fixture(scope="module")
def texts() -> Ids:
    """Lengths as of queries and documents; the shortest, the longest and the borders of blocks of 64 are among them."""
    rng = np.random.default_rng(8)
    drawn = np.exp(rng.normal(3.8, 1.2, NUM_TEXTS)).astype(int).clip(1, MAX_LENGTH).tolist()
    lengths = [1, 63, 64, 65, 127, 128, 129, MAX_LENGTH, *drawn[8:]]
    return [rng.integers(5, VOCAB_ROWS, length).tolist() for length in lengths]


def load(folder: ModelFolder, dtype: DType) -> Engine:
    gpu = torch.device("cuda", 0)
    reason = why_not(Backend.FLASH_ATTN_4, gpu, torch.bfloat16, 64)
    if reason is not None or not fuses_products(gpu, torch.bfloat16):
        pytest.skip(reason or "no quack-kernels for this GPU")
    return Engine.load(folder, device="cuda", dtype=dtype, batch_invariant=BatchInvariant.ON)


def embed(engine: Engine, ids: Ids, stream: str = "normal", head: str = "embed") -> Rows:
    built = PackedBatch.build(ids, RowFormat(engine.folder.dimensions, normalize=False), head=head)
    parts = {name: getattr(built, name) for name in built.__slots__}
    batch = PackedBatch(**parts | {"stream": stream})
    data = engine.step(batch).numpy()
    assert not data[batch.num_result_bytes :].any()
    return data[: batch.num_result_bytes].view(np.float32).reshape(batch.num_rows, -1)


def steps(lengths: Sequence[int], seed: int, max_tokens: int, most: int) -> list[list[int]]:
    """Numbers of the texts of each step, in an order of their own."""
    found: list[list[int]] = [[]]
    num_tokens = 0
    for at in np.random.default_rng(seed).permutation(len(lengths)).tolist():
        if len(found[-1]) == most or num_tokens + lengths[at] > max_tokens:
            found.append([])
            num_tokens = 0
        found[-1].append(at)
        num_tokens += lengths[at]
    return found


def assert_same_bits_in_every_step(
    folder: ModelFolder, texts: Ids, dtype: DType
) -> tuple[Engine, Rows]:
    """Each text alone and among others, in graphs and without; the engine, and the rows of texts alone."""
    engine, eager = load(folder, dtype), load(folder, dtype)
    engine.capture(
        online_tokens=1_024,
        normal_tokens=MAX_TOKENS,
        when=GraphCapture.START,
        memory_limit=4 << 30,
    )
    alone = np.concatenate([embed(engine, [text], "online") for text in texts])
    lengths = [len(text) for text in texts]
    for max_tokens, most in ((700, 8), (2_048, 64), (MAX_TOKENS, 128)):
        for at, chosen in enumerate(steps(lengths, max_tokens, max_tokens, most)):
            step = [texts[number] for number in chosen]
            assert embed(engine, step).tobytes() == alone[chosen].tobytes()
            if at % 3 == 0:
                assert embed(eager, step).tobytes() == alone[chosen].tobytes()
    short = [number for number, length in enumerate(lengths) if length <= 64]
    assert len(short) > 100
    for chosen in (short[:20], short[:64], short[:128]):
        step = [texts[number] for number in chosen]
        assert embed(engine, step).tobytes() == alone[chosen].tobytes()
    return engine, alone


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_a_vector_has_the_same_bits_in_every_step(
    folder: ModelFolder, texts: Ids, dtype: DType
) -> None:
    assert_same_bits_in_every_step(folder, texts, dtype)


@pytest.mark.parametrize("name", ["narrow", "causal"])
def test_a_vector_after_dense_modules_has_the_same_bits_in_every_step(
    tmp_path: Path, texts: Ids, name: str
) -> None:
    kind, settings = MODELS[name]
    plain = small_model(kind, tmp_path / name, initializer_range=0.1, **settings)
    folder = add_dense(plain, 512, 1_536, 100)
    engine, alone = assert_same_bits_in_every_step(folder, texts, DType.BFLOAT16)
    for count in (130, 200, NUM_TEXTS):  # rows: more than a graph has
        assert embed(engine, texts[:count]).tobytes() == alone[:count].tobytes(), count


def test_a_token_has_the_same_row_in_every_step(folder: ModelFolder, texts: Ids) -> None:
    engine = load(folder, DType.BFLOAT16)
    alone = np.concatenate([embed(engine, [text], head="tokens") for text in texts[:60]])
    num_tokens = sum(map(len, texts[:60]))
    assert alone.shape[0] == num_tokens
    assert num_tokens > 3_000
    assert embed(engine, texts[:60], head="tokens").tobytes() == alone.tobytes()


@pytest.mark.parametrize("name", ["narrow", "causal", "both-ways", "heads-of-64"])
def test_long_texts_have_the_same_bits_in_every_step(tmp_path: Path, name: str) -> None:
    kind, settings = MODELS[name]
    longest = {"max_position_embeddings": 8_192}
    folder = small_model(kind, tmp_path / name, initializer_range=0.1, **settings | longest)
    assert folder.text.max_length >= 6_000
    engine = load(folder, DType.BFLOAT16)
    rng = np.random.default_rng(10)
    long = [rng.integers(5, VOCAB_ROWS, length).tolist() for length in (7, 1_025, 6_000, 2_049, 60)]
    alone = np.concatenate([embed(engine, [text]) for text in long])
    assert embed(engine, long).tobytes() == alone.tobytes()
    assert embed(engine, long[::-1]).tobytes() == alone[::-1].tobytes()


def test_every_bucket_gives_the_same_bits(folder: ModelFolder, texts: Ids) -> None:
    engine = load(folder, DType.BFLOAT16)
    engine.capture(
        online_tokens=1_024,
        normal_tokens=MAX_TOKENS,
        when=GraphCapture.START,
        memory_limit=4 << 30,
    )
    kept = [texts[0], texts[1], texts[5]]
    few = sum(map(len, kept))
    expected = embed(engine, kept)
    filler = np.random.default_rng(9).integers(5, VOCAB_ROWS, MAX_TOKENS).tolist()
    num_sizes = 0
    for bucket in token_buckets(MAX_TOKENS):
        for total in (bucket - 1, bucket, bucket + 1):
            if not few < total <= MAX_TOKENS:
                continue
            rest = filler[: total - few]
            others = [rest[at : at + MAX_LENGTH] for at in range(0, len(rest), MAX_LENGTH)]
            assert embed(engine, [*kept, *others])[:3].tobytes() == expected.tobytes(), total
            num_sizes += 1
    assert num_sizes > 60


def test_vectors_are_as_near_to_float32_as_of_other_steps(folder: ModelFolder, texts: Ids) -> None:
    exact = engine_rows(Engine.load(folder, device="cpu"), texts[:40])
    found = embed(load(folder, DType.FLOAT16), texts[:40])
    assert lowest_cosine(found, exact) >= 0.9999
