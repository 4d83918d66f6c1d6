"""What every peer measures and prints: inputs, times, and rows with the keys of `flowerbed bench engine`.

Beside those keys a row has `flags`, the settings the peer ran with. FOLDER is a model of `random_models.py`:
its tokenizer makes one id of each word, so that texts and ids of a length are the same work. Knows no peer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from machine import version
from numpy.typing import NDArray

from flowerbed.bench import MIN_TIMED, NUM_TIMED, THROUGHPUT_S, mixed_lengths
from flowerbed.machine import cpu_name, gpu_names

END_ID, FIRST_WORD_ID, NUM_WORDS = 2, 10, 20_000
"""Of the tokenizer that `random_models.py` writes: `w0` is id 10, and 2 ends a text."""
NUM_WARM, MIN_PASSES, LATENCY_S = 10, 2, 1.0
PASS_TEXTS = {50: 4_096, 128: 2_048, 512: 768, 1_024: 384, 4_096: 96, 0: 2_048}
"""Texts of a pass by their tokens, a second or more of vLLM on an H200; 0: the mix."""
Ids = list[int]
Row = dict[str, Any]
Encode = Callable[[list[Ids]], Any]
"""Runs sequences and returns when all their vectors are in host memory."""


@dataclass(slots=True)
class Report:
    """Prints the rows of one system, each with the conditions of all of them."""

    system: str
    package: str  # the distribution whose version counts
    options: argparse.Namespace
    dtype: str
    flags: dict[str, Any]
    min_cosine: float | None = None  # to the reference; None without one
    more: dict[str, Any] = field(default_factory=dict[str, Any])  # of all rows

    def print(self, suite: str, num_seqs: int, seq_len: int, **values: Any) -> None:
        """One row. Only after the system is loaded: asking for the GPU's name may not precede a fork."""
        row: Row = {"suite": suite, "num_seqs": num_seqs, "seq_len": seq_len, **values}
        row |= {
            "system": self.system,
            "version": version(self.package),
            "torch": version("torch"),
            "device": next(iter(gpu_names()), cpu_name()),
            "model": self.options.folder.name,
            "dtype": self.dtype,
            "flags": self.flags,
            "min_cosine": self.min_cosine,
            "commit": self.options.label,
            **self.more,
        }
        print(
            json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}),
            flush=True,
        )

    def ready(self, started: float, encode: Encode | None = None) -> None:
        """Says that the system is loaded, waits for its turn if told to, and compares its vectors.

        Args:
            started: When it began to load, by `time.perf_counter`.
            encode: Gives the vectors, if it makes any.
        """
        self.more |= {"ready_s": round(time.perf_counter() - started, 1)}
        print(json.dumps(self.more), flush=True)
        if self.options.wait and not sys.stdin.readline():
            raise SystemExit("error: nobody said when to measure")
        reference = self.options.reference
        if encode is not None and reference is not None and reference.exists():
            ours = encode(sequences(reference_lengths(self.options.folder)))
            found = cosines(np.asarray(ours, np.float32), np.load(reference))
            self.min_cosine = float(found.min())


def done() -> None:
    """Says that all rows are printed: what is left is to end, which nobody need wait for."""
    print(json.dumps({"done": True}), flush=True)


def parser(description: str) -> argparse.ArgumentParser:
    """Options that every peer has."""
    made = argparse.ArgumentParser(description=description, allow_abbrev=False)
    made.add_argument("folder", type=Path, help="a model of random_models.py")
    made.add_argument("--label", default="", help="name of the rows' commit")
    made.add_argument("--reference", type=Path, help="vectors that reference.py wrote")
    made.add_argument("--wait", action="store_true", help="load, then wait for a line on stdin")
    return made


def longest(folder: Path) -> int:
    """Tokens of the longest text."""
    config = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    return int(config["max_seq_length"])


def sequences(lengths: Sequence[int], seed: int = 1) -> list[Ids]:
    """Random words, each with the id that ends a text."""
    rng = np.random.default_rng(seed)
    words = (rng.integers(0, NUM_WORDS, length - 1) + FIRST_WORD_ID for length in lengths)
    return [[*map(int, ids), END_ID] for ids in words]


def text(ids: Ids) -> str:
    """That the tokenizer makes these ids of."""
    return " ".join(f"w{one - FIRST_WORD_ID}" for one in ids[:-1])


def latency(
    run: Encode, shapes: Sequence[tuple[int, int]], seconds: float = LATENCY_S
) -> Iterator[tuple[int, int, Row]]:
    """One request after another: texts, tokens of each, and its figures."""
    for num_seqs, seq_len in shapes:
        requests = [sequences([seq_len] * num_seqs, seed) for seed in range(8)]
        for request in requests + requests[: max(0, NUM_WARM - 8)]:
            run(request)
        taken: list[float] = []
        until = time.perf_counter() + seconds
        while len(taken) < NUM_TIMED and (len(taken) < MIN_TIMED or time.perf_counter() < until):
            request = requests[len(taken) % len(requests)]
            start = time.perf_counter()
            run(request)
            taken.append(time.perf_counter() - start)
        rate = num_seqs / statistics.median(taken)
        yield num_seqs, seq_len, spread(taken) | rates(rate, rate * seq_len)


def throughput(
    run: Encode, lengths: Sequence[int], most: int, scale: float = 1.0
) -> Iterator[tuple[int, int, Row]]:
    """All texts of a pass at once, passes without pause: texts, tokens of each, and its figures.

    Args:
        run: Takes a pass.
        lengths: Tokens of a text; 0 is the mix.
        most: Tokens of the longest text that the system takes.
        scale: Of the texts of a pass.
    """
    for length in lengths:
        count = max(8, int(PASS_TEXTS[length] * scale))
        given = sequences([length] * count if length else mixed_lengths(count, most))
        run(given[: count // 4])
        taken: list[float] = []
        while len(taken) < MIN_PASSES or sum(taken) < THROUGHPUT_S * scale:
            start = time.perf_counter()
            run(given)
            taken.append(time.perf_counter() - start)
        passes = len(taken) / sum(taken)
        num_tokens = sum(map(len, given))
        yield count, length, spread(taken) | rates(count * passes, num_tokens * passes)


def spread(seconds: Sequence[float]) -> Row:
    """Median and last hundredth, milliseconds."""
    return {
        "p50_ms": statistics.median(seconds) * 1e3,
        "p99_ms": float(np.quantile(seconds, 0.99)) * 1e3,
    }


def rates(texts: float, tokens: float) -> Row:
    """Of a second."""
    return {"emb_per_s": texts, "tok_per_s": tokens}


def reference_lengths(folder: Path) -> list[int]:
    """Of the sequences whose vectors are compared, as those of `flowerbed bench engine`."""
    most = min(longest(folder), 2_048)
    return [2, 7, most, *mixed_lengths(61, most)]


def cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each row with the other's.

    Args:
        one: [num_texts, dimensions] float32.
        other: Likewise.
    """
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(axis=1) / norms
