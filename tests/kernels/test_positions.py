"""Places of tokens: the Triton kernel and the torch reference against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowerbed.rose.kernels.positions import places_after_padding, token_places

LENGTHS = [
    [1],
    [5, 1, 130],
    [0, 3, 0, 0, 2, 0],
    [7, 0, 0],
    [1] * 65,
    [3, 40, 0, 2, 1, 19, 260] * 5 + [0] * 29,
]


def tables(lengths, padding):
    """cu_seqlens, pair starts, and each token's position and type."""
    pair_starts = [length * 2 // 3 for length in lengths]
    positions = np.concatenate([np.arange(n) for n in lengths] + [np.zeros(padding)])
    types = [np.arange(n) >= start for n, start in zip(lengths, pair_starts, strict=True)]
    types = np.concatenate([*types, np.zeros(padding, dtype=bool)])
    cu_seqlens = np.cumsum([0, *lengths])
    return [torch.from_numpy(a.astype(np.int32)) for a in (cu_seqlens, np.array(pair_starts))] + [
        positions.astype(np.int32),
        types.astype(np.int32),
    ]


def check(found, positions, types):
    assert found[0].dtype == torch.int32
    assert np.array_equal(found[0].cpu().numpy(), positions)
    if found[1] is not None:
        assert found[1].dtype == torch.int32
        assert np.array_equal(found[1].cpu().numpy(), types)


@pytest.mark.parametrize("padding", [0, 1, 100])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_each_token_knows_its_place(lengths, padding, device):
    from flowerbed.rose.kernels import triton_positions

    cu_seqlens, pair_starts, positions, types = tables(lengths, padding)
    num_tokens = len(positions)
    check(token_places(cu_seqlens, pair_starts, num_tokens), positions, types)
    cu_seqlens, pair_starts = cu_seqlens.to(device), pair_starts.to(device)
    check(triton_positions.token_places(cu_seqlens, pair_starts, num_tokens), positions, types)


def test_without_pairs_there_are_no_types(device):
    from flowerbed.rose.kernels import triton_positions

    cu_seqlens, _, positions, _ = tables([4, 9], 3)
    for places in (token_places, triton_positions.token_places):
        found, types = places(cu_seqlens.to(device), None, len(positions))
        assert types is None
        assert np.array_equal(found.cpu().numpy(), positions)


def test_a_pair_start_at_the_end_gives_no_second_text(device):
    from flowerbed.rose.kernels import triton_positions

    cu_seqlens = torch.tensor([0, 3, 5], dtype=torch.int32, device=device)
    pair_starts = torch.tensor([3, 0], dtype=torch.int32, device=device)
    for places in (token_places, triton_positions.token_places):
        assert places(cu_seqlens, pair_starts, 6)[1].tolist() == [0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("padding_id", [0, 1])
@pytest.mark.parametrize("lengths", [*LENGTHS, [3, 1_500, 20, 2_600]])
def test_padding_in_a_callers_ids_has_no_place_of_its_own(lengths, padding_id, device):
    from flowerbed.rose.kernels import triton_positions

    dice = np.random.default_rng(len(lengths))
    sequences = [dice.integers(0, 4, n).astype(np.int32) for n in lengths] + [
        np.zeros(1, np.int32)
    ] * 3
    expected = [
        np.where(ids == padding_id, padding_id, padding_id + np.cumsum(ids != padding_id))
        for ids in sequences
    ]
    ids = torch.from_numpy(np.concatenate(sequences))
    positions = torch.from_numpy(
        np.concatenate([np.arange(len(one), dtype=np.int32) for one in sequences])
    )
    inputs = ids.to(device), positions.to(device), padding_id
    for places in (places_after_padding, triton_positions.places_after_padding):
        np.testing.assert_array_equal(places(*inputs).cpu().numpy(), np.concatenate(expected))
