"""sentence-transformers in half precision: texts in, vectors out, each length at its best batch size.

`python benchmarks/peers/sentence_transformers_fp16.py FOLDER [--device cuda] [--dtype float16]`. It sorts by
length and pads to the longest of a batch. Tokenizing is within its times.

infinity-emb, which wraps it, cannot stand beside it: 0.0.77, its last version, does not import with huggingface_hub 1
(`HfFolder` is gone) and asks for sentence-transformers < 4 and numpy < 2.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import rows
from numpy.typing import NDArray
from rows import Ids, Report

from flowerbed.bench import LATENCY_SHAPES, SCORING_SHAPES, THROUGHPUT_LENGTHS, mixed_lengths

BATCH_SIZES = (32, 64, 128, 256, 512)
TRIED_TOKENS, MAX_BATCH_TOKENS = 32_768, 131_072
"""Of a try of one batch size; of a batch, above which none is tried."""


class Encoder:
    """A loaded model."""

    def __init__(self, options: argparse.Namespace) -> None:
        from sentence_transformers import SentenceTransformer

        arguments: dict[str, Any] = {"dtype": options.dtype}
        arguments["attn_implementation"] = options.attention
        self.model = SentenceTransformer(
            str(options.folder), device=options.device, model_kwargs=arguments
        )
        self.batch_size = BATCH_SIZES[0]

    def run(self, given: list[Ids]) -> NDArray[np.float32]:
        """[num_texts, dimensions], in host memory."""
        texts = [rows.text(ids) for ids in given]
        found = self.model.encode(texts, batch_size=self.batch_size, show_progress_bar=False)
        return np.asarray(found, np.float32)

    def choose(self, lengths: Sequence[int], scale: float) -> None:
        """Takes the batch size that is fastest for these lengths.

        Args:
            lengths: Tokens of the texts.
            scale: Of the texts of a try.
        """
        best = 0.0
        for size in BATCH_SIZES:
            if size > BATCH_SIZES[0] and size * max(lengths) > MAX_BATCH_TOKENS:
                break
            count = max(8, int(max(size, TRIED_TOKENS // max(lengths)) * scale))
            given = rows.sequences([lengths[at % len(lengths)] for at in range(count)])
            chosen, self.batch_size = self.batch_size, size
            self.run(given)
            start = time.perf_counter()
            self.run(given)
            rate = count / (time.perf_counter() - start)
            best, self.batch_size = max((best, chosen), (rate, size))


def main() -> None:
    """Measures."""
    parser = rows.parser("sentence-transformers on one device.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--attention", default="sdpa", help="transformers' attn_implementation")
    parser.add_argument("--scale", type=float, default=1.0, help="of the texts of a pass")
    options = parser.parse_args()
    started = time.perf_counter()
    encoder = Encoder(options)
    flags = {"attn_implementation": options.attention, "device": options.device}
    name = "sentence-transformers"
    report = Report(name, name, options, options.dtype, flags)
    report.ready(started, encoder.run)
    most = rows.longest(options.folder)
    for suite, shapes in (("latency", LATENCY_SHAPES), ("scoring", SCORING_SHAPES)):
        encoder.batch_size = max(num_seqs for num_seqs, _ in shapes)
        report.flags = flags | {"batch_size": encoder.batch_size}
        fitting = [shape for shape in shapes if shape[1] <= most]
        for num_seqs, seq_len, row in rows.latency(encoder.run, fitting, options.scale):
            report.print(suite, num_seqs, seq_len, **row)
    for length in (*(length for length in THROUGHPUT_LENGTHS if length <= most), 0):
        encoder.choose([length] if length else mixed_lengths(256, most), options.scale)
        report.flags = flags | {"batch_size": encoder.batch_size}
        for num_seqs, seq_len, row in rows.throughput(encoder.run, [length], most, options.scale):
            report.print("throughput", num_seqs, seq_len, **row)
    rows.done()


if __name__ == "__main__":
    main()
