"""Kernels that start while the one before them ends: programmatic dependent launch, from Hopper on.

A kernel may read weights before `wait_for_inputs`, nothing else. All programs call it, so that a
kernel that has ended tells that all before it have.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

COMPILE_CASES: dict[str, list[object]] = {}


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):
    """Waits for the kernel before, whose results are then there, and lets the next one start."""
    if EARLY:
        gdc_wait()
        # Not sooner: programs of two kernels ahead would take the room of this one's.
        gdc_launch_dependents()


@triton.jit
def fetch_rows(rows, NUM_ROWS: tl.constexpr, WIDTH: tl.constexpr, THREADS: tl.constexpr):
    """Asks for rows of WIDTH 16-bit values in the L2 cache; rows: [NUM_ROWS] pointers, aligned to 16 bytes."""
    share: tl.constexpr = THREADS // NUM_ROWS  # threads that share a row
    starts = rows[:, None] + (tl.arange(0, share) * (WIDTH // share))[None, :]
    sizes = tl.full((NUM_ROWS, share), WIDTH // share * 2, tl.int32)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [starts.to(tl.int64), sizes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
