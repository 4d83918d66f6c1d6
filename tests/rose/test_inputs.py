"""Batches as tensors: order, padding, segments, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowerbed.errors import ModelError
from flowerbed.rose.inputs import PackedBatch, RowFormat
from flowerbed.rose.kernels.pack import RowDtype
from flowerbed.rose.prepare import padded_tokens, prepare
from references import engine_rows, lowest_cosine

CPU = torch.device("cpu")
ROW = RowFormat(384)


def test_sequences_are_sorted_by_length_and_padded_at_the_end():
    inputs = prepare(PackedBatch.build([[1, 2, 3], [4], [5, 6, 7, 9], [8]], ROW), CPU)
    assert inputs.ids.tolist() == [4, 8, 1, 2, 3, 5, 6, 7, 9, 0, 0, 0, 0, 0, 0, 0]
    assert inputs.context.positions.tolist() == [0, 0, 0, 1, 2, 0, 1, 2, 3] + [0] * 7
    assert inputs.context.attention.cu_seqlens.tolist() == [0, 1, 2, 5, 9]
    groups = [tuple(group) for group in inputs.context.attention.groups]
    assert groups == [(0, 2, 1), (2, 1, 3), (5, 1, 4)]
    assert inputs.segments.starts.tolist() == [2, 0, 5, 1]
    assert inputs.padding_tokens == 7
    assert inputs.context.attention.max_seqlen == 4


@pytest.mark.parametrize("num_tokens", [1, 14, 16, 300])
def test_one_sequence_is_prepared_as_any_other_batch(num_tokens):
    ids = list(range(1000, 1000 + num_tokens))
    alone = prepare(PackedBatch.build([ids], ROW), CPU)
    # A second text that never begins keeps this one off the shorter road.
    other = prepare(PackedBatch.build([ids], ROW, pair_starts=[num_tokens]), CPU)
    assert torch.equal(alone.ids, other.ids)
    assert torch.equal(alone.context.positions, other.context.positions)
    assert alone.context.attention.groups == other.context.attention.groups
    assert alone.padding_tokens == other.padding_tokens
    for name in alone.segments.__slots__:
        assert torch.equal(getattr(alone.segments, name), getattr(other.segments, name)), name


@pytest.mark.parametrize(
    ("num_tokens", "padded"),
    [(1, 8), (16, 16), (17, 24), (128, 128), (129, 144), (512, 512), (513, 576)],
)
def test_cpu_steps_have_few_different_sizes(num_tokens, padded):
    assert padded_tokens(num_tokens, CPU) == padded


def test_segments_are_pooled_from_tokens_that_saw_the_whole_sequence(minilm):
    first, second = [101, 2000, 2001, 2002, 102], [101, 3000, 102]
    spans = [(0, 0, 5), (1, 0, 3), (0, 0, 2), (0, 2, 5), (0, 1, 4)]
    rows = engine_rows(minilm, [first, second], spans=spans)
    assert lowest_cosine(rows[:2], engine_rows(minilm, [first, second])) >= 0.99999
    batch = PackedBatch.build(
        [first], RowFormat(384, normalize=False), spans=[(0, 0, 2), (0, 2, 5), (0, 0, 5)]
    )
    left, right, whole = minilm.step(batch).numpy()[:-3].view(np.float32).reshape(3, 384)
    assert np.allclose((2 * left + 3 * right) / 5, whole, atol=1e-6)


def test_an_empty_segment_is_marked_as_all_zero(minilm):
    batch = PackedBatch.build([[101, 102]], ROW, spans=[(0, 1, 1), (0, 0, 2), (0, 2, 2)])
    assert minilm.step(batch).numpy()[-3:].tolist() == [2, 0, 2]


def test_OP_20_formats_and_lengths_mix_in_one_batch(minilm):
    formats = [ROW, RowFormat(64, RowDtype.UBINARY), RowFormat(128, RowDtype.FLOAT16)]
    sequences = [[101, *range(2000, 2000 + n), 102] for n in (200, 1, 30)]
    batch = PackedBatch.build(sequences, formats)
    data = minilm.step(batch).host()
    assert batch.num_result_bytes == 4 * 384 + 8 + 2 * 128
    assert len(data) == batch.num_result_bytes + 3
    assert data.format == "B"
    full = engine_rows(minilm, sequences)
    assert np.array_equal(np.frombuffer(data[: 4 * 384], np.float32), full[0])
    assert bytes(data[4 * 384 : 4 * 384 + 8]) == np.packbits(full[1, :64] > 0).tobytes()


def test_a_result_on_a_cpu_is_complete_on_return(minilm):
    result = minilm.step(PackedBatch.build([[101, 102]], ROW))
    assert result.ready()
    assert (result.mode, result.padding_tokens) == ("eager", 6)


@pytest.mark.parametrize("bad_id", [-1, 30522, 2**31 - 1])
def test_an_id_without_a_row_raises_and_the_engine_goes_on(minilm, bad_id):
    with pytest.raises(IndexError):
        minilm.step(PackedBatch.build([[101, bad_id, 102]], ROW))
    assert engine_rows(minilm, [[101, 102]]).shape == (1, 384)


def test_a_sequence_past_the_positions_raises(minilm):
    with pytest.raises(IndexError):
        minilm.step(PackedBatch.build([[101] * 513], ROW))


def changed(**parts):
    batch = PackedBatch.build([[101, 102], [101, 5, 102]], ROW)
    values = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    return PackedBatch(**{**values, **parts})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"offsets": np.array([0, 2, 6], np.int32)}, "cu_seqlens"),
        ({"offsets": np.array([0, 6, 5], np.int32)}, "cu_seqlens"),
        ({"offsets": np.array([1, 2, 5], np.int32)}, "cu_seqlens"),
        (
            {"token_ids": np.array([], np.int32), "offsets": np.array([0, 0, 0], np.int32)},
            "cu_seqlens",
        ),
        ({"spans": np.array([[0, 2], [2, 6]], np.int32)}, "segment"),
        ({"spans": np.array([[-1, 2], [2, 5]], np.int32)}, "segment"),
        ({"spans": np.array([[0, 2], [4, 3]], np.int32)}, "segment"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        prepare(changed(**parts), CPU)


def test_a_head_that_the_model_lacks_is_refused(minilm):
    with pytest.raises(ModelError, match="no head 'score'; it has embed, tokens"):
        minilm.step(changed(head="score"))


def test_as_many_formats_as_segments_are_wanted():
    with pytest.raises(ValueError, match="2 segments want as many formats, not 1"):
        PackedBatch.build([[1], [2]], [ROW])
