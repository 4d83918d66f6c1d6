"""Packs pooled rows into one buffer of bytes, each row in its own format.

Knows no models. Called by `engine`; `inputs` takes the dtype codes from here.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowerbed.folder import Quantizer
from flowerbed.rose.kernels.backend import use_triton
from flowerbed.rose.kernels.norm import MIN_NORM

STATUS_OK = 0
STATUS_NOT_FINITE = 1
STATUS_ALL_ZERO = 2

MAX_NORM = 1e38
"""Below it a norm in float64 is finite in float32 too."""
FORMAT_COLUMNS = 5
"""Of a row's entry: segment, byte offset, `RowDtype`, dimensions, normalize."""

"""How a model that was trained for whole numbers makes them of its vectors."""


class RowDtype(IntEnum):
    """Number formats of a packed row; the codes are those of `Dtype` in the proto."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    UINT8 = 5
    BINARY = 6
    UBINARY = 7

    @property
    def value_bits(self) -> int:
        """Bits of one value."""
        return (32, 16, 16, 8, 8, 1, 1)[self - 1]

    def row_bytes(self, dimensions: int) -> int:
        """Bytes of one row of `dimensions` values."""
        return (dimensions * self.value_bits + 7) // 8


def pack_rows(
    pooled: Tensor,
    formats: NDArray[np.int32],
    num_result_bytes: int,
    quantizer: Quantizer | None = None,
) -> Tensor:
    """Cuts, normalises, converts and packs rows; appends one status a row.

    With x the first `dimensions` values of the row's segment, divided by their norm if asked:
    float32, float16, bfloat16 = x, little-endian, rounded half to even;
    int8 = round(127 clip(x, -1, 1)), half to even; uint8 = int8 + 128;
    ubinary = packbits(x > 0), eight values a byte, the first in the highest bit, the last byte
    filled up with zero bits; binary = ubinary - 128 as int8.
    The quantizer tanh makes them of q = round(127 tanh(x)), half to even, with x not divided:
    int8 = q; uint8 = q + 128; float32, float16, bfloat16 = q, divided by the norm of q if asked;
    ubinary = packbits(x >= 0), of x and not of q.
    Status: 1 if a value of the segment's row, or of x as written, is not finite, and then the row's
    bytes mean nothing; else 2 if x (q, where q is written) is all zero; else 0. A zero row stays
    zero when normalised. Norms and tanh are computed in float64, so that each device finds the same.

    Args:
        pooled: [num_segments, dimensions] float32.
        formats: [num_rows, 5], host memory: segment, byte offset, `RowDtype`, dimensions, normalize.
        num_result_bytes: Bytes of all rows.
        quantizer: Of the model.

    Returns:
        [num_result_bytes + num_rows] uint8, on the device of `pooled`.

    Raises:
        ValueError: A format does not fit the rows or the buffer.
    """
    num_rows = formats.shape[0]
    if not pooled.is_cuda and quantizer is None and _are_plain(formats, pooled.shape):
        packed = _pack_plain(pooled.numpy())
        if packed is not None:
            return packed
    packed = torch.zeros(num_result_bytes + num_rows, dtype=torch.uint8, device=pooled.device)
    is_finite = torch.isfinite(pooled).all(dim=1)
    for rows in _same_format(formats):
        _, _, code, dimensions, normalize = (int(value) for value in formats[rows[0]])
        dtype = RowDtype(code)
        offsets = formats[rows, 1].astype(np.int64)
        if not 0 < dimensions <= pooled.shape[1]:
            raise ValueError(f"a row has {pooled.shape[1]} dimensions; {dimensions} were asked for")
        if offsets.min() < 0 or offsets.max() + dtype.row_bytes(dimensions) > num_result_bytes:
            raise ValueError(f"a row's place is outside the buffer of {num_result_bytes} bytes")
        segments = torch.from_numpy(formats[rows, 0].astype(np.int64)).to(pooled.device)
        values = pooled.index_select(0, segments)[:, :dimensions]
        encoded, values, is_writable = _encode(values, True, bool(normalize), dtype, quantizer)
        status = _status(values, is_finite.index_select(0, segments) & is_writable)
        _write(packed, encoded, offsets)
        _write(packed, status.unsqueeze(1), num_result_bytes + rows)
    return packed


def _are_plain(formats: NDArray[np.int32], shape: torch.Size) -> bool:
    """Whether each segment gives one row, whole, normalised, as float32, one after the other."""
    return np.array_equal(formats, _plain_formats(*shape))


@lru_cache(maxsize=128)
def _plain_formats(num_rows: int, dimensions: int) -> NDArray[np.int32]:
    formats = np.empty((num_rows, FORMAT_COLUMNS), dtype=np.int32)
    formats[:, 0] = np.arange(num_rows)
    formats[:, 1] = formats[:, 0] * (4 * dimensions)
    formats[:, 2:] = RowDtype.FLOAT32, dimensions, True
    return formats


def _pack_plain(pooled: NDArray[np.float32]) -> Tensor | None:
    """What `pack_rows` gives for plain formats, in a few operations; None if a row is not good.

    A norm in float64 is finite where all values are, and not zero where one is not.
    """
    norms = np.sqrt(np.square(pooled, dtype=np.float64).sum(axis=1, keepdims=True))
    if norms.min(initial=1.0) <= MIN_NORM or not norms.max(initial=1.0) < MAX_NORM:
        return None
    num_bytes = pooled.nbytes
    packed = np.empty(num_bytes + len(pooled), dtype=np.uint8)
    rows = packed[:num_bytes].view(np.float32).reshape(pooled.shape)
    np.divide(pooled, norms.astype(np.float32), out=rows)
    packed[num_bytes:] = STATUS_OK
    return torch.from_numpy(packed)


def pack_rows_into(
    pooled: Tensor,
    formats: Tensor,
    status_offset: Tensor,
    out: Tensor,
    quantizer: Quantizer | None = None,
) -> None:
    """`pack_rows` by tables on the device, so that a CUDA graph may hold it. Checks nothing.

    Args:
        pooled: [num_segments, dimensions] float32.
        formats: [num_rows, 5] int32, as `pack_rows` takes them; rows of 0 dimensions are not written.
        status_offset: [1] int32; the status of row r goes to out[status_offset + r].
        out: [num_bytes] uint8.
        quantizer: Of the model.
    """
    if use_triton(pooled):
        from flowerbed.rose.kernels import triton_pack

        triton_pack.pack_rows_into(pooled, formats, status_offset, out, quantizer)
        return
    segments, offsets, codes, dimensions, normalize = formats.long().unsqueeze(2).unbind(1)
    rows = pooled.index_select(0, segments[:, 0])
    kept = torch.arange(pooled.shape[1], device=pooled.device) < dimensions
    cut = rows.where(kept, 0.0)
    is_finite = torch.isfinite(rows).all(dim=1)
    nowhere = out.numel()
    written = torch.nn.functional.pad(out, (0, 1))  # its last byte takes what is not to be written
    statuses = torch.zeros_like(is_finite, dtype=torch.uint8)
    for dtype in RowDtype:
        encoded, values, is_writable = _encode(cut, kept, normalize != 0, dtype, quantizer)
        places = torch.arange(encoded.shape[1], device=out.device)
        widths = (dimensions * dtype.value_bits + 7) // 8
        is_place = (codes == dtype) & (places < widths)
        written[torch.where(is_place, offsets + places, nowhere)] = encoded
        statuses = torch.where(
            codes[:, 0] == dtype, _status(values, is_finite & is_writable), statuses
        )
    places = status_offset + torch.arange(len(formats), device=out.device)
    written[torch.where(dimensions[:, 0] > 0, places, nowhere)] = statuses
    out.copy_(written[:-1])


def _same_format(formats: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """Row numbers of each different format. Most batches have one."""
    kinds = formats[:, 2:]
    if len(formats) == 0:
        return []
    if (kinds == kinds[0]).all():
        return [np.arange(len(formats))]
    _, inverse = np.unique(kinds, axis=0, return_inverse=True)
    return [np.flatnonzero(inverse == kind) for kind in range(inverse.max() + 1)]


def _encode(
    cut: Tensor,
    kept: Tensor | Literal[True],
    normalize: Tensor | bool,
    dtype: RowDtype,
    quantizer: Quantizer | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes rows in one format.

    Args:
        cut: [num_rows, dimensions] float32, zero where not `kept`.
        kept: [num_rows, dimensions] bool.
        normalize: [num_rows, 1] bool.
        dtype: The format.
        quantizer: Of the model.

    Returns:
        Bytes of each row, [num_rows, width] uint8; x as written, [num_rows, dimensions] float32; and
        whether the format can hold it, [num_rows] bool.
    """
    values = cut
    if quantizer == "tanh" and dtype < RowDtype.BINARY:
        levels = torch.tanh(cut.double()).mul(127.0).round()
        values = levels.add(0.0).float()  # without zeros that have a sign
    if quantizer is None or dtype < RowDtype.INT8:
        values = _normalize(values, normalize)
    is_finite = torch.isfinite(values).all(dim=1)
    match dtype:
        case RowDtype.FLOAT32:
            return values.contiguous().view(torch.uint8), values, is_finite
        case RowDtype.FLOAT16 | RowDtype.BFLOAT16:
            half = values.to(torch.float16 if dtype is RowDtype.FLOAT16 else torch.bfloat16)
            return half.contiguous().view(torch.uint8), values, torch.isfinite(half).all(dim=1)
        case RowDtype.INT8 | RowDtype.UINT8:
            levels = values.nan_to_num()
            if quantizer is None:
                levels = levels.clamp(-1.0, 1.0).mul(127.0).round()
            # +128 modulo 256 flips the highest bit.
            flip = 0x80 if dtype is RowDtype.UINT8 else 0
            return levels.to(torch.int8).view(torch.uint8) ^ flip, values, is_finite
        case RowDtype.BINARY | RowDtype.UBINARY:
            bits = values > 0 if quantizer is None else (values >= 0) & kept
            flip = 0x80 if dtype is RowDtype.BINARY else 0
            return _pack_bits(bits) ^ flip, values, is_finite


def _normalize(rows: Tensor, is_asked: Tensor | bool) -> Tensor:
    """Divides rows by their norm where asked, [num_rows, 1] bool."""
    if is_asked is False:
        return rows
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    norms = norms.float().clamp_min(MIN_NORM)
    return rows / (norms if is_asked is True else norms.where(is_asked, 1.0))


def _status(values: Tensor, is_good: Tensor) -> Tensor:
    """Status of rows that are written as `values`, [num_rows] uint8."""
    is_zero = (values == 0).all(dim=1)
    return torch.where(is_good, is_zero * STATUS_ALL_ZERO, STATUS_NOT_FINITE).to(torch.uint8)


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
