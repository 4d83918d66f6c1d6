"""Packs pooled rows into one buffer of bytes, each row in its own format.

Knows no models. Called by `engine`; `inputs` takes the dtype codes from here.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowerbed.rose.kernels.norm import normalize_rows

STATUS_OK = 0
STATUS_NOT_FINITE = 1
STATUS_ALL_ZERO = 2


class RowDtype(IntEnum):
    """Number formats of a packed row; the codes are those of `Dtype` in the proto."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    BINARY = 6
    UBINARY = 7

    def row_bytes(self, dimensions: int) -> int:
        """Bytes of one row of `dimensions` values."""
        if self in (RowDtype.BINARY, RowDtype.UBINARY):
            return (dimensions + 7) // 8
        return dimensions * {RowDtype.FLOAT32: 4, RowDtype.FLOAT16: 2, RowDtype.BFLOAT16: 2}.get(
            self, 1
        )


def pack_rows(pooled: Tensor, formats: NDArray[np.int32], num_result_bytes: int) -> Tensor:
    """Cuts, normalises, converts and packs rows; appends one status a row.

    With x the first `dimensions` values of the row's segment, divided by their norm if asked:
    float32, float16, bfloat16 = x, little-endian, rounded half to even;
    int8 = round(127 clip(x, -1, 1)), half to even; uint8 = int8 + 128;
    ubinary = packbits(x > 0), eight values a byte, the first in the highest bit, the last byte
    filled up with zero bits; binary = ubinary - 128 as int8.
    Status: 1 if a value of the segment's row, or of x as written, is not finite; else 2 if x is all
    zero; else 0. A zero x stays zero when normalised.

    Args:
        pooled: [num_segments, dimensions] float32.
        formats: [num_rows, 5], host memory: segment, byte offset, `RowDtype`, dimensions, normalize.
        num_result_bytes: Bytes of all rows.

    Returns:
        [num_result_bytes + num_rows] uint8, on the device of `pooled`.

    Raises:
        ValueError: A format does not fit the rows or the buffer.
    """
    num_rows = formats.shape[0]
    packed = torch.zeros(num_result_bytes + num_rows, dtype=torch.uint8, device=pooled.device)
    is_finite = torch.isfinite(pooled).all(dim=1)
    for rows in _same_format(formats):
        _, _, code, dimensions, normalize = (int(value) for value in formats[rows[0]])
        width = RowDtype(code).row_bytes(dimensions)
        offsets = formats[rows, 1].astype(np.int64)
        if not 0 < dimensions <= pooled.shape[1]:
            raise ValueError(f"a row has {pooled.shape[1]} dimensions; {dimensions} were asked for")
        if offsets.min() < 0 or offsets.max() + width > num_result_bytes:
            raise ValueError(f"a row's place is outside the buffer of {num_result_bytes} bytes")
        segments = torch.from_numpy(formats[rows, 0].astype(np.int64)).to(pooled.device)
        values = pooled.index_select(0, segments)[:, :dimensions]
        values = normalize_rows(values) if normalize else values
        encoded, is_writable = _encode(values, RowDtype(code))
        status = torch.where(
            is_finite.index_select(0, segments) & is_writable,
            (values == 0).all(dim=1) * STATUS_ALL_ZERO,
            STATUS_NOT_FINITE,
        ).to(torch.uint8)
        _write(packed, encoded, offsets)
        _write(packed, status.unsqueeze(1), num_result_bytes + rows)
    return packed


def _same_format(formats: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """Row numbers of each different format. Most batches have one."""
    kinds = formats[:, 2:]
    if len(formats) == 0:
        return []
    if (kinds == kinds[0]).all():
        return [np.arange(len(formats))]
    _, inverse = np.unique(kinds, axis=0, return_inverse=True)
    return [np.flatnonzero(inverse == kind) for kind in range(inverse.max() + 1)]


def _encode(values: Tensor, dtype: RowDtype) -> tuple[Tensor, Tensor]:
    """Bytes of each row, [num_rows, width] uint8, and whether the format can hold it, [num_rows]."""
    is_finite = torch.isfinite(values).all(dim=1)
    match dtype:
        case RowDtype.FLOAT32:
            return values.contiguous().view(torch.uint8), is_finite
        case RowDtype.FLOAT16 | RowDtype.BFLOAT16:
            half = values.to(torch.float16 if dtype is RowDtype.FLOAT16 else torch.bfloat16)
            return half.contiguous().view(torch.uint8), torch.isfinite(half).all(dim=1)
        case RowDtype.INT8 | RowDtype.UINT8:
            scaled = values.nan_to_num().clamp(-1.0, 1.0).mul(127.0).round().to(torch.int8)
            # +128 modulo 256 flips the highest bit.
            flip = 0x80 if dtype is RowDtype.UINT8 else 0
            return scaled.view(torch.uint8) ^ flip, is_finite
        case RowDtype.BINARY | RowDtype.UBINARY:
            flip = 0x80 if dtype is RowDtype.BINARY else 0
            return _pack_bits(values > 0) ^ flip, is_finite


def _pack_bits(bits: Tensor) -> Tensor:
    """numpy.packbits over the last axis: [num_rows, dimensions] bool to [num_rows, bytes] uint8."""
    bits = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[1] % 8))
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=bits.device)
    return (bits.view(bits.shape[0], -1, 8) * places).sum(dim=-1, dtype=torch.uint8)


def _write(packed: Tensor, rows: Tensor, offsets: NDArray[np.int64]) -> None:
    """Copies rows, [num_rows, width] uint8, to their byte offsets."""
    num_rows, width = rows.shape
    first = int(offsets[0])
    if (offsets == first + np.arange(num_rows) * width).all():
        packed[first : first + num_rows * width].view(num_rows, width).copy_(rows)
        return
    places = torch.from_numpy(offsets).to(packed.device).unsqueeze(1)
    places = places + torch.arange(width, device=packed.device)
    packed.index_put_((places,), rows)
