"""Real models in bfloat16 and float16 on an NVIDIA GPU against sentence-transformers in float32, on 10,000 real texts.

FLOWERBED_TEST_MODELS names a folder of model folders. Its texts.json, a list of texts, is used where it is
there; else the texts are the standard library's docstrings.
"""

from __future__ import annotations

import ast
import json
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flowerbed.config import DType, GraphCapture
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.graphs import token_buckets
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels.pack import FORMAT_COLUMNS, RowDtype
from references import lowest_cosine, packed_row, reference_model

VARIABLE = "FLOWERBED_TEST_MODELS"
MODELS = Path(os.environ.get(VARIABLE, os.devnull))
FOLDERS = sorted(path.parent for path in MODELS.glob("*/config.json"))
NUM_TEXTS = 10_000
STEP_TOKENS, STEP_SEQUENCES = 2_048, 64
MIN_REFERENCE = {DType.BFLOAT16: 0.999, DType.FLOAT16: 0.9999}
MIN_SAME = {DType.BFLOAT16: 0.9999, DType.FLOAT16: 0.99999}
MIN_OVERLAP = {DType.BFLOAT16: 0.995, DType.FLOAT16: 0.999}
TOP = 10

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not FOLDERS, reason=f"{VARIABLE} names no folder of model folders"),
    # flash-attn-4 imports the compiler of torch, and sentence-transformers much else, which warn of
    # their own code.
    pytest.mark.filterwarnings("ignore"),
]

Rows = NDArray[np.float32]
Ids = list[list[int]]


@dataclass(frozen=True)
class Model:
    """One model, and what it makes of the texts."""

    name: str
    dtype: DType
    engine: Engine  # with graphs
    ids: Ids
    reference: Rows  # in float32
    together: Rows  # in steps of many
    alone: Rows  # each in a step of its own


@pytest.fixture(scope="module")
def texts() -> list[str]:
    file = MODELS / "texts.json"
    found = json.loads(file.read_text()) if file.is_file() else docstrings()
    assert len(set(found)) >= NUM_TEXTS
    return list(dict.fromkeys(found))[:NUM_TEXTS]


def docstrings() -> list[str]:
    found: list[str] = []
    for source in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        try:
            tree = ast.parse(source.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
        found += [text for node in nodes if (text := ast.get_docstring(node))]
    return found


@pytest.fixture(
    scope="module",
    params=[(folder, dtype) for folder in FOLDERS for dtype in MIN_SAME] or [None],
    ids=lambda case: case and f"{case[0].name}-{case[1]}",
)
def model(request: pytest.FixtureRequest, texts: list[str]) -> Model:
    path, dtype = request.param
    folder = read_folder(resolve(str(path)))
    oracle = reference_model(path)
    options = {"truncation": True, "max_length": folder.text.max_length}
    ids = oracle.tokenizer(texts, **options)["input_ids"]
    oracle.max_seq_length = folder.text.max_length
    oracle.to("cuda")
    reference = oracle.encode(texts, batch_size=128, show_progress_bar=False)
    assert reference.dtype == np.float32
    del oracle
    engine = load(path, dtype)
    engine.capture(
        online_tokens=512,
        normal_tokens=STEP_TOKENS,
        when=GraphCapture.START,
        memory_limit=4 << 30,
    )
    together = np.empty_like(reference)
    for chosen in steps([len(sequence) for sequence in ids]):
        together[chosen] = embed(engine, [ids[at] for at in chosen])
    alone = np.concatenate([embed(engine, [sequence], "online") for sequence in ids])
    return Model(path.name, dtype, engine, ids, reference, together, alone)


def load(folder: Path, dtype: DType) -> Engine:
    return Engine.load(read_folder(resolve(str(folder))), device="cuda", dtype=dtype)


def steps(lengths: Sequence[int]) -> list[list[int]]:
    """Numbers of the sequences of each step, in an order that has nothing to do with their lengths."""
    found: list[list[int]] = [[]]
    num_tokens = 0
    for at in np.random.default_rng(3).permutation(len(lengths)).tolist():
        if len(found[-1]) == STEP_SEQUENCES or num_tokens + lengths[at] > STEP_TOKENS:
            found.append([])
            num_tokens = 0
        found[-1].append(at)
        num_tokens += lengths[at]
    return found


def embed(engine: Engine, ids: Ids, stream: str = "normal") -> Rows:
    """Rows of one step, all good: finite and not zero."""
    row = RowFormat(engine.folder.dimensions, normalize=engine.folder.normalize)
    built = PackedBatch.build(ids, row)
    parts = {name: getattr(built, name) for name in built.__slots__}
    batch = PackedBatch(**parts | {"stream": stream})
    data = engine.step(batch).numpy()
    assert not data[batch.num_result_bytes :].any()
    rows = data[: batch.num_result_bytes].view(np.float32).reshape(batch.num_rows, -1)
    assert np.isfinite(rows).all()
    assert rows.any(axis=1).all()
    return rows


def test_every_text_is_near_to_float32(model: Model) -> None:
    together = lowest_cosine(model.together, model.reference)
    alone = lowest_cosine(model.alone, model.reference)
    print(f"{model.name} {model.dtype}: to float32 {together:.6f}, alone {alone:.6f}", end=" ")
    assert min(together, alone) >= MIN_REFERENCE[model.dtype]


def test_a_text_alone_equals_the_same_among_others(model: Model) -> None:
    cosine = lowest_cosine(model.alone, model.together)
    overlap = top_overlap(model.alone, model.together)
    print(f"{model.name} {model.dtype}: alone {cosine:.7f}, top ten {overlap:.5f}", end=" ")
    assert cosine >= MIN_SAME[model.dtype]
    assert overlap >= MIN_OVERLAP[model.dtype]
    if model.engine.batch_invariant:
        assert model.alone.tobytes() == model.together.tobytes()


def top_overlap(left: Rows, right: Rows) -> float:
    """Mean share of the same ten nearest texts, of queries that are the texts themselves."""
    best = []
    for rows in (left, right):
        vectors = torch.nn.functional.normalize(torch.from_numpy(rows).cuda().double())
        best.append((vectors @ vectors.T).topk(TOP).indices)
    return float((best[0][:, :, None] == best[1][:, None, :]).any(2).double().mean())


def test_an_eager_step_equals_a_graphs(model: Model) -> None:
    eager = load(model.engine.folder.path, model.dtype)
    chosen = steps([len(sequence) for sequence in model.ids])[::20]
    found = np.concatenate([embed(eager, [model.ids[at] for at in step]) for step in chosen])
    expected = model.together[np.concatenate(chosen)]
    cosine = lowest_cosine(found, expected)
    print(f"{model.name} {model.dtype}: eager {cosine:.7f} in {len(found)} texts", end=" ")
    assert cosine >= MIN_SAME[model.dtype]
    if model.engine.batch_invariant:
        assert found.tobytes() == expected.tobytes()


def test_every_bucket_of_tokens_gives_the_same_rows(model: Model) -> None:
    """A few texts, with others after them that fill the step to the borders of each bucket."""
    order = np.argsort([len(sequence) for sequence in model.ids])
    kept = [int(order[at]) for at in (0, len(order) // 8)]
    few = sum(len(model.ids[at]) for at in kept)
    filler = [token for at in order[-40:] for token in model.ids[at]]
    most, worst, borders = model.engine.folder.text.max_length, 1.0, 0
    for bucket in token_buckets(STEP_TOKENS):
        for total in (bucket - 1, bucket, bucket + 1):
            rest = filler[: total - few]
            if total < few or total > STEP_TOKENS:
                continue
            others = [rest[at : at + most] for at in range(0, len(rest), most)]
            rows = embed(model.engine, [*(model.ids[at] for at in kept), *others])
            worst = min(worst, lowest_cosine(rows[: len(kept)], model.alone[kept]))
            if model.engine.batch_invariant:
                assert rows[: len(kept)].tobytes() == model.alone[kept].tobytes(), total
            borders += 1
    print(f"{model.name} {model.dtype}: {borders} sizes {worst:.7f}", end=" ")
    assert borders > 60
    assert worst >= MIN_SAME[model.dtype]


def test_whole_number_formats_are_the_formulas_of_the_float32_row_to_the_bit(model: Model) -> None:
    dtypes = [RowDtype.FLOAT32, RowDtype.INT8, RowDtype.UINT8, RowDtype.BINARY, RowDtype.UBINARY]
    dimensions, normalize = model.engine.folder.dimensions, model.engine.folder.normalize
    for start in range(0, 1_000, 10):
        ids = model.ids[start : start + 10]
        batch, formats = in_formats(ids, dtypes, dimensions, normalize=normalize)
        data = model.engine.step(batch).numpy()
        assert not data[batch.num_result_bytes :].any()
        row = None
        for _, offset, code, _, _ in formats:
            dtype = RowDtype(code)
            found = data[offset : offset + dtype.row_bytes(dimensions)]
            if dtype is RowDtype.FLOAT32:
                row = found.view(np.float32)
            else:
                assert row is not None
                # The float32 row is normalised already where the model asks for it.
                expected = packed_row(row, dtype.name.lower(), dimensions, normalize=False)
                assert found.tobytes() == expected, dtype.name


def in_formats(
    ids: Ids, dtypes: Sequence[RowDtype], dimensions: int, *, normalize: bool
) -> tuple[PackedBatch, NDArray[np.int32]]:
    """A batch with each sequence in each format, and its table of formats."""
    formats = np.empty((len(ids) * len(dtypes), FORMAT_COLUMNS), dtype=np.int32)
    formats[:, 0] = np.repeat(np.arange(len(ids)), len(dtypes))
    formats[:, 2] = np.tile(dtypes, len(ids))
    formats[:, 3:] = dimensions, normalize
    widths = np.array([RowDtype(code).row_bytes(dimensions) for code in formats[:, 2]])
    formats[:, 1] = widths.cumsum() - widths
    built = PackedBatch.build(ids, RowFormat(dimensions))
    parts = {name: getattr(built, name) for name in built.__slots__}
    table = {"formats": formats, "num_result_bytes": int(widths.sum())}
    return PackedBatch(**parts | table), formats
