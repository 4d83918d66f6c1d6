"""What number formats cost in exactness: `python benchmarks/formats.py FOLDER... [--dtype fp8]`.

Vectors of real texts against float32's, and a search for known items: the first paragraph of a docstring
of the standard library finds the rest of it. Documents are in the format measured, queries in it as well
or in another one: an index may be made in a faster format than the one that its queries come in. The
first folder without a name is the packaged model. Prints a JSON object a line.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import random
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import machine
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from flowerbed import hub
from flowerbed.config import DType
from flowerbed.folder import ModelFolder, read_folder
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat

NUM_ITEMS = 2_000
MIN_QUERY_CHARS, MIN_DOCUMENT_CHARS, MAX_DOCUMENT_CHARS = 20, 80, 3_000
RANKS = 10
BATCH_TOKENS, BATCH_SEQUENCES = 8_192, 64
DOCUMENT_PROMPTS = ("passage", "document")
Vectors = NDArray[np.float64]


def main() -> None:
    """Measures each folder in each format."""
    parser = argparse.ArgumentParser(description="Measure what number formats cost in exactness.")
    parser.add_argument("folders", nargs="*", default=[None], help="model folders or hub ids")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", type=DType, action="append", help="repeat it for each")
    parser.add_argument("--queries", type=DType, help="format of queries beside the documents' own")
    parser.add_argument("--items", type=int, default=NUM_ITEMS)
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file, too")
    options = parser.parse_args()
    items = known_items(options.items)
    for name in options.folders:
        folder = read_folder(hub.resolve(name))
        formats = [DType.FLOAT32, *(options.dtype or [DType.BFLOAT16])]
        if options.queries is not None:
            formats.append(options.queries)
        found = {dtype: vectors(folder, dtype, options.device, items) for dtype in formats}
        for line in lines(found, options.queries):
            row = {"benchmark": "formats", "model": folder.id, "items": len(items), **line}
            if torch.cuda.is_available():
                row["gpu"] = torch.cuda.get_device_name()
            text = json.dumps(row | machine.describe())
            print(text, flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(text + "\n")


def known_items(count: int) -> list[tuple[str, str]]:
    """First paragraphs of docstrings and what follows each."""
    pairs = dict(_paragraphs())  # a query once
    answers = {document: query for query, document in pairs.items()}  # and a document once
    items = [(query, document) for document, query in sorted(answers.items())]
    random.Random(3).shuffle(items)  # noqa: S311 (texts, no secrets)
    return items[:count]


def _paragraphs() -> Iterator[tuple[str, str]]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "test" in path.as_posix() or "site-packages" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                continue
            query, _, document = inspect.cleandoc(ast.get_docstring(node) or "").partition("\n\n")
            if len(query) >= MIN_QUERY_CHARS and len(document) >= MIN_DOCUMENT_CHARS:
                yield " ".join(query.split()), document[:MAX_DOCUMENT_CHARS]


def vectors(
    folder: ModelFolder, dtype: DType, device: str, items: Sequence[tuple[str, str]]
) -> tuple[Vectors, Vectors]:
    """Unit vectors of all queries and of all documents."""
    engine = Engine.load(folder, device=device, dtype=dtype)
    tokenizer = Tokenizer.from_str((folder.path / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(folder.text.max_length)
    prompts = folder.text.prompts
    document = next((prompts[name] for name in DOCUMENT_PROMPTS if name in prompts), "")
    parts = []
    for number, prompt in enumerate((prompts.get("query", ""), document)):
        texts = [prompt + item[number] for item in items]
        sequences = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        parts.append(_embed(engine, sequences))
    return parts[0], parts[1]


def _embed(engine: Engine, sequences: Sequence[Sequence[int]]) -> Vectors:
    dimensions = engine.folder.dimensions
    row = RowFormat(dimensions)
    rows: list[NDArray[np.float32]] = []
    waiting: list[Sequence[int]] = []

    def step() -> None:
        batch = PackedBatch.build(waiting, row)
        result = engine.step(batch).numpy()
        if result[batch.num_result_bytes :].any():
            raise SystemExit("error: a vector is not good")
        values = result[: batch.num_result_bytes].view(np.float32)
        rows.append(values.reshape(-1, dimensions).copy())
        waiting.clear()

    for ids in sequences:
        tokens = sum(map(len, waiting)) + len(ids)
        if waiting and (tokens > BATCH_TOKENS or len(waiting) == BATCH_SEQUENCES):
            step()
        waiting.append(ids)
    step()
    found = np.concatenate(rows).astype(np.float64)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def lines(
    found: dict[DType, tuple[Vectors, Vectors]], queries: DType | None
) -> Iterator[dict[str, object]]:
    """One for each format of documents and of queries."""
    exact = found[DType.FLOAT32]
    for dtype, both in found.items():
        for asked in dict.fromkeys((dtype, queries or dtype)):
            cosine = np.concatenate([(a * b).sum(1) for a, b in zip(both, exact, strict=True)])
            recall, mrr, ndcg = ranking(found[asked][0], both[1])
            yield {
                "documents": str(dtype),
                "queries": str(asked),
                "min_cosine": round(float(cosine.min()), 6),
                "mean_cosine": round(float(cosine.mean()), 6),
                "recall_at_1": round(recall, 4),
                "mrr_at_10": round(mrr, 4),
                "ndcg_at_10": round(ndcg, 4),
            }


def ranking(queries: Vectors, documents: Vectors) -> tuple[float, float, float]:
    """Recall@1, MRR@10 and nDCG@10 where each query has one document, of its number."""
    scores = queries @ documents.T
    ranks = (scores > np.diag(scores)[:, None]).sum(1) + 1
    is_found = ranks <= RANKS
    return (
        float((ranks == 1).mean()),
        float(np.where(is_found, 1 / ranks, 0).mean()),
        float(np.where(is_found, 1 / np.log2(ranks + 1), 0).mean()),
    )


if __name__ == "__main__":
    main()
