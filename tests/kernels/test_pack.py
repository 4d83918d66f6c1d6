"""Packing by tables on the device: the Triton kernel and the torch references against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowerbed.rose.kernels.pack import RowDtype, pack_rows, pack_rows_into
from references import packed_row

NAMES = [dtype.name.lower() for dtype in RowDtype]
FILL = 0xA5


def layout(rows, first=0):
    """[num_rows, 5] of (segment, dtype name, dimensions, normalize), end to end, and the bytes."""
    table, offset = [], first
    for segment, name, dimensions, normalize in rows:
        dtype = RowDtype[name.upper()]
        table.append((segment, offset, dtype, dimensions, normalize))
        offset += dtype.row_bytes(dimensions)
    return np.array(table, dtype=np.int32).reshape(-1, 5), offset


def pack(pooled, formats, size, quantizer=None, device=None):
    """Rows and statuses by the Triton kernel on `device`, or by the torch reference on the CPU."""
    function = pack_rows_into
    if device is not None:
        from flowerbed.rose.kernels import triton_pack

        function = triton_pack.pack_rows_into
    place = device or "cpu"
    out = torch.full((size + len(formats),), FILL, dtype=torch.uint8, device=place)
    function(
        torch.as_tensor(pooled, device=place),
        torch.from_numpy(formats).to(place),
        torch.tensor([size], dtype=torch.int32, device=place),
        out,
        quantizer,
    )
    return out.cpu().numpy()


def random_rows(num_rows, num_columns, scale=1.0):
    return (np.random.default_rng(num_columns).normal(size=(num_rows, num_columns)) * scale).astype(
        np.float32
    )


@pytest.mark.parametrize("dimensions", [1, 7, 8, 30, 37])
@pytest.mark.parametrize("name", NAMES)
def test_each_format_equals_its_formula(name, dimensions, device):
    pooled = random_rows(5, 37)
    formats, size = layout([(i, name, dimensions, False) for i in range(5)])
    expected = b"".join(packed_row(row, name, dimensions, normalize=False) for row in pooled)
    for place in (None, device):
        packed = pack(pooled, formats, size, device=place)
        assert packed[:size].tobytes() == expected
        assert not packed[size:].any()


@pytest.mark.parametrize("quantizer", [None, "tanh"])
@pytest.mark.parametrize("num_columns", [1, 24, 257, 1024, 4096])
def test_all_formats_mix_in_one_launch_bit_for_bit(num_columns, quantizer, device):
    pooled = random_rows(4, num_columns, scale=0.3)
    cuts = sorted({num_columns // 2 + 1, num_columns})
    rows = [
        (i % 4, name, cut, normalize)
        for normalize, names in ((False, ["int8", *NAMES]), (True, ["binary", *reversed(NAMES)]))
        for i, name in enumerate(names)
        for cut in cuts
    ]
    formats, size = layout(rows)
    assert num_columns == 1 or len({offset % 4 for offset in formats[:, 1]}) == 4
    expected = pack_rows(torch.from_numpy(pooled), formats, size, quantizer).numpy()
    assert np.array_equal(pack(pooled, formats, size, quantizer), expected)
    found = pack(pooled, formats, size, quantizer, device)
    assert np.array_equal(found[size:], expected[size:])
    for _, offset, code, dimensions, normalize in formats:
        dtype = RowDtype(code)
        place = slice(offset, offset + dtype.row_bytes(dimensions))
        assert np.array_equal(found[place], expected[place]), (dtype, dimensions, normalize)


@pytest.mark.parametrize("scale", [1e-6, 0.01, 1.0, 30.0])
def test_tanh_levels_equal_numpy_and_stand_in_every_format(scale, device):
    pooled = random_rows(3, 1000, scale)
    pooled[0, :4] = [0.0, -0.0, -1e-9, 1e-9]
    rows = [(i, name, 1000, False) for i in range(3) for name in NAMES]
    formats, size = layout(rows)
    for place in (None, device):
        packed = pack(pooled, formats, size, "tanh", device=place)
        for segment, offset, code, dimensions, _ in formats:
            dtype, x = RowDtype(code), pooled[segment]
            found = packed[offset : offset + dtype.row_bytes(dimensions)]
            if dtype in (RowDtype.BINARY, RowDtype.UBINARY):
                bits = found ^ (0x80 if dtype is RowDtype.BINARY else 0)
                assert np.array_equal(bits, np.packbits(x >= 0))
                continue
            levels = as_floats(found, dtype) - (128 if dtype is RowDtype.UINT8 else 0)
            assert np.array_equal(levels, np.rint(127 * np.tanh(x.astype(np.float64))))


def as_floats(row, dtype):
    if dtype is RowDtype.BFLOAT16:
        return torch.from_numpy(row.copy()).view(torch.bfloat16).double().numpy()
    return row.view(dtype.name.lower()).astype(np.float64)


def test_tanh_rows_are_divided_by_the_norm_of_their_levels(device):
    pooled = random_rows(1, 50)
    formats, size = layout([(0, "float32", 33, True), (0, "int8", 33, True)])
    for place in (None, device):
        packed = pack(pooled, formats, size, "tanh", device=place)
        levels = packed[132:size].view(np.int8).astype(np.float32)
        assert np.abs(levels).max() > 50
        expected = levels / np.linalg.norm(levels)
        np.testing.assert_allclose(packed[:132].view(np.float32), expected, rtol=1e-6)


def test_int8_rounds_half_to_even_and_clips(device):
    values = np.array([[0.5 / 127, 1.5 / 127, -2.5 / 127, 3.0, -3.0]], dtype=np.float32)
    formats, size = layout([(0, "int8", 5, False), (0, "uint8", 5, False)])
    packed = pack(values, formats, size, device=device)
    assert packed[:5].view(np.int8).tolist() == [0, 2, -2, 127, -127]
    assert packed[5:10].tolist() == [128, 130, 126, 255, 1]


def test_halves_round_to_even_and_keep_small_numbers(device):
    """Ties, numbers below the smallest normal one, and the greatest."""
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8)]
    values = np.array([[*ties, 1e-7, 6e-5, 1e-40, -3e-39, 65504.0, 65519.0]], dtype=np.float32)
    formats, size = layout([(0, name, 11, False) for name in ("bfloat16", "float16", "float32")])
    expected = pack_rows(torch.from_numpy(values), formats, size).numpy()
    assert np.array_equal(pack(values, formats, size, device=device), expected)


@pytest.mark.parametrize("quantizer", [None, "tanh"])
@pytest.mark.parametrize("name", NAMES)
def test_NU_03_rows_that_are_not_finite_or_all_zero_are_marked_and_others_unharmed(
    name, quantizer, device
):
    pooled = np.ones((5, 16), dtype=np.float32)
    pooled[1, 3] = np.nan
    pooled[2, 15] = -np.inf  # not among the kept dimensions
    pooled[3] = 0
    formats, size = layout([(i, name, 12, True) for i in range(5)])
    for place in (None, device):
        packed = pack(pooled, formats, size, quantizer, device=place)
        assert packed[size:].tolist() == [0, 1, 1, 2, 0]
        width = size // 5
        assert packed[:width].tobytes() == packed[4 * width : size].tobytes()


def test_what_a_format_cannot_hold_is_marked(device):
    pooled = np.array([[1e6, 1.0], [3.39e38, 1.0], [3e38, 3e38]], dtype=np.float32)
    rows = [
        (0, "float16", 2, False),
        (0, "bfloat16", 2, False),
        (1, "bfloat16", 2, False),
        (1, "float32", 2, False),
        (2, "float32", 2, True),
    ]
    formats, size = layout(rows)
    for place in (None, device):
        statuses = pack(pooled, formats, size, device=place)[size:].tolist()
        assert statuses[:4] == [1, 0, 0, 0]
        assert statuses[4] != 0  # a norm past float32 makes the row zero


def test_unused_rows_write_nothing(device):
    pooled = random_rows(2, 10)
    formats, size = layout([(0, "float32", 10, False), (1, "int8", 10, False)], first=3)
    unused = np.zeros((1, 5), dtype=np.int32)
    formats = np.concatenate([formats[:1], unused, formats[1:], unused])
    for place in (None, device):
        packed = pack(pooled, formats, size, device=place)
        assert packed[:3].tolist() == [FILL] * 3
        assert packed[size:].tolist() == [0, FILL, 0, FILL]
        assert packed[3:43].view(np.float32).tolist() == pooled[0].tolist()


def test_rows_of_a_wider_matrix_are_packed(device):
    wide = random_rows(3, 40)
    pooled = torch.from_numpy(wide).to(device)[:, 3:23]
    formats, size = layout([(i, "float16", 20, True) for i in range(3)])
    expected = pack(wide[:, 3:23].copy(), formats, size)
    assert np.array_equal(pack(pooled, formats, size, device=device), expected)
