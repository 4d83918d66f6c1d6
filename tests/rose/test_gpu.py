"""The engine on an NVIDIA GPU against the same engine on the CPU. Needs no packaged model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from flowerbed.config import DType
from flowerbed.folder import read_folder
from flowerbed.hub import resolve
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels.pack import RowDtype
from references import engine_rows, lowest_cosine

pytestmark = [
    pytest.mark.gpu,
    # flash-attn-4 imports the compiler of torch, which warns of its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LENGTHS = (1, 2, 31, 31, 64, 200, 7, 512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Random BERT of MiniLM's shape; its tokenizer is never used."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("gpu") / "random"
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
    BertModel(BertConfig(**shape, vocab_size=2000)).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    (path / "1_Pooling").mkdir()
    pooling = {"embedding_dimension": 384, "pooling_mode": ["mean", "max", "cls", "weightedmean"]}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return read_folder(resolve(str(path)))


@pytest.fixture(scope="module")
def sequences():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 2000, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.mark.parametrize(
    ("dtype", "least"), [(DType.FLOAT32, 0.99999), (DType.BFLOAT16, 0.999), (DType.FLOAT16, 0.999)]
)
def test_vectors_match_those_of_the_cpu(folder, sequences, dtype, least):
    expected = engine_rows(Engine.load(folder, device="cpu"), sequences)
    engine = Engine.load(folder, device="cuda", dtype=dtype)
    together = engine_rows(engine, sequences)
    assert lowest_cosine(together, expected) >= least
    alone = [engine_rows(engine, [sequence])[0] for sequence in sequences]
    assert lowest_cosine(together, np.stack(alone)) >= (0.99999 if least > 0.999 else 0.9999)


def test_formats_mix_and_results_arrive_later(folder, sequences):
    engine = Engine.load(folder, device="auto")
    assert engine.dtype is DType.FLOAT16
    formats = [RowFormat(100 + 8 * i, dtype) for i, dtype in enumerate([*RowDtype, RowDtype.INT8])]
    batch = PackedBatch.build(sequences, formats)
    results = [engine.step(batch) for _ in range(4)]
    for result in results:
        result.wait()
        assert result.ready()
        data = result.host()
        assert len(data) == batch.num_result_bytes + batch.num_rows
        assert not any(data[-batch.num_rows :])
        assert bytes(data) == bytes(results[0].host())
