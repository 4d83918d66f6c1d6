"""The systems that `cpu.py` compares: texts in, unit vectors out, on this machine's CPU.

Each runs in a process of its own, `python cpu_systems.py NAME FOLDER`, with the settings that suit it
best; FOLDER holds `model.onnx` and takes NAME.npy, the vectors. The figures go to stdout as one JSON
object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import texts
from cores import Usage
from numpy.typing import NDArray
from tokenizers import Tokenizer

from flowerbed.config import CPU_SATURATION_BATCH_TOKENS, MAX_BATCH_SEQUENCES, DType
from flowerbed.folder import ModelFolder, read_folder
from flowerbed.hub import resolve

Rows = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Rows]

NUM_THREADS = len(os.sched_getaffinity(0))
MAX_LENGTH = 256
NUM_TEXTS, NUM_WARM_UP = 512, 64
NUM_QUERIES = 200
QUERY = "how do I sort a list of dictionaries by key in python"  # 14 tokens
PEER_BATCH = 4
"""The best of 1, 2, 4, 8, 16 and 32 for each of the peers, on two Zen 5 cores (docs/log.md)."""


def engine(dtype: DType) -> Encode:
    """ROSE, in steps of the server's size for bulk work."""
    from flowerbed.rose.engine import Engine
    from flowerbed.rose.inputs import PackedBatch, RowFormat

    found = read_folder(resolve(None))
    model = Engine.load(found, device="cpu", dtype=dtype)
    tokenizer = _tokenizer(found)

    def encode(rows: Sequence[str]) -> Rows:
        ids = _ids(tokenizer, rows)
        vectors = np.empty((len(ids), found.dimensions), np.float32)
        for step in _steps([len(each) for each in ids]):
            batch = PackedBatch.build([ids[at] for at in step], RowFormat(found.dimensions))
            data = model.step(batch).numpy()[: batch.num_result_bytes]
            vectors[step] = data.view(np.float32).reshape(len(step), -1)
        return vectors

    return encode


def sentence_transformers(_folder: Path) -> Encode:
    """It sorts by length itself."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(NUM_THREADS)
    path = str(resolve(None).path)
    model = SentenceTransformer(path, device="cpu", model_kwargs={"dtype": "float32"})
    model.max_seq_length = MAX_LENGTH
    return lambda rows: model.encode(
        list(rows), batch_size=PEER_BATCH, normalize_embeddings=True, show_progress_bar=False
    )


def onnx_runtime(folder: Path) -> Encode:
    """Its graph optimized for BERT: attention, GELU and residual norms are one operator each."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = NUM_THREADS
    session = onnxruntime.InferenceSession(
        folder / "optimized.onnx", options, providers=["CPUExecutionProvider"]
    )
    return _padded(lambda inputs: session.run(None, inputs)[0])


def openvino(precision: str, folder: Path) -> Encode:
    """The plain graph; it fuses what it can itself."""
    core = import_module("openvino").Core()
    options = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": NUM_THREADS,
        "PERFORMANCE_HINT": "LATENCY",
    }
    model = core.compile_model(folder / "model.onnx", "CPU", options)
    request = model.create_infer_request()
    return _padded(lambda inputs: request.infer(inputs, share_inputs=True)[0])


@dataclass(frozen=True, slots=True)
class System:
    """One of those compared."""

    load: Callable[[Path], Encode]
    dtype: str
    package: str  # the distribution whose version counts


SYSTEMS = {
    "flowerbed": System(lambda _: engine(DType.FLOAT32), "float32", "torch"),
    "sentence-transformers": System(sentence_transformers, "float32", "sentence-transformers"),
    "ONNX Runtime": System(onnx_runtime, "float32", "onnxruntime"),
    "OpenVINO": System(lambda folder: openvino("f32", folder), "float32", "openvino"),
    "flowerbed bfloat16": System(lambda _: engine(DType.BFLOAT16), "bfloat16", "torch"),
    "OpenVINO bfloat16": System(lambda folder: openvino("bf16", folder), "bfloat16", "openvino"),
}


def _tokenizer(folder: ModelFolder) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder.tokenizer_file))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.no_padding()
    return tokenizer


def _ids(tokenizer: Tokenizer, rows: Sequence[str]) -> list[list[int]]:
    if len(rows) == 1:
        return [tokenizer.encode(rows[0]).ids]  # without a pool of threads
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(rows))]


def _steps(lengths: list[int]) -> Iterator[list[int]]:
    """Indices of the sequences of each step, longest first."""
    step: list[int] = []
    num_tokens = 0
    for at in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        full = num_tokens + lengths[at] > CPU_SATURATION_BATCH_TOKENS
        if step and (full or len(step) == MAX_BATCH_SEQUENCES):
            yield step
            step, num_tokens = [], 0
        step.append(at)
        num_tokens += lengths[at]
    yield step


def _padded(run: Callable[[dict[str, NDArray[np.int64]]], Rows]) -> Encode:
    """Sorted by tokens, in batches padded to their longest."""
    tokenizer = _tokenizer(read_folder(resolve(None)))

    def encode(rows: Sequence[str]) -> Rows:
        ids = _ids(tokenizer, rows)
        order = sorted(range(len(ids)), key=lambda at: len(ids[at]), reverse=True)
        vectors = np.empty((len(ids), 384), np.float32)
        for first in range(0, len(order), PEER_BATCH):
            batch = order[first : first + PEER_BATCH]
            vectors[batch] = run(_padded_inputs([ids[at] for at in batch]))
        return vectors

    return encode


def _padded_inputs(sequences: Sequence[list[int]]) -> dict[str, NDArray[np.int64]]:
    shape = (len(sequences), max(map(len, sequences)))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def measure(encode: Encode, rows: list[str]) -> tuple[dict[str, Any], Rows]:
    """Milliseconds of each query and of each pass, cores that others used meanwhile, and the vectors."""
    for _ in range(20):
        encode([QUERY])
    queries_before = Usage.now(os.getpid())
    queries_ms = [_milliseconds(encode, [QUERY]) for _ in range(NUM_QUERIES)]
    queries_after = Usage.now(os.getpid())
    encode(rows[:NUM_WARM_UP])
    before = Usage.now(os.getpid())
    started = time.perf_counter()
    vectors = encode(rows)
    pass_ms = (time.perf_counter() - started) * 1e3
    after = Usage.now(os.getpid())
    figures = {
        "queries_ms": queries_ms,
        "queries_others": queries_after.others_since(queries_before, 0.0),
        "pass_ms": pass_ms,
        "pass_others": after.others_since(before, 0.0),
    }
    return figures, vectors


def _milliseconds(encode: Encode, rows: list[str]) -> float:
    started = time.perf_counter_ns()
    encode(rows)
    return (time.perf_counter_ns() - started) / 1e6


def main() -> None:
    """Measures one system."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    system = SYSTEMS[name]
    figures, vectors = measure(system.load(folder), texts.documents(NUM_TEXTS))
    np.save(folder / f"{name}.npy", vectors)
    print(json.dumps({**figures, "version": metadata.version(system.package)}))


if __name__ == "__main__":
    main()
