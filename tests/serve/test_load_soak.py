"""64 callers of all lanes at once, some of whom send nonsense or hang up: everything adds up."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from flowerbed.background import RunningServer, serving
from serve import systems
from serve.load import alone, growth, loadgen, scrape, texts, watching_memory
from serve.systems import until

TOLERANCE = 1e-4
MAX_GROWTH, MAX_GROWN_BYTES = 1.05, 8e6
OWN_ROUTES = ("/metrics", "/ready", "/health")
CALLERS = {"online": 44, "scoring": 10, "bulk": 10}
LANE = "x-flowerbed-lane"
STATUSES = (200, 429)  # a slow machine may have too much to do, and must say so at once

BAD = (
    loadgen.Item(raw_body='{"input": "never closed', expect=(400,)),
    loadgen.Item({"input": []}, expect=(400,)),
    loadgen.Item({"input": ["a", 3]}, expect=(400,)),
    loadgen.Item({"input": "x", "model": "another"}, expect=(404,)),
    loadgen.Item({"input": "x"}, headers={LANE: "express"}, expect=(400,)),
    loadgen.Item({"input": "x"}, headers={"content-type": "text/csv"}, expect=(415,)),
    loadgen.Item({"input": [[101, 99_999_999]]}, expect=(400,)),
    loadgen.Item({"input": "x", "dimensions": 100_000}, expect=(400,)),
)


def asks(inputs: list[str], lane: str, rng: random.Random) -> loadgen.Item:
    body = {"input": inputs, "encoding_format": rng.choice(["float", "base64"])}
    golden = tuple(inputs)
    return loadgen.Item(
        body, rows=len(inputs), headers={LANE: lane}, expect=STATUSES, golden=golden
    )


def plan(lane: str, pool: list[str], seed: int) -> list[loadgen.Item]:
    """400 requests of one lane, one in ten bad, one in ten given up."""
    rng = random.Random(seed)
    sizes = {"online": (1, 3), "scoring": (4, 16), "bulk": (24, 48)}[lane]
    items = []
    for _ in range(400):
        kind = rng.random()
        item = asks(rng.choices(pool, k=rng.randint(*sizes)), lane, rng)
        if kind < 0.1:
            item = rng.choice(BAD)
        elif kind < 0.2:
            item = replace(item, hang_up_ms=rng.randint(5, 200))
        items.append(item)
    return items


def soak(seconds: float) -> None:
    rng = random.Random(11)
    pool = texts.queries(60, seed=12) + texts.documents(60, mean_words=40, seed=13)
    with serving() as server:
        golden = alone(server.address, pool)
        streams = [
            loadgen.Stream(
                lane, plan(lane, pool, rng.randrange(1_000)), f"callers={callers}", seconds,
                f"tolerance={TOLERANCE}",
            )
            for lane, callers in CALLERS.items()
        ]  # fmt: skip
        warm_up = [loadgen.Stream(stream.name, stream.items, stream.pace, 3) for stream in streams]
        loadgen.run(server.address, warm_up, golden)
        until(lambda: num_open(server) == 1)
        children = systems.of(server).children()
        before = scrape.Scrape.of(server.address)
        with watching_memory(list(children.values())) as samples:
            reports = loadgen.run(server.address, streams, golden)
        until(lambda: num_open(server) == 1)
        print(*reports, *samples[-1:], sep="\n")  # shown if something fails
        check_answers(reports)
        check_counts(reports, before, scrape.Scrape.of(server.address))
        for process, name in enumerate(children):
            first, last = growth(samples, process)
            has_grown = last > max(first * MAX_GROWTH, first + MAX_GROWN_BYTES)
            assert not has_grown, f"{name} grew from {first / 1e6:.1f} to {last / 1e6:.1f} MB"
        assert systems.of(server).children() == children


def num_open(server: RunningServer) -> float:
    """Requests that have no answer yet, the scrape itself included."""
    return scrape.Scrape.of(server.address).total("flowerbed_requests_open")


def check_answers(reports: list[loadgen.Report]) -> None:
    for report in reports:
        assert report["wrong_reasons"] == [], report["name"]
        assert report["wrong"] == report["unexpected"] == 0, report
        assert report["errors"] == {}, report
        assert not [status for status in report["by_status"] if int(status) >= 500]
        assert report["by_status"]["200"] > 0, "a lane was starved"


def check_counts(
    reports: list[loadgen.Report], before: scrape.Scrape, after: scrape.Scrape
) -> None:
    """The server's counts are the callers'; who hung up is a 499, or was answered all the same."""
    callers: Counter[str] = Counter()
    for report in reports:
        callers.update(report["by_status"])
    num_hung_up = sum(report["hung_up"] for report in reports)
    server = counts_by_code(after)
    server.subtract(counts_by_code(before))
    answered_hang_ups = server["200"] - callers["200"]
    assert answered_hang_ups >= 0
    assert server["499"] + answered_hang_ups == num_hung_up
    others = {code: count for code, count in server.items() if count and code not in ("200", "499")}
    assert others == {code: count for code, count in callers.items() if code != "200"}


def counts_by_code(counted: scrape.Scrape) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, labels, value in counted.samples:
        if name == "flowerbed_requests_total" and labels["route"] not in OWN_ROUTES:
            counts[labels["code"]] += int(value)
    return counts


@pytest.mark.timeout(180)
def test_64_callers_for_10_s_get_right_answers_and_everything_adds_up() -> None:
    soak(10)


@pytest.mark.nightly
def test_64_callers_for_60_s_get_right_answers_and_everything_adds_up() -> None:
    soak(60)
