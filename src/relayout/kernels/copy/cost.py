"""What a schedule of a transpose costs, from facts of the processor: an estimate, in cycles for a line.

The shuffles are the same whatever the schedule, so they are left out. What differs is how often a line of the
source is fetched, how many pages are in use at a time, and where pieces of the destination end::

    rows of the source        a block of them, a strip of 16 bytes at a time
    r0  |16|16|16|16| ...     direct: a line of each row has to stay in the L1 cache for four strips, and
    r1  |16|16|16|16| ...             the page of each row among those in the TLB
    ..                        staged: a line is copied when it is there, once; the copy takes a while
    r63 |16|16|16|16| ...

The numbers are a core's own. They were measured on one processor (Xeon with AVX-512) and are much the same on
others; where they matter for a problem, its schedule is measured (:mod:`relayout.reorder.tuning`).
"""

from __future__ import annotations

from math import gcd, inf

from relayout.kernels.copy.plan import LANE_BITS, LINE_BITS, Run
from relayout.kernels.copy.problem import Move
from relayout.targets.machine import LINE, caches

__all__ = ["fitting", "transposing"]

L1_SETS = 64  # sets of the L1 cache: each way is one page, so that sets are indexed by untranslated bits
PAGE_BYTES = 4096  # bytes
TLB_ENTRIES = 64  # pages that the first-level TLB holds translations for
TLB_MISS_CYCLES = 2.0  # cycles lost to a miss of the first-level TLB, most of it being hidden
L2_LINE_CYCLES = 2.2  # cycles to fetch a line from L2 that L1 has dropped
STAGED_LINE_CYCLES = 5.0  # cycles to copy a line into the stage, which is a loop of its own
STRIP_CYCLES = 10  # cycles of overhead each time a strip's loop over rows begins
SPLIT_LINE_CYCLES = 6  # cycles to fetch a line of the destination again that two pieces share


def fitting(rows: Run) -> int:
    """How many rows may have a line in the L1 cache at a time, with three of four of its ways."""
    apart, odd = divmod(abs(rows.loops[0].src), LINE_BITS)
    sets = L1_SETS if odd or not rows.is_straight else L1_SETS // gcd(apart, L1_SETS)
    return max(1, sets * (caches()[0] // PAGE_BYTES) * 3 // 4)


def transposing(nest: Move, columns: Run, rows: Run, block: int, stage: bool) -> float:
    """Cycles for a line of the source besides shuffles; endless where a block is longer than all rows.

    ``block`` rows are worked on together, by way of a stage or not.
    """
    strips = LINE_BITS // LANE_BITS  # of a line
    pitch, back = (abs(run.loops[0].src if run is rows else run.loops[0].dst) // 8 for run in (rows, columns))
    pages = block if pitch >= PAGE_BYTES else -(-block * pitch // PAGE_BYTES)
    visits = 1 if stage else strips
    cost = STAGED_LINE_CYCLES if stage else (strips - 1) * L2_LINE_CYCLES * (block > fitting(rows))
    if pages > TLB_ENTRIES:
        cost += visits * TLB_MISS_CYCLES * min(1.0, pitch / PAGE_BYTES)
    cost += visits * STRIP_CYCLES / block
    lines = block * nest.write / LINE_BITS  # of a piece
    if back % LINE:
        cost += SPLIT_LINE_CYCLES / lines
    if back >= PAGE_BYTES:
        cost += TLB_MISS_CYCLES / lines
    return cost if block <= rows.extent else inf
