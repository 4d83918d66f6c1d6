"""Writes the vectors that peers are compared with: this engine's in float32, one sequence a step.

`python benchmarks/peers/reference.py FOLDER OUT.npy [--device cuda]`; `run.py` calls it first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rows import reference_lengths, sequences

from flowerbed import hub
from flowerbed.config import DType
from flowerbed.folder import read_folder
from flowerbed.rose.engine import Engine
from flowerbed.rose.inputs import PackedBatch, RowFormat


def main() -> None:
    """Writes."""
    parser = argparse.ArgumentParser(description="Write vectors in float32.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    folder = read_folder(hub.resolve(str(options.folder)))
    engine = Engine.load(folder, device=options.device, dtype=DType.FLOAT32)
    rows = RowFormat(folder.dimensions, normalize=False)
    vectors: list[np.ndarray] = []
    for ids in sequences(reference_lengths(options.folder)):
        batch = PackedBatch.build([ids], rows)
        result = engine.step(batch).numpy()[: batch.num_result_bytes]
        vectors.append(np.array(result).view(np.float32))
    np.save(options.out, np.stack(vectors))


if __name__ == "__main__":
    main()
