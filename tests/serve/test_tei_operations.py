"""TEI's routes under hostile and heavy use (classes IN and OP)."""

from __future__ import annotations

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest

from flowerbed.background import RunningServer
from serve.callers import Tei

pytestmark = [pytest.mark.usefixtures("golden"), pytest.mark.timeout(180)]

BODIES = {
    "/embed": {"inputs": ["word " * 250] * 64},
    "/embed_all": {"inputs": ["word " * 250] * 16},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["word " * 250] * 64}},
    "/": {"inputs": ["word " * 250] * 64},
    "/tokenize": {"inputs": ["word " * 2_500] * 16},
    "/decode": {"ids": [[7592] * 10_000] * 16},
}


@pytest.mark.parametrize("text", ["a" * 1_000_000, "1" * 500_000, "漢" * 70_000])
def test_IN_11_very_long_words_are_listed_in_bounded_time(tei: Tei, text: str) -> None:
    start = time.monotonic()
    [tokens] = tei.ask("/tokenize", {"inputs": text}).json()
    assert time.monotonic() - start < 10
    assert tokens[-1]["id"] == 102


def test_IN_12_huge_texts_to_tokenize_do_not_hold_up_health_or_queries(tei: Tei) -> None:
    huge = "lorem ipsum " * 40_000
    with ThreadPoolExecutor(8) as pool:
        floods = [pool.submit(tei.ask, "/tokenize", {"inputs": huge}) for _ in range(8)]
        slowest = 0.0
        while not all(flood.done() for flood in floods):
            start = time.monotonic()
            assert tei.client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
            tei.embed("five words are not many")
        sizes = [len(flood.result().json()[0]) for flood in floods]
    assert len(set(sizes)) == 1
    assert sizes[0] > 80_000
    assert slowest < 1  # a bound against hanging, not a measurement


def test_OP_07_callers_that_hang_up_leave_a_live_server(server: RunningServer) -> None:
    address = urlsplit(server.address)
    for path, body in BODIES.items():
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        ).encode()
        for sent in (head[:20], head, head + content[: len(content) // 2], head + content):
            for _ in range(3):
                with socket.create_connection((address.hostname, address.port)) as connection:
                    connection.sendall(sent)


class Patient(Tei):
    """Asks again when it is told to, as a caller should whom a slow machine's queue has no room for."""

    def ask(self, path: str, body: object) -> httpx2.Response:
        for _ in range(10):
            response = self.client.post(path, json=body)
            if response.status_code != 429:
                break
            assert response.json()["error_type"] == "Overloaded"
            time.sleep(min(int(response.headers["retry-after"]), 10))
        assert response.status_code == 200, response.text
        return response


def test_OP_13_mixed_routes_and_lengths_are_all_answered_rightly(
    server: RunningServer, tei: Tei
) -> None:
    texts = ["x", "some words " * 10, "word " * 240, "word " * 900]
    vectors = tei.embed(texts)
    num_tokens = [len(tokens) for tokens in tei.ask("/tokenize", {"inputs": texts}).json()]
    rng = random.Random(3)
    picks = [[rng.randrange(4) for _ in range(rng.choice([1, 2, 9, 30]))] for _ in range(60)]

    def check(number: int) -> None:
        picked = picks[number]
        inputs = [texts[index] for index in picked]
        with httpx2.Client(base_url=server.address, timeout=120) as client:
            own = Patient(client)
            match number % 4:
                case 0:
                    np.testing.assert_allclose(own.embed(inputs), vectors[picked], atol=1e-5)
                case 1:
                    rows = own.ask("/embed_all", {"inputs": inputs[:4]}).json()
                    cut = [min(num_tokens[index], 256) for index in picked[:4]]
                    assert [len(row) for row in rows] == cut
                case 2:
                    asked = {"source_sentence": texts[1], "sentences": inputs}
                    got = own.ask("/similarity", {"inputs": asked}).json()
                    np.testing.assert_allclose(got, vectors[picked] @ vectors[1], atol=1e-5)
                case _:
                    listed = own.ask("/tokenize", {"inputs": inputs}).json()
                    assert [len(tokens) for tokens in listed] == [num_tokens[i] for i in picked]

    with ThreadPoolExecutor(20) as pool:
        for job in [pool.submit(check, number) for number in range(len(picks))]:
            job.result(timeout=150)
