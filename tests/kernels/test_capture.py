"""Places, pooling and packing inside one CUDA graph, whose tables change between replays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowerbed.rose.kernels.pack import RowDtype, pack_rows_into
from flowerbed.rose.kernels.pooling import pool_segments
from flowerbed.rose.kernels.positions import token_places

NUM_TOKENS, NUM_SLOTS, WIDTH = 256, 8, 96


def tables(lengths, dtypes):
    """cu_seqlens, segments, formats and the status offset, for NUM_SLOTS sequences and rows."""
    cu_seqlens = np.cumsum([0, *lengths, *[0] * (NUM_SLOTS - len(lengths))])
    segments = np.stack([cu_seqlens[:-1], cu_seqlens[1:]], axis=1)
    formats, size = np.zeros((NUM_SLOTS, 5)), 0
    for row, dtype in enumerate(dtypes):
        formats[row] = row, size, dtype, WIDTH, 1
        size += dtype.row_bytes(WIDTH)
    parts = (cu_seqlens, segments, formats, np.array([size]))
    return [torch.from_numpy(part.astype(np.int32)) for part in parts]


def step(hidden, places, out):
    cu_seqlens, segments, formats, status_offset = places
    positions, _ = token_places(cu_seqlens, None, NUM_TOKENS)
    rows = pool_segments(hidden, segments, cu_seqlens, ("mean",))
    pack_rows_into(rows, formats, status_offset, out)
    return positions


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_replay_reads_the_tables_of_its_time(dtype):
    hidden = torch.randn(NUM_TOKENS, WIDTH).to(dtype)
    values = hidden.cuda()
    places = [part.cuda() for part in tables([3, 200, 1], [RowDtype.INT8, RowDtype.FLOAT32])]
    out = torch.zeros(NUM_SLOTS * (WIDTH * 4 + 1), dtype=torch.uint8, device="cuda")
    step(values, places, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        positions = step(values, places, out)
    for lengths in ([100, 30, 90, 36], [1, 1], [256]):
        fresh = tables(lengths, [RowDtype.BINARY, RowDtype.FLOAT32][: len(lengths)])
        for old, new in zip(places, fresh, strict=True):
            old.copy_(new)
        out.zero_()
        graph.replay()
        expected = torch.zeros(out.numel(), dtype=torch.uint8)
        assert torch.equal(positions.cpu(), step(hidden, fresh, expected))
        bits = WIDTH // 8
        assert torch.equal(out.cpu()[:bits], expected[:bits])
        if len(lengths) > 1:
            end = bits + 4 * WIDTH
            found, wanted = (
                part[bits:end].clone().view(torch.float32) for part in (out.cpu(), expected)
            )
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
            assert not out[end:].any()
