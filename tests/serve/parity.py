"""What a served model must agree on with sentence-transformers: vectors in any batch, and ids."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from serve.callers import Http, cosines

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MIN_COSINE = 0.99999


def check_parity(http: Http, reference: SentenceTransformer, texts: list[str]) -> None:
    """Each text alone, then all of them three times in random batches."""
    expected = np.stack([reference.encode(text) for text in texts])
    alone = np.concatenate([http.embed(text) for text in texts])
    assert cosines(alone, expected).min() >= MIN_COSINE

    order = list(range(len(texts)))
    rng = random.Random(7)
    for _ in range(3):
        rng.shuffle(order)
        start = 0
        while start < len(order):
            batch = order[start : start + rng.randint(1, 40)]
            got = http.embed([texts[index] for index in batch])
            assert cosines(got, expected[batch]).min() >= MIN_COSINE
            start += len(batch)


def check_ids(http: Http, reference: SentenceTransformer, texts: list[str]) -> None:
    """The gateway's ids are the model's own: same count, and the same vector as those ids give."""
    tokenizer = reference.tokenizer
    max_length = reference.max_seq_length
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=max_length)["input_ids"]
        answer = http.post({"input": text}).json()
        assert answer["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
        from_ids = http.embed(ids)
        from_text = np.array([answer["data"][0]["embedding"]], dtype=np.float32)
        np.testing.assert_array_equal(from_ids, from_text)
