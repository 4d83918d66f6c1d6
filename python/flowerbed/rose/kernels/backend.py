"""Which implementation runs, and how Triton programs share out rows of a matrix.

Knows no operations. Called by the other files of `kernels` and by `rose.device`.
"""

from __future__ import annotations

import logging
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from torch import Tensor

log = logging.getLogger(__name__)

MANY_ROWS = 2048
"""From here on a program takes several rows, so that starting programs is no limit. Below, there are
too few rows for that, and the work of one program is what a step waits for. So a kernel is compiled
for fewer rows, and for so many. Either way threads share out a row
alike, so that it has the same bits."""
KNOWN_TRITON = "3.6."
VECTOR_BYTES = 16
WARP_BYTES = 32 * VECTOR_BYTES
"""What a warp loads at once."""
MAX_WARPS = 8
TILE_BYTES = 4096
"""What a program takes of each tensor where rows are many."""
MIN_CHUNK, MAX_CHUNK = 128, 256
"""Columns of a third of a row that is cut (`chunk_tile`): a warp holds them all in its registers."""
MAX_COLUMNS, MIN_COLUMNS = 1024, 128
"""Columns of a program that does not need whole rows."""


class Tile(NamedTuple):
    """The part of a matrix that one program takes; rows and columns are powers of two."""

    rows: int
    columns: int
    num_warps: int


@cache
def why_no_triton() -> str | None:
    """Why Triton cannot run kernels on this machine's GPUs; None: it can."""
    try:
        import triton

        triton.runtime.driver.active.get_current_target()
    except ImportError:
        return "triton is not installed"
    # Its start compiles a small C library, unless an earlier one left it in the cache.
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"triton does not start ({first_line(error)})"
    return None


@cache
def has_known_sums() -> bool:
    """Whether this Triton adds up rows in the order, and has the lower level, that kernels of equal bits were written for.

    From 3.9 on a thread adds up its values in pairs, and Gluon has other names.
    """
    try:
        found = version("triton")
    except PackageNotFoundError:
        return False
    is_known = found.startswith(KNOWN_TRITON)
    if not is_known:
        log.warning("triton %s is not known: steps of few tokens may be slower", found)
    return is_known


def use_triton(x: Tensor) -> bool:
    """Whether x lies where Triton kernels run. Elsewhere torch operations give the same values."""
    return x.is_cuda and why_no_triton() is None


LOAD_ERRORS = (ImportError, AttributeError, TypeError, ValueError, OSError, RuntimeError)
"""What a library raises that is imported and whose inner interfaces are not those expected."""


def first_line(error: Exception) -> str:
    """What an error says, without what follows in its other lines."""
    return str(error).partition("\n")[0][:200]


def row_tile(x: Tensor, width: int, *, is_fixed: bool = False) -> Tile:
    """Whole rows of `width` columns, one 16-byte vector a thread and row where they are short.

    Args:
        x: [num_rows, any]; its rows and its dtype choose the tile.
        width: Columns that belong together.
        is_fixed: The tile of many rows whatever x has: one kernel for all.
    """
    return _row_tile(width, x.element_size(), is_fixed or has_many_rows(x))


def chunk_tile(x: Tensor, width: int, num_warps: int) -> Tile | None:
    """Rows that are cut into chunks of `columns`, thirds of a row or what a warp loads at once of it.

    A whole row lies in each warp, narrow ones two: sums have one order whatever num_warps is. None: as one
    tile rows leave fewer lanes idle.
    """
    third = width // 3
    if 3 * third != width or third not in (MIN_CHUNK, MAX_CHUNK):
        return None
    at_once = WARP_BYTES // x.element_size()
    chunk = min(third, at_once)  # two warps would share out a wider one, where there are two
    return Tile(num_warps * (at_once // chunk), chunk, num_warps)


def block_tile(x: Tensor, width: int) -> Tile:
    """Parts of rows, for what knows no rows; without lanes to spare if width allows it."""
    return _row_tile(_block_columns(width), x.element_size(), has_many_rows(x))


def has_many_rows(x: Tensor) -> bool:
    """Whether programs should take more of x, [num_rows, any], each."""
    return x.shape[0] >= MANY_ROWS


@cache
def _row_tile(width: int, itemsize: int, many: bool) -> Tile:
    columns = power_of_two(width)
    row_bytes = columns * itemsize
    # A row that is less than a warp loads at once would be cut finer, if it were alone.
    rows = max(1, (TILE_BYTES if many else WARP_BYTES) // row_bytes)
    return Tile(rows, columns, min(max(1, row_bytes // WARP_BYTES), MAX_WARPS))


@cache
def _block_columns(width: int) -> int:
    divisor = width & -width  # the largest power of two in it
    whole = divisor if divisor >= MIN_COLUMNS else power_of_two(width)
    return min(whole, MAX_COLUMNS)


def power_of_two(n: int) -> int:
    """The least one that is not below n ≥ 1."""
    return 1 << (n - 1).bit_length()


def check_contiguous(name: str, x: Tensor) -> None:
    """ValueError if x, which kernels address as [rows, columns], has gaps."""
    if not x.is_contiguous():
        raise ValueError(f"{name} should be contiguous; its strides are {x.stride()}")
