"""Search across languages finds through the server what it finds through sentence-transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from flowerbed.background import serving
from models.conftest import CACHE
from models.debian_corpus import CorpusError, Record, read_corpus
from references import reference_model
from serve.callers import Http

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

NUM_RECORDS = 1_000
BATCH = 64
RANKS = 10
Embed = Callable[[list[str], str], NDArray[np.float32]]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    try:
        every = read_corpus(CACHE)
    except CorpusError as error:
        pytest.skip(str(error))
    assert len(every) >= NUM_RECORDS
    return random.Random(5).sample(every, NUM_RECORDS)


def recall_and_mrr(queries: NDArray[np.float32], documents: NDArray[np.float32]) -> NDArray:
    """Share of queries whose own document comes first, and mean of 1 / rank among the first ten."""
    scores = queries.astype(np.float64) @ documents.astype(np.float64).T
    ranks = (scores > np.diag(scores)[:, None]).sum(1) + 1
    return np.array([(ranks == 1).mean(), np.where(ranks <= RANKS, 1 / ranks, 0).mean()])


def through_the_server(http: Http) -> Embed:
    def embed(texts: list[str], prompt: str) -> NDArray[np.float32]:
        starts = range(0, len(texts), BATCH)
        return np.concatenate(
            [http.embed(texts[at : at + BATCH], prompt_name=prompt) for at in starts]
        )

    return embed


def through_the_reference(folder: Path) -> Embed:
    model = reference_model(folder)
    return lambda texts, prompt: model.encode(texts, prompt_name=prompt, show_progress_bar=False)


def measure(embed: Embed, records: list[Record], passage: str) -> dict[str, NDArray]:
    documents = embed([record.long["en"] for record in records], passage)
    return {
        language: recall_and_mrr(
            embed([record.short[language] for record in records], "query"), documents
        )
        for language in ("en", "de", "fr", "ja")
    }


@pytest.mark.parametrize(
    ("model", "passage"), [("minilm_folder", "document"), ("e5_folder", "passage")]
)
def test_retrieval_into_english_equals_sentence_transformers_to_three_decimals(
    request: pytest.FixtureRequest, records: list[Record], model: str, passage: str
) -> None:
    folder = request.getfixturevalue(model)
    with serving(str(folder)) as server, httpx2.Client(base_url=server.address) as client:
        client.timeout = 600
        ours = measure(through_the_server(Http(client)), records, passage)
    expected = measure(through_the_reference(folder), records, passage)
    for language, figures in ours.items():
        print(f"{folder.name} {language}: R@1, MRR@10 {figures} reference {expected[language]}")
        assert np.abs(figures - expected[language]).max() <= 0.0005
    assert ours["en"].min() > 0.6, "the corpus or the pooling is wrong"
