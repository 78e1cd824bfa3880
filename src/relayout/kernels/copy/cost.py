"""What a plan costs, from facts of the processor: an estimate, in cycles for a line of the destination.

Instructions are counted, two to a cycle. What else there is are stores that straddle lines, lines of the
source that are fetched more than once, and pages that the TLB has forgotten. For a transpose::

    rows of the source        a block of them, a strip of 16 bytes at a time
    r0  |16|16|16|16| ...     direct: a line of each row has to stay in the L1 cache for four strips, and
    r1  |16|16|16|16| ...             the page of each row among those in the TLB
    ..                        staged: a line is copied when it is there, once; the copy takes a while
    r63 |16|16|16|16| ...

The numbers are a core's own. They were measured on one processor (Xeon with AVX-512) and are much the same on
others; where they matter for a problem, the best few plans are measured (:mod:`relayout.reorder.tuning`).
"""

from __future__ import annotations

from math import gcd

from relayout.kernels.copy.plan import LANE_BITS, LINE_BITS, Run
from relayout.kernels.copy.problem import Move
from relayout.processors import caches
from relayout.targets.machine import LINE, Machine

__all__ = [
    *("ELEMENT_CYCLES", "INSTRUCTION_CYCLES", "L2_LINE_CYCLES", "NEAR", "PAGE_BYTES", "PASS_CYCLES"),
    *(
        "RUN_CYCLES",
        "SCATTERED_LINE_CYCLES",
        "SPILLED",
        "SPLIT_LINE_CYCLES",
        "TLB_MISS_CYCLES",
        "converting",
        "elsewhere",
        "ending",
        "fitting",
        "instructions",
        "near",
        "patching",
        "squaring",
        "transposing",
    ),
]

L1_SETS = 64  # sets of the L1 cache: each way is one page, so that sets are indexed by untranslated bits
PAGE_BYTES = 4096  # bytes
TLB_ENTRIES = 64  # pages that the first-level TLB holds translations for
TLB_MISS_CYCLES = 2.0  # cycles lost to a miss of the first-level TLB, most of it being hidden
STORE_MISS_CYCLES = 4.0  # cycles lost to one when storing, where less is hidden
PIECE_CYCLES = 3.0  # cycles lost where a piece of the destination ends and the next is elsewhere in its page
L2_LINE_CYCLES = 2.2  # cycles to fetch a line from L2 that L1 has dropped
STAGED_LINE_CYCLES = 3.0  # cycles to copy a line into the stage, which is a loop of its own
STRIP_CYCLES = 10  # cycles of overhead each time a strip's loop over rows begins
SINGLE_TILE_ROWS = 16  # rows of a strip that is one tile, without a loop or a call
STRADDLING_CYCLES = 1.0  # cycles more for a store to two lines, both in the L1 cache
SHARED_LINE_CYCLES = 2.5  # cycles more for a line in the L1 cache that is gone on with after other columns
SCATTERED_LINE_CYCLES = 8.0  # cycles more to fetch a line from beyond L2 where its neighbours come much later
SPLIT_LINE_CYCLES = 6  # cycles to fetch a line of the destination again that two pieces share
INSTRUCTION_CYCLES = 0.5  # cycles for a load, a shuffle or a store of a vector
CONVERT_CYCLES = 2.5  # cycles to convert a vector, clamp it and make it narrower
SPILLED = 2.0  # times as long takes a conversion amid the loads of a tile, which needs all registers
RUN_CYCLES = 2.0  # cycles for the addresses and the branch of a loop's turn
ELEMENT_CYCLES = 2.5  # cycles to move one element by itself
NEAR = 4  # times the L2 cache: so much an L3 cache that is shared has at hand, asked for or not
PASS_CYCLES = 2.0  # cycles for a line to go through a buffer in the L1 cache, there and back


def fitting(rows: Run) -> int:
    """How many rows may have a line in the L1 cache at a time, with half of its ways."""
    return max(1, (_ways(rows.loops[0].src) if rows.is_straight else caches()[0] // LINE) // 2)


def _ways(pitch: int) -> int:
    """Lines so many bits apart that the L1 cache holds."""
    apart, odd = divmod(abs(pitch), LINE_BITS)
    return (L1_SETS if odd else L1_SETS // gcd(apart, L1_SETS)) * (caches()[0] // PAGE_BYTES)


def instructions(loads: float, shuffles: float, stores: float = 1) -> float:
    """Cycles for a line that is loaded in pieces and shuffled: a piece is merged with those before it."""
    return INSTRUCTION_CYCLES * (2 * loads - 1 + shuffles + stores)


def converting(nest: Move, size: int) -> float:
    """Cycles for the values of a line, converted in vectors of so many bytes of the wider side."""
    if nest.conversion is None:
        return 0.0
    return (
        CONVERT_CYCLES * LINE_BITS / nest.write * max(nest.read, nest.write) / (8 * max(1, min(size, LINE)))
    )


def in_turn(nest: Move, columns: Run, rows: Run, block: int) -> bool:
    """Whether a transpose writes columns in turn: each is one block, and ends where the next one begins.

    A strip ends its columns before the next one then, so lines that they share are in the L1 cache.
    """
    line = LINE_BITS // nest.write
    follow = columns.is_straight and columns.loop.dst == rows.extent * nest.write
    return follow and rows.extent // line * line <= block


def transposing(nest: Move, columns: Run, rows: Run, block: int, stage: bool) -> float:
    """Cycles for a line of the source besides shuffles: ``block`` rows together, by way of a stage or not."""
    strips = LINE_BITS // LANE_BITS  # of a line
    block = min(block, rows.extent)
    pitch = abs(rows.loops[0].src) // 8
    pages = block if pitch >= PAGE_BYTES else -(-block * pitch // PAGE_BYTES)
    visits = 1 if stage else strips
    pieces = max(1.0, LINE_BITS / (columns.extent * nest.read))  # of rows, in a line
    cost = STAGED_LINE_CYCLES * pieces if stage else (strips - 1) * L2_LINE_CYCLES * (block > fitting(rows))
    if pages > TLB_ENTRIES:
        lost = min(1.0, pages / TLB_ENTRIES - 1)  # they are not forgotten strictly by age
        cost += visits * TLB_MISS_CYCLES * lost * min(1.0, pitch / PAGE_BYTES)
    cost += visits * (STRIP_CYCLES if rows.extent > SINGLE_TILE_ROWS else RUN_CYCLES) / block
    line = 2 * LINE if stage else min(pitch, LINE)  # of a row, and its copy
    if block * (line + LINE // strips) >= caches()[0] * 3 // 4:  # with a strip of the destination
        cost += (strips - 1 if stage else 1) * L2_LINE_CYCLES
    return cost


def patching(columns: Run, rows: Run, block: int, width: int, far: bool) -> float:
    """Cycles for a line besides shuffles where patches of so many columns and rows go down the rows.

    ``far`` says that the tensor is larger than the L2 cache, so that most lines come from beyond it.
    """
    strips = LINE_BITS // LANE_BITS
    back = abs(columns.loops[0].dst)
    cost = SHARED_LINE_CYCLES * any(stride % LINE_BITS for stride in columns.strides("dst"))
    cost += (strips - 1) * L2_LINE_CYCLES * (block > fitting(rows))
    cost += SCATTERED_LINE_CYCLES * far
    if columns.is_straight and 2 * width > _ways(back) // 2:  # lines that the next patch goes on with
        cost += SPLIT_LINE_CYCLES if back % LINE_BITS else L2_LINE_CYCLES
    pages = max(block * min(abs(rows.loops[0].src), 8 * PAGE_BYTES), width * min(back, 8 * PAGE_BYTES))
    if pages > 8 * PAGE_BYTES * TLB_ENTRIES:
        cost += TLB_MISS_CYCLES
    return cost + STRIP_CYCLES * strips / block


def squaring(columns: Run, rows: Run, side: int) -> float:
    """Cycles for a line besides shuffles where squares go down the rows: each line is wanted once.

    Rows that are no whole lines are loaded from two lines, both of which are fetched again for columns beside
    these; columns that are none are stored to two, one of which the next square goes on with.
    """
    back, pitch = abs(columns.loops[0].dst), abs(rows.loops[0].src)
    cost = (STRADDLING_CYCLES + 2 * L2_LINE_CYCLES) * any(
        stride % LINE_BITS for stride in rows.strides("src")
    )
    if any(stride % LINE_BITS for stride in columns.strides("dst")):
        cost += SHARED_LINE_CYCLES
        cost += SPLIT_LINE_CYCLES * (columns.is_straight and side > _ways(back) // 2)
    if min(_ways(back), _ways(pitch)) < side:  # what is asked for pushes out what was
        cost += SCATTERED_LINE_CYCLES
    if 2 * side > TLB_ENTRIES:
        cost += TLB_MISS_CYCLES * min(1.0, pitch / (8 * PAGE_BYTES))
    return cost + STRIP_CYCLES / side


def near(nest: Move, machine: Machine) -> bool:
    """Whether what is moved lies so near that it makes no difference in which order lines come."""
    return machine.jumps and nest.bytes <= NEAR * machine.l2


def ending(nest: Move, columns: Run, rows: Run, block: int, buffer: bool, machine: Machine) -> float:
    """Cycles for a line of a destination whose columns are written where they are, or to a buffer first."""
    cost = STRADDLING_CYCLES * any(stride % LINE_BITS for stride in columns.strides("dst"))
    if buffer:
        return cost + PASS_CYCLES
    back = abs(columns.loops[0].dst) // 8
    if back <= LINE or in_turn(nest, columns, rows, block):
        return cost
    piece = min(block, rows.extent) * nest.write // 8
    lines = max(1.0, piece / LINE)
    jumps = near(nest, machine) and back < PAGE_BYTES
    further = 0.0 if jumps else elsewhere(back)
    stay = columns.extent * (piece + LINE) <= caches()[0] // 2  # until the next block goes on there
    if not stay:
        cost += SPLIT_LINE_CYCLES / lines * bool(back % LINE) + further / lines
    elif back >= PAGE_BYTES:
        cost += further / lines
    return cost


def elsewhere(pitch: int) -> float:
    """Cycles lost where a piece of the destination ends and the next is so many bytes further."""
    return STORE_MISS_CYCLES if pitch >= PAGE_BYTES else PIECE_CYCLES
