"""Pooling of segments: the Triton kernel and the torch reference against sentence-transformers."""

from __future__ import annotations

import pytest
import torch

from flowerbed.rose.kernels.pooling import POOLERS, pool_segments

MODES = tuple(POOLERS)
DTYPES = {"cpu": (torch.float32, torch.float16), "cuda": (torch.float32, torch.bfloat16)}


def step(lengths, hidden_size, padding=0, unused=2):
    """Hidden states, one segment a sequence and unused ones, and cu_seqlens."""
    torch.manual_seed(len(lengths))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
    bounds = torch.stack([cu_seqlens[:-1], cu_seqlens[1:]], dim=1)
    segments = torch.cat([bounds, torch.zeros(unused, 2, dtype=torch.int32)])
    return torch.randn(sum(lengths) + padding, hidden_size), segments, cu_seqlens


def pooled_by_sentence_transformers(hidden, segments, cu_seqlens, modes):
    """Each segment alone in a batch; tokens before it in its sequence are masked like a prompt's."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    rows = []
    for start, end in segments.tolist():
        if start == end:
            rows.append(torch.zeros(hidden.shape[1] * len(modes)))
            continue
        first = max(at for at in cu_seqlens.tolist() if at <= start)
        pooling = Pooling(hidden.shape[1], modes, include_prompt=start == first)
        features = {
            "token_embeddings": hidden[first:end].float()[None],
            "attention_mask": torch.ones(1, end - first, dtype=torch.long),
            "prompt_length": start - first,
        }
        rows.append(pooling(features)["sentence_embedding"][0])
    return torch.stack(rows)


def check(hidden, segments, cu_seqlens, modes, device):
    from flowerbed.rose.kernels import triton_pooling

    for dtype in DTYPES[device.type]:
        values = hidden.to(dtype)
        expected = pooled_by_sentence_transformers(values, segments, cu_seqlens, modes)
        reference = pool_segments(values, segments, cu_seqlens, modes)
        found = triton_pooling.pool_segments(
            values.to(device), segments.to(device), cu_seqlens.to(device), modes
        )
        assert found.dtype == reference.dtype == torch.float32
        torch.testing.assert_close(reference, expected, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_equals_sentence_transformers(mode, device):
    check(*step([1, 7, 130, 2, 300], 37, padding=5), (mode,), device)


@pytest.mark.parametrize("hidden_size", [1, 64, 384])
def test_modes_are_joined_in_their_order(hidden_size, device):
    check(*step([3, 20], hidden_size), ("max", "cls", "mean", "lasttoken", "mean"), device)


def test_several_segments_lie_in_one_sequence(device):
    hidden, _, cu_seqlens = step([40, 0, 30], 24)
    segments = torch.tensor([[0, 10], [10, 40], [12, 12], [41, 70], [5, 30], [70, 70]]).int()
    check(hidden, segments, cu_seqlens, ("mean", "weightedmean", "max", "cls"), device)


def test_long_segments_are_split_and_give_the_same(device):
    from flowerbed.rose.kernels.triton_pooling import num_splits

    hidden, segments, cu_seqlens = step([3, 3000, 1, 1093], 40)
    assert num_splits(len(hidden), len(segments)) > 1
    check(hidden, segments, cu_seqlens, MODES, device)


@pytest.mark.parametrize("lengths", [[3, 64, 1, 50], [3, 3000, 1, 1093]])
def test_a_bound_on_lengths_chooses_the_kernel_and_changes_no_row(lengths, device):
    from flowerbed.rose.kernels import triton_pooling

    hidden, segments, cu_seqlens = step(lengths, 40)
    expected = pool_segments(hidden, segments, cu_seqlens, MODES, 64)
    places = segments.to(device), cu_seqlens.to(device), MODES
    found = triton_pooling.pool_segments(hidden.to(device), *places, 64)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "expected"),
    [(64, 16, 1), (2047, 1, 1), (4096, 16, 4), (32768, 64, 16), (32768, 2048, 1)],
)
def test_splits_follow_from_the_shape(num_tokens, num_rows, expected):
    from flowerbed.rose.kernels.triton_pooling import num_splits

    assert num_splits(num_tokens, num_rows) == expected


@pytest.mark.parametrize("lengths", [[5, 8, 3], [5, 4000, 300]])
def test_equal_inputs_give_equal_bits(lengths, device):
    from flowerbed.rose.kernels import triton_pooling

    arguments = [part.to(device) for part in step(lengths, 16)]
    first, again = (triton_pooling.pool_segments(*arguments, MODES) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("lengths", [[4, 6, 3], [4, 2500, 300]])
def test_a_value_that_is_not_finite_marks_its_segment_and_no_other(lengths, bad, device):
    from flowerbed.rose.kernels import triton_pooling

    hidden, segments, cu_seqlens = step(lengths, 8)
    hidden[lengths[0]] = bad  # the first token of the second sequence
    modes = ("mean", "max", "cls", "weightedmean", "mean_sqrt_len_tokens")
    places = segments.to(device), cu_seqlens.to(device), modes
    for pool in (pool_segments, triton_pooling.pool_segments):
        rows = pool(hidden.to(device), *places)
        is_finite = torch.isfinite(rows).view(len(rows), len(modes), -1).cpu()
        assert not is_finite[1].any()
        assert is_finite[[0, *range(2, len(rows))]].all()


def test_rows_of_a_wider_matrix_are_pooled(device):
    from flowerbed.rose.kernels import triton_pooling

    hidden, segments, cu_seqlens = step([3, 9], 30)
    view = torch.cat([hidden, hidden], dim=1).to(device)[:, 5:25]
    found = triton_pooling.pool_segments(view, segments.to(device), cu_seqlens.to(device), MODES)
    expected = pool_segments(view.cpu(), segments, cu_seqlens, MODES)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)
