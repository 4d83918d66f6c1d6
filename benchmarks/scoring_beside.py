"""Queries beside a re-index and scoring: the third lane is loaded over gRPC, since no route of the gateway has its work.

Re-rankers are not served yet. A scoring request here is 100 sequences of 256 tokens in the lane `scoring` with the head
`embed`: the device does the same work for it, and the scheduler puts it where a re-rank will be. Called by `loads.py`.
"""

from __future__ import annotations

import numpy as np
from loaded import BULK, Client, Server, embed, run_item
from loadgen import Stream

QUERY_TOKENS, DOCUMENT_TOKENS = 12, 512
QUERIES_PER_S, SCORINGS_PER_S = 200.0, 5.0
SCORED, SCORED_TOKENS = 100, 256
INDEX_ROWS, INDEX_CALLERS, NUM_INDEX = 64, 8, 16
SECONDS, ALONE_S, WARM_UP_S = 20.0, 8.0, 1.0
WORK = "embeds 100 x 256 tokens in the scoring lane: the device work of a re-rank, which is not served yet"


def measure(server: Server) -> None:
    """The re-index alone, then all three side by side."""
    queries = [embed([text]) for text in server.texts(1_000, QUERY_TOKENS, 1)]
    length = min(DOCUMENT_TOKENS, server.max_length)
    documents = server.texts(INDEX_ROWS * NUM_INDEX, length, 3)
    index = [
        embed(documents[at : at + INDEX_ROWS], BULK) for at in range(0, len(documents), INDEX_ROWS)
    ]
    rng = np.random.default_rng(4)
    shape = (SCORED, min(SCORED_TOKENS, server.max_length))
    scored = [
        run_item(rng.integers(0, server.vocab_rows, shape).tolist(), "scoring") for _ in range(8)
    ]

    def re_index(seconds: float) -> Client:
        pace = f"callers={INDEX_CALLERS}"
        return Client([Stream("re-index", index, pace, seconds * server.scale, "check=no")])

    facts = {"benchmark": "scoring_beside"}
    server.load([re_index(WARM_UP_S)])
    loaded = server.load([re_index(ALONE_S)])
    alone = loaded.reports[0][0]
    server.keep(loaded.row(alone, **facts, figure="re-index alone"))
    seconds = SECONDS * server.scale
    asked = Stream("queries", queries, f"poisson={QUERIES_PER_S}", seconds, "seed=5,check=no")
    score = Stream("scoring", scored, f"poisson={SCORINGS_PER_S}", seconds, "seed=6,check=no")
    loaded = server.load([Client([asked]), re_index(SECONDS), Client([score], is_grpc=True)])
    figure = f"{QUERIES_PER_S:.0f} queries/s, a re-index and {SCORINGS_PER_S:.0f} scorings/s"
    for [report] in loaded.reports:
        row = loaded.row(report, **facts, figure=figure)
        if report["name"] == "re-index":
            lost = 1 - report["tokens_per_second"] / alone["tokens_per_second"]
            row["re_index_lost"] = round(lost, 4)
        if report["name"] == "scoring":
            row["work"] = WORK
        server.keep(row)
