"""What a schedule of a transpose costs, from facts of the processor: an estimate, in cycles for a line.

The shuffles are the same whatever the schedule, so they are left out. What differs is how often a line of the
source is fetched, how many pages are in use at a time, and where pieces of the destination end::

    rows of the source        a block of them, a strip of 16 bytes at a time
    r0  |16|16|16|16| ...     direct: a line of each row has to stay in the first cache for four strips, and
    r1  |16|16|16|16| ...             the page of each row among those whose addresses the core has at hand
    ..                        staged: a line is copied when it is there, once; the copy takes a while
    r63 |16|16|16|16| ...

The numbers are a core's own. They were measured on one processor (Xeon with AVX-512) and are much the same on
others; where they matter for a problem, its schedule is measured (:mod:`relayout.reorder.tuning`).
"""

from __future__ import annotations

from math import gcd, inf

from relayout.kernels.copy.plan import LANE, LINE_BITS, Run
from relayout.kernels.copy.problem import Move
from relayout.targets.machine import LINE, caches

__all__ = ["fitting", "transposing"]

SETS = 64  # of a first cache whose ways are pages, which is what lets it look up addresses early
PAGE = 4096  # bytes
PAGES = 64  # whose addresses the core has at hand: entries of the first lookaside buffer
LOOKUP = 2.0  # cycles that finding the address of another page holds the others up
REFETCH = 2.2  # cycles to fetch a line from the second cache once more
STAGING = 5.0  # cycles to copy a line into the stage, a loop of its own
TURN = 10  # cycles to begin the rows of a strip
END = 6  # cycles to fetch the line again in which a piece ends and another begins


def fitting(rows: Run) -> int:
    """How many rows may have a line in the first cache at a time, with three of four of its ways."""
    apart, odd = divmod(abs(rows.loops[0].src), LINE_BITS)
    sets = SETS if odd or not rows.is_straight else SETS // gcd(apart, SETS)
    return max(1, sets * (caches()[0] // PAGE) * 3 // 4)


def transposing(nest: Move, columns: Run, rows: Run, block: int, stage: bool) -> float:
    """Cycles for a line of the source besides shuffles; endless where a block is longer than all rows.

    ``block`` rows are worked on together, by way of a stage or not.
    """
    strips = LINE_BITS // LANE  # of a line
    pitch, back = (abs(run.loops[0].src if run is rows else run.loops[0].dst) // 8 for run in (rows, columns))
    pages = block if pitch >= PAGE else -(-block * pitch // PAGE)
    visits = 1 if stage else strips
    cost = STAGING if stage else (strips - 1) * REFETCH * (block > fitting(rows))
    if pages > PAGES:
        cost += visits * LOOKUP * min(1.0, pitch / PAGE)
    cost += visits * TURN / block
    lines = block * nest.write / LINE_BITS  # of a piece
    if back % LINE:
        cost += END / lines
    if back >= PAGE:
        cost += LOOKUP / lines
    return cost if block <= rows.extent else inf
