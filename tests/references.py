"""Independent references that tests compare with: sentence-transformers, transformers and numpy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from flowerbed.rose.engine import Engine

Rows = NDArray[np.float32]


def reference_model(folder: Path, max_length: int | None = None) -> SentenceTransformer:
    """The folder in sentence-transformers, fp32, on the CPU."""
    from sentence_transformers import SentenceTransformer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(
            str(folder), device="cpu", model_kwargs={"dtype": "float32"}, local_files_only=True
        )
    if max_length is not None:
        model.max_seq_length = max_length
    return model


def reference_ids(model: SentenceTransformer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, as the model's own tokenizer gives them."""
    return [model.tokenizer(text, truncation=True)["input_ids"] for text in texts]


def reference_rows(model: SentenceTransformer, texts: Sequence[str], **options: object) -> Rows:
    """Vectors, one text at a time, so that no padding is involved."""
    return np.stack([model.encode(text, show_progress_bar=False, **options) for text in texts])


def engine_rows(engine: Engine, sequences: Sequence[Sequence[int]], **options: object) -> Rows:
    """float32 vectors of one batch, normalised as the model says."""
    from flowerbed.rose.inputs import PackedBatch, RowFormat

    row = RowFormat(engine.folder.dimensions, normalize=engine.folder.normalize)
    batch = PackedBatch.build(sequences, row, **options)
    data = engine.step(batch).numpy()
    assert data[batch.num_result_bytes :].max() == 0, "a row's status is not good"
    return data[: batch.num_result_bytes].view(np.float32).reshape(batch.num_rows, -1)


def lowest_cosine(left: Rows, right: Rows) -> float:
    """Smallest cosine of two sets of rows, row by row, in float64."""
    assert left.shape == right.shape
    a, b = left.astype(np.float64), right.astype(np.float64)
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def packed_row(row: Rows, dtype: str, dimensions: int, *, normalize: bool) -> bytes:
    """Bytes of one row by the documented formulas, in numpy and sentence-transformers."""
    import torch
    from sentence_transformers.util.quantization import quantize_embeddings

    cut = row[:dimensions].astype(np.float32)
    if normalize:
        cut = cut / max(np.float32(np.linalg.norm(cut)), np.float32(1e-12))
    if dtype in ("binary", "ubinary"):
        return quantize_embeddings(cut[None], precision=dtype)[0].tobytes()
    if dtype == "bfloat16":
        return torch.from_numpy(cut).to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    if dtype in ("int8", "uint8"):
        scaled = np.rint(np.clip(cut, -1, 1) * np.float32(127))
        return (scaled + (128 if dtype == "uint8" else 0)).astype(dtype).tobytes()
    return cut.astype(dtype).tobytes()
