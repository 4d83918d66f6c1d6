"""Text over HTTP to vectors as bytes, through Ivy and Tulip: what the gateway's own work costs.

Texts are real where the tokenizer is; requests of 100 from 16 callers. The same ids over gRPC beside them, without the
gateway. Called by `loads.py`.
"""

from __future__ import annotations

from loaded import Client, Loaded, Server, embed, open_tokenizer, run_item
from loadgen import Item, Report, Stream

LENGTHS = (50, 512)
BATCH, CALLERS = 100, 16
NUM_TOKENS = 160_000
"""Of all texts of a length; they are asked for again and again."""
SECONDS, WARM_UP_S = 6.0, 1.5
TOKENIZERS = ("ivy-short", "ivy-long", "ivy-huge")
"""Threads of the gateway that do nothing else."""
JSON_LENGTH = 50
"""Where base64 is measured too."""


def measure(server: Server) -> None:
    """Rows of each length: bytes, and what to compare them with."""
    for length in LENGTHS:
        if length > server.max_length:
            continue
        texts = server.texts(BATCH * max(1, NUM_TOKENS // BATCH // length), length, length)
        batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
        octets = [embed(batch, form="bytes") for batch in batches]
        _load(server, octets, WARM_UP_S)
        loaded, report = _load(server, octets, SECONDS)
        _keep(server, loaded, report, length, "text over HTTP to bytes")
        if length == JSON_LENGTH:
            loaded, report = _load(server, [embed(batch) for batch in batches], SECONDS)
            _keep(server, loaded, report, length, "text over HTTP to base64")
        tokenizer = open_tokenizer(server.folder)
        encoded = [[one.ids for one in tokenizer.encode_batch(batch)] for batch in batches]
        calls = [run_item(ids, "bulk") for ids in encoded]
        loaded, report = _load(server, calls, SECONDS, is_grpc=True)
        _keep(server, loaded, report, length, "its ids over gRPC")


def _load(
    server: Server, items: list[Item], seconds: float, *, is_grpc: bool = False
) -> tuple[Loaded, Report]:
    stream = Stream("texts", items, f"callers={CALLERS}", seconds * server.scale, "check=no")
    loaded = server.load([Client([stream], is_grpc=is_grpc, threads=2)])
    return loaded, loaded.reports[0][0]


def _keep(server: Server, loaded: Loaded, report: Report, length: int, figure: str) -> None:
    row = loaded.row(report, benchmark="text_rate", figure=figure, length=length, batch=BATCH)
    row["name"] = f"{length} tokens"
    tokenizing = sum(loaded.gateway_threads.get(name, 0.0) for name in TOKENIZERS)
    for what, cores in (("gateway", loaded.gateway_cores), ("tokenizing", tokenizing)):
        row[f"{what}_us_per_text"] = round(1e6 * cores / max(report["rows_per_second"], 1.0), 2)
    server.keep(row)
