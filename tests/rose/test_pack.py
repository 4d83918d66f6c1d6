"""Row formats against numpy and sentence-transformers, and row statuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowerbed.rose.kernels.pack import RowDtype, pack_rows
from references import packed_row

DTYPES = {dtype.name.lower(): dtype for dtype in RowDtype}


def layout(rows):
    """row_formats of (segment, dtype name, dimensions, normalize), places end to end."""
    table, offset = [], 0
    for segment, name, dimensions, normalize in rows:
        table.append((segment, offset, DTYPES[name], dimensions, normalize))
        offset += DTYPES[name].row_bytes(dimensions)
    return np.array(table, dtype=np.int32), offset


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dimensions", [1, 7, 8, 30, 37])
@pytest.mark.parametrize("name", list(DTYPES))
def test_each_format_equals_its_formula(name, dimensions, normalize):
    pooled = np.random.default_rng(1).normal(size=(5, 37)).astype(np.float32)
    formats, size = layout([(i, name, dimensions, normalize) for i in range(5)])
    packed = pack_rows(torch.from_numpy(pooled), formats, size).numpy()
    expected = b"".join(packed_row(row, name, dimensions, normalize=normalize) for row in pooled)
    found = packed[:size]
    if name == "float32":
        assert np.allclose(found.view("<f4"), np.frombuffer(expected, "<f4"), rtol=1e-6)
    elif name in ("int8", "uint8"):
        off = np.abs(found.view(name).astype(int) - np.frombuffer(expected, name).astype(int))
        assert off.max() <= (1 if normalize else 0)
    elif name in ("float16", "bfloat16") and normalize:
        off = np.abs(found.view("<i2").astype(int) - np.frombuffer(expected, "<i2").astype(int))
        assert off.max() <= 1
    else:
        assert found.tobytes() == expected
    assert (packed[size:] == 0).all()


def test_PA_05_cut_rows_are_normalised_after_the_cut():
    pooled = torch.randn(3, 16)
    formats, size = layout([(i, "float32", 5, True) for i in range(3)])
    rows = pack_rows(pooled, formats, size)[:size].numpy().view(np.float32).reshape(3, 5)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert np.allclose(
        rows * np.linalg.norm(pooled[:, :5], axis=1, keepdims=True), pooled[:, :5], atol=1e-6
    )


def test_formats_mix_in_one_batch_and_one_segment_may_give_several_rows():
    pooled = np.random.default_rng(2).normal(size=(4, 24)).astype(np.float32)
    rows = [
        (3, "float16", 24, False),
        (0, "ubinary", 20, False),
        (1, "float32", 24, False),
        (0, "int8", 3, False),
        (3, "ubinary", 20, False),
        (2, "float32", 24, False),
    ]
    formats, size = layout(rows)
    packed = pack_rows(torch.from_numpy(pooled), formats, size).numpy()
    expected = [packed_row(pooled[s], name, dims, normalize=n) for s, name, dims, n in rows]
    assert packed[:size].tobytes() == b"".join(expected)


def test_rows_may_stand_in_any_order_in_the_buffer():
    pooled = torch.arange(6, dtype=torch.float32).view(3, 2) + 1
    formats, size = layout([(i, "float32", 2, False) for i in range(3)])
    formats[:, 1] = [16, 0, 8]
    rows = pack_rows(pooled, formats, size)[:size].numpy().view(np.float32).reshape(3, 2)
    assert rows.tolist() == [[3, 4], [5, 6], [1, 2]]


def test_int8_rounds_half_to_even_and_clips():
    values = torch.tensor([[0.5 / 127, 1.5 / 127, -2.5 / 127, 3.0, -3.0]])
    formats, size = layout([(0, "int8", 5, False), (0, "uint8", 5, False)])
    packed = pack_rows(values, formats, size).numpy()
    assert packed[:5].view(np.int8).tolist() == [0, 2, -2, 127, -127]
    assert packed[5:10].tolist() == [128, 130, 126, 255, 1]


@pytest.mark.parametrize("name", list(DTYPES))
def test_NU_03_rows_that_are_not_finite_or_all_zero_are_marked_and_others_unharmed(name):
    pooled = torch.ones(5, 16)
    pooled[1, 3] = float("nan")
    pooled[2, 15] = float("inf")
    pooled[3] = 0
    formats, size = layout([(i, name, 16, True) for i in range(5)])
    packed = pack_rows(pooled, formats, size).numpy()
    assert packed[size:].tolist() == [0, 1, 1, 2, 0]
    width = size // 5
    assert packed[:width].tobytes() == packed[4 * width : size].tobytes()


def test_NU_20_a_zero_row_stays_zero_when_normalised():
    formats, size = layout([(0, "float32", 4, True)])
    packed = pack_rows(torch.zeros(1, 4), formats, size).numpy()
    assert packed.tolist() == [0] * 16 + [2]


def test_a_row_whose_kept_values_are_zero_is_marked():
    formats, size = layout([(0, "float32", 2, True)])
    assert pack_rows(torch.tensor([[0.0, 0.0, 1.0]]), formats, size)[-1] == 2


def test_values_that_float16_cannot_hold_are_marked():
    formats, size = layout([(0, "float16", 2, False), (0, "bfloat16", 2, False)])
    assert pack_rows(torch.tensor([[1e6, 1.0]]), formats, size)[-2:].tolist() == [1, 0]


def test_a_norm_past_float32_is_marked_and_not_silently_zero():
    formats, size = layout([(0, "float32", 2, True)])
    assert pack_rows(torch.tensor([[3e38, 3e38]]), formats, size)[-1] != 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, 0, 1, 5, 0), "4 dimensions; 5"),
        ((0, 4, 1, 4, 0), "outside the buffer"),
        ((0, -4, 1, 4, 0), "outside"),
    ],
)
def test_formats_that_do_not_fit_are_refused(row, message):
    with pytest.raises(ValueError, match=message):
        pack_rows(torch.ones(1, 4), np.array([row], dtype=np.int32), 16)
