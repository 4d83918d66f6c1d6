"""The packing kernel against numpy and the torch reference, bit for bit, on numbers where rounding shows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from flowerbed.rose.kernels import triton_pack
from flowerbed.rose.kernels.pack import FORMAT_COLUMNS, RowDtype, pack_rows

NUM_COLUMNS = 256
DIMENSIONS = (NUM_COLUMNS, 100, 37)
BATCHES = {"cpu": (1, 120), "cuda": (10, 10_240)}
"""Batches and rows of each; the interpreter takes its time."""


def hard_numbers(rng: np.random.Generator) -> NDArray[np.float32]:
    """Ties of every format and their neighbours, zeros, denormals, the largest, and all sizes between."""
    halves = (np.arange(-127, 127) + 0.5) / 127
    with np.errstate(divide="ignore"):
        tanh_ties = np.arctanh(halves)
    steps = 2.0 ** np.arange(-30, 16)
    float16_ties, bfloat16_ties = steps * (1 + 2.0**-11), steps * (1 + 2.0**-8)
    sizes = 10.0 ** rng.uniform(-44, 38, 2_000) * rng.choice([-1, 1], 2_000)
    edges = [0.0, -0.0, 1e-45, -1e-45, 1e-38, 6e-8, 65504.0, 65519.9, 3.3e38, 1.0, -1.0]
    parts = (halves, tanh_ties, float16_ties, -float16_ties, bfloat16_ties, sizes, edges)
    exact = np.concatenate(parts).astype(np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return np.concatenate([exact, np.nextafter(exact, up), np.nextafter(exact, down)])


def hard_rows(rng: np.random.Generator, num_rows: int) -> NDArray[np.float32]:
    """[num_rows, NUM_COLUMNS]: of hard numbers, of plain ones, and of plain ones with hard ones between."""
    rows = rng.normal(size=(num_rows, NUM_COLUMNS)).astype(np.float32) * np.float32(0.4)
    share = np.array([0.0, 0.02, 1.0])[rng.integers(3, size=num_rows)]
    is_hard = rng.random(rows.shape) < share[:, None]
    rows[is_hard] = rng.choice(hard_numbers(rng), int(is_hard.sum()))
    rows[rng.integers(num_rows, size=num_rows // 50)] = 0.0
    return rows


def any_formats(rng: np.random.Generator, num_rows: int) -> tuple[NDArray[np.int32], int]:
    """One a row, in any order of segments."""
    table = np.empty((num_rows, FORMAT_COLUMNS), dtype=np.int32)
    table[:, 0] = rng.permutation(num_rows)
    table[:, 2] = rng.integers(min(RowDtype), max(RowDtype) + 1, num_rows)
    table[:, 3] = rng.choice(DIMENSIONS, num_rows)
    table[:, 4] = rng.integers(2, size=num_rows)
    widths = [RowDtype(code).row_bytes(int(wide)) for code, wide in table[:, 2:4]]
    ends = np.cumsum(widths)
    table[:, 1] = ends - widths
    return table, int(ends[-1])


def by_formula(row: NDArray[np.float32], code: RowDtype, quantizer: str | None) -> bytes:
    """A whole number format of a row that is not normalised."""
    if code in (RowDtype.BINARY, RowDtype.UBINARY):
        bits = np.packbits(row > 0 if quantizer is None else row >= 0)
        return (bits ^ (0x80 if code is RowDtype.BINARY else 0)).tobytes()
    if quantizer is None:
        levels = np.rint(np.clip(row, -1, 1) * np.float32(127))
    else:
        levels = np.rint(127 * np.tanh(row.astype(np.float64)))
    return (levels + (128 if code is RowDtype.UINT8 else 0)).astype(int).astype(np.uint8).tobytes()


def test_many_rows_in_every_format_equal_the_reference_and_the_formulas(
    device: torch.device,
) -> None:
    num_batches, num_rows = BATCHES[device.type]
    seen = 0
    for number in range(num_batches):
        rng = np.random.default_rng(number)
        quantizer = "tanh" if number % 2 or device.type == "cpu" else None
        rows, (formats, size) = hard_rows(rng, num_rows), any_formats(rng, num_rows)
        expected = pack_rows(torch.from_numpy(rows), formats, size, quantizer).numpy()
        out = torch.zeros(size + num_rows, dtype=torch.uint8, device=device)
        triton_pack.pack_rows_into(
            torch.from_numpy(rows).to(device),
            torch.from_numpy(formats).to(device),
            torch.tensor([size], dtype=torch.int32, device=device),
            out,
            quantizer,
        )
        found = out.cpu().numpy()
        np.testing.assert_array_equal(found[size:], expected[size:])
        for (segment, offset, code, dimensions, normalize), status in zip(
            formats, expected[size:], strict=True
        ):
            if status == 1:  # not finite: its bytes mean nothing
                continue
            dtype = RowDtype(code)
            place = slice(offset, offset + dtype.row_bytes(dimensions))
            what = (dtype.name, dimensions, bool(normalize), quantizer)
            assert found[place].tobytes() == expected[place].tobytes(), what
            if dtype >= RowDtype.INT8 and (quantizer or not normalize):
                formula = by_formula(rows[segment, :dimensions], dtype, quantizer)
                assert found[place].tobytes() == formula, what
            seen += 1
    assert seen > 0.8 * num_batches * num_rows
    print(f"{seen} rows equal to the bit")
