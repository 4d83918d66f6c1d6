"""Throughput through Tulip: client processes with batches of token ids over gRPC, as published suites do it.

One call after another from each process; the lane is bulk. Called by `loads.py`.
"""

from __future__ import annotations

import random

import numpy as np
from graph_modes import MEAN_LENGTH, mixed_lengths
from loaded import Client, Server, run_item, together
from loadgen import Item, Stream

NUM_CLIENTS, BATCH = 4, 100
LENGTHS = (50, 128, 512, 1_024, 4_096)
MIX = 0
"""In the place of a length: lognormal ones."""
SECONDS, WARM_UP_S = 6.0, 2.0
MAX_PLAN_IDS = 1_000_000
"""Of one client: plans are read before the start."""


def plan(server: Server, length: int, seed: int) -> list[Item]:
    """Calls of random ids over the vocabulary."""
    rng = np.random.default_rng(seed)
    mean = length or MEAN_LENGTH
    num_calls = max(1, min(8, MAX_PLAN_IDS // (BATCH * mean)))
    items: list[Item] = []
    for number in range(num_calls):
        lengths = [length] * BATCH
        if length == MIX:
            drawn = mixed_lengths(BATCH, random.Random(seed * 100 + number))  # noqa: S311 (lengths)
            lengths = [min(one, server.max_length) for one in drawn]
        ids = [rng.integers(0, server.vocab_rows, one).tolist() for one in lengths]
        items.append(run_item(ids, "bulk"))
    return items


def measure(server: Server) -> None:
    """A row a length."""
    for length in (None, *LENGTHS, MIX):
        is_warm_up = length is None
        length = length or MIX
        if length > server.max_length:
            continue
        seconds = server.scale * (WARM_UP_S if is_warm_up else SECONDS)
        name = f"{length} tokens" if length else "mix of mean 180"
        loaded = server.load(
            [
                Client(
                    [Stream(name, plan(server, length, seed), "callers=1", seconds, "check=no")],
                    is_grpc=True,
                )
                for seed in range(NUM_CLIENTS)
            ]
        )
        if not is_warm_up:
            whole = together([reports[0] for reports in loaded.reports])
            facts = {"benchmark": "throughput", "figure": "through Tulip", "length": length}
            server.keep(loaded.row(whole, **facts, batch=BATCH))
