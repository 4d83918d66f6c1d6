"""Which sizes become graphs, when, and which one serves a step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from flowerbed.config import GraphCapture
from flowerbed.rose.engine import WARM_UP_TOKENS
from flowerbed.rose.graphs import MANY_SLOTS, GraphCache, GraphKey, make_grid, token_buckets
from flowerbed.rose.kernels.backend import MANY_ROWS
from flowerbed.rose.kernels.fused_linear import MAX_FEW_ROWS
from flowerbed.rose.kernels.short_sequences import MAX_SHORT_SEQLEN
from flowerbed.rose.kernels.triton_pooling import num_splits
from flowerbed.rose.staging import SLOT_MULTIPLE, TOKEN_MULTIPLE

MEGABYTE = 1 << 20


@dataclass
class FakeGraph:
    num_bytes: int = MEGABYTE

    def replay(self) -> None:
        pass


class Fixture:
    def __init__(
        self,
        when: GraphCapture,
        *,
        is_tight: bool = False,
        limit: int = 1 << 40,
    ) -> None:
        self.captured: list[GraphKey] = []
        self.fails_at: GraphKey | None = None
        self.cache = GraphCache(
            make_grid(2_048, is_bound_tight=is_tight),
            when=when,
            memory_limit=limit,
            capture=self.capture,
        )

    def capture(self, key: GraphKey) -> FakeGraph:
        if key == self.fails_at:
            raise RuntimeError("out of memory")
        self.captured.append(key)
        return FakeGraph()

    def run(
        self, num_tokens: int, num_slots: int = 1, max_seqlen: int = 65
    ) -> tuple[GraphKey, str]:
        wanted = self.cache.key(num_tokens, num_slots, max_seqlen)
        assert wanted is not None
        key, _, mode = self.cache.choose(wanted, num_tokens, num_slots)
        return key, mode


def test_buckets_grow_coarser_and_reach_the_largest_step() -> None:
    assert token_buckets(130) == (32, 64, 128, 192)
    assert token_buckets(2_048)[-5:] == (1_024, 1_280, 1_536, 1_792, 2_048)
    assert token_buckets(6_000)[-4:] == (4_864, 4_992, 5_120, 6_144)


@pytest.mark.parametrize(
    ("num_tokens", "num_slots", "key"),
    [
        (1, 1, GraphKey(32, 16, 32)),
        (33, 1, GraphKey(64, 16, 64)),
        (64, 16, GraphKey(64, 16, 64)),
        (65, 17, GraphKey(128, 64, 128)),
        (1_025, 64, GraphKey(1_280, 64, 1_280)),
        (2_049, 1, None),
        (66, 65, GraphKey(256, 128, 256)),
        (2_048, 128, GraphKey(2_048, 128, 2_048)),
        (66, 129, None),
    ],
)
def test_the_key_that_holds_a_step_with_the_least_padding(
    num_tokens: int, num_slots: int, key: GraphKey | None
) -> None:
    assert Fixture(GraphCapture.START).cache.key(num_tokens, num_slots, 65) == key


@pytest.mark.parametrize(
    ("num_tokens", "num_slots", "longest", "key"),
    [
        (1_100, 40, 64, GraphKey(1_280, 128, 64)),
        (1_100, 40, 65, GraphKey(1_280, 64, 1_280)),
        (1_100, 128, 18, GraphKey(1_280, 128, 64)),
        (1_100, 129, 18, None),
        (960, 64, 15, GraphKey(960, 64, 960)),  # too few tokens for a graph of their own
    ],
)
def test_steps_of_short_sequences_have_keys_of_their_own(
    num_tokens: int, num_slots: int, longest: int, key: GraphKey | None
) -> None:
    cache = Fixture(GraphCapture.START).cache
    assert cache.key(num_tokens, num_slots, longest) == key


def test_lazily_a_graph_for_any_lengths_serves_short_sequences() -> None:
    fixture = Fixture(GraphCapture.LAZY)
    for _ in range(2):
        fixture.run(1_280, 64, 500)
    assert fixture.run(1_200, 60, 30) == (GraphKey(1_280, 64, 1_280), "replay")
    assert fixture.run(1_200, 60, 30) == (GraphKey(1_280, 128, 64), "capture")


def test_a_tight_bound_knows_no_short_sequences() -> None:
    cache = Fixture(GraphCapture.LAZY, is_tight=True).cache
    assert cache.key(1_100, 64, 18) == GraphKey(1_280, 64, 256)  # 180 tokens of padding


def test_at_start_the_whole_grid_is_captured_the_largest_of_each_class_first() -> None:
    fixture = Fixture(GraphCapture.START)
    fixture.cache.capture_all()
    sizes = list(reversed(token_buckets(2_048)))
    keys = [GraphKey(size, slots, size) for slots in (16, 64) for size in sizes]
    many = [GraphKey(size, 128, size) for size in (2_048, 1_536, 1_024, 512, 256)]
    short = [GraphKey(size, 128, 64) for size in (2_048, 1_792, 1_536, 1_280, 1_024)]
    assert fixture.captured == keys + many + short
    assert len(fixture.cache) == len(fixture.captured)
    assert fixture.run(700, 3) == (GraphKey(704, 16, 704), "replay")


def test_short_sequences_have_graphs_as_large_as_they_can_fill() -> None:
    keys = make_grid(16_384, is_bound_tight=False).all_keys()
    sizes = [key.num_tokens for key in keys if key.max_seqlen == 64 < key.num_tokens]
    assert (sizes[0], sizes[-1]) == (8_192, 1_024)
    assert max(larger - smaller for smaller, larger in pairwise(reversed(sizes))) == 256
    assert not [
        k for k in make_grid(960, is_bound_tight=False).all_keys() if k.max_seqlen < k.num_tokens
    ]


def test_a_step_whose_own_graph_has_no_room_takes_a_larger_one() -> None:
    class_ends = 2 * len(token_buckets(2_048)) + 5  # those of short sequences come after them
    fixture = Fixture(GraphCapture.START, limit=class_ends * MEGABYTE)
    fixture.cache.capture_all()
    assert GraphKey(1_280, 128, 64) not in fixture.captured
    assert fixture.run(1_200, 60, 30) == (GraphKey(1_280, 64, 1_280), "replay")
    assert fixture.run(1_200, 100, 30)[1] == "replay"


def test_a_tight_bound_holds_for_the_padding_of_a_larger_graph_too() -> None:
    fixture = Fixture(GraphCapture.LAZY, is_tight=True)
    for _ in range(2):
        fixture.run(310, 1, 60)
    assert fixture.captured == [GraphKey(320, 16, 64)]
    assert fixture.run(241, 1, 60)[1] == "eager"  # 79 tokens of padding
    other = Fixture(GraphCapture.LAZY, is_tight=True)
    for _ in range(2):
        other.run(310, 1, 60)
    assert other.run(256, 1, 60) == (GraphKey(320, 16, 64), "replay")


def test_large_steps_have_no_graphs_of_few_sequences_unless_slots_cost() -> None:
    key = make_grid(16_384, is_bound_tight=False).key(8_000, 8, 1_000)
    assert key == GraphKey(8_192, 64, 8_192)
    assert make_grid(16_384, is_bound_tight=True).key(8_000, 8, 1_000) == GraphKey(8_192, 16, 1_024)


def test_many_sequences_have_a_graph_at_every_size() -> None:
    for most in (130, 700, 2_048, 6_000):
        grid = make_grid(most, is_bound_tight=False)
        assert all(grid.key(num_tokens, 128, 100) for num_tokens in range(128, most + 1))


def test_lazily_the_first_step_is_eager_the_second_captured_the_third_replayed() -> None:
    fixture = Fixture(GraphCapture.LAZY)
    fixture.cache.capture_all()
    assert not fixture.captured
    assert [fixture.run(100)[1] for _ in range(4)] == ["eager", "capture", "replay", "replay"]
    assert fixture.captured == [GraphKey(128, 16, 128)]


def test_a_larger_graph_serves_a_new_size_if_it_wastes_little() -> None:
    fixture = Fixture(GraphCapture.LAZY)
    for _ in range(2):
        fixture.run(1_024)
    assert fixture.run(800) == (GraphKey(1_024, 16, 1_024), "replay")  # 22% padding
    assert fixture.run(700) == (GraphKey(704, 16, 704), "eager")  # would be 31%
    assert fixture.run(800) == (GraphKey(832, 16, 832), "capture")  # it came again


def test_a_tight_bound_is_part_of_the_key_and_has_few_values() -> None:
    cache = Fixture(GraphCapture.LAZY, is_tight=True).cache
    bounds = {cache.key(600, 1, longest).max_seqlen for longest in range(1, 513)}  # pyright: ignore
    assert bounds == {64, 128, 256, 512}


def test_over_the_memory_limit_the_least_recently_used_goes() -> None:
    fixture = Fixture(GraphCapture.LAZY, limit=2 * MEGABYTE)
    for size in (64, 128):
        for _ in range(2):
            fixture.run(size)
    fixture.run(64)
    for _ in range(2):
        fixture.run(512)
    assert fixture.cache.num_bytes == 2 * MEGABYTE
    assert fixture.run(64)[1] == "replay"
    assert fixture.run(128)[1] == "capture"  # it went


def test_at_start_the_memory_limit_ends_the_capture(caplog: pytest.LogCaptureFixture) -> None:
    fixture = Fixture(GraphCapture.START, limit=3 * MEGABYTE)
    fixture.cache.capture_all()
    assert len(fixture.captured) == 3
    assert "--graph-memory-mb" in caplog.text
    assert fixture.run(64)[1] == "eager"


@pytest.mark.parametrize("when", [GraphCapture.START, GraphCapture.LAZY])
def test_a_size_that_cannot_be_captured_takes_a_larger_graph_or_none(when: GraphCapture) -> None:
    fixture = Fixture(when)
    fixture.fails_at = GraphKey(128, 16, 128)
    fixture.cache.capture_all()
    larger = GraphKey(128, 64, 128), "replay"
    expected = larger if when is GraphCapture.START else (fixture.fails_at, "eager")
    assert [fixture.run(100) for _ in range(4)] == [expected] * 4
    assert [fixture.run(64)[1] for _ in range(3)][-1] == "replay"


def test_the_padding_counts_for_a_tight_bound() -> None:
    cache = Fixture(GraphCapture.LAZY, is_tight=True).cache
    assert cache.key(1_030, 16, 17) == GraphKey(1_280, 16, 256)


def test_off_nothing_has_a_key() -> None:
    assert Fixture(GraphCapture.OFF).cache.key(64, 1, 64) is None


@pytest.mark.parametrize("max_tokens", [64, 192, 512, 1_024, 2_048, 4_672, 16_384, 20_000])
@pytest.mark.parametrize("is_tight", [False, True])
def test_a_start_meets_each_kernel_that_a_step_without_a_graph_can_meet(
    max_tokens: int, is_tight: bool
) -> None:
    grid = make_grid(max_tokens, is_bound_tight=is_tight)
    chosen = grid.kernel_keys()
    assert len(chosen) <= 2 + max(0, (max_tokens // MANY_ROWS).bit_length())
    warm = (-(-size // TOKEN_MULTIPLE) * TOKEN_MULTIPLE for size in WARM_UP_TOKENS)
    met = {kernels(GraphKey(size, SLOT_MULTIPLE, size)) for size in warm}
    met |= {kernels(key) for key in (*chosen, grid.largest)}
    for size in range(TOKEN_MULTIPLE, max_tokens + 1, TOKEN_MULTIPLE):
        for num_slots in range(SLOT_MULTIPLE, MANY_SLOTS + 1, SLOT_MULTIPLE):
            step = GraphKey(size, num_slots, size)
            assert {part for parts in met for part in parts} >= {*kernels(step)}, step
    for key in chosen:
        assert key.num_tokens <= grid.largest.num_tokens
        assert key.num_slots <= grid.largest.num_slots
    shorts = [key for key in chosen if key.max_seqlen < key.num_tokens]
    assert all(key.max_seqlen == MAX_SHORT_SEQLEN for key in shorts)
    assert bool(shorts) is (not is_tight and max_tokens > MAX_SHORT_SEQLEN)


def kernels(key: GraphKey) -> tuple[tuple[str, int], ...]:
    """What of a step moves them: see `Grid.kernel_keys`."""
    few = key.num_tokens if key.num_tokens <= MAX_FEW_ROWS else 0
    splits = num_splits(key.max_seqlen, key.num_slots)
    return ("few rows", few), ("many rows", key.num_tokens >= MANY_ROWS), ("splits", splits)
