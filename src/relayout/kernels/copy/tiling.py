"""The plans of transposes: which rows and columns, and in which of many ways they are gone through.

What neighbours in the source are the *columns* of a tile, what neighbours in the destination its *rows*. Runs
too short for a line go on into the loops that continue them (:func:`_joined`). The arithmetic is the same in
all ways, the shuffles of :mod:`~.tiles`; ways differ by what stays in which cache until it is wanted again:

=================  ===========================================================================================
rows of a block    how many lines of the destination are gone through before the next columns: few, and lines
                   of the source stay in the L1 cache; many, and a page of the destination is used longer
staged             lines of the source are copied to a buffer first, where they do not collide
rows outermost     a block of rows takes all columns before the next block, so that source rows are used up
buffered           columns that are no whole lines pass through a buffer, out of which lines are stored
prefetched         the next columns of each row are asked for: so many rows are no streams to a processor
threads share      a loop around, or the columns, or blocks of rows: whichever leaves no thread waiting
streamed           stores go around the caches (:func:`.costing`), where a destination outgrows them
=================  ===========================================================================================

All combinations are candidates (:func:`_ways`), each a frozen :class:`TransposePlan` with an estimate of its
cost for a line of the destination: shuffles, lines fetched again, TLB misses. The estimate orders them and
drops those that can't win; which of the best is taken, measuring decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import TypeVar

from relayout.kernels.copy.cost import (
    INSTRUCTION_CYCLES,
    L2_LINE_CYCLES,
    RUN_CYCLES,
    SPILLED,
    TLB_MISS_CYCLES,
    converting,
    ending,
    fitting,
    instructions,
    transposing,
)
from relayout.kernels.copy.plan import (
    BUFFER_BITS,
    LANE_BITS,
    LINE_BITS,
    SHARED_BYTES,
    Facts,
    Plan,
    Run,
    costing,
    left_of,
    one_of,
    outside,
    part_of,
    runs,
    shared_of,
    waiting,
)
from relayout.kernels.copy.problem import Move, moves_bits
from relayout.loops.nest import Loop
from relayout.processors import count
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE, Machine

__all__ = [
    *("HollowPlan", "StagedPlan", "TransposePlan"),
    *("by_columns", "by_rows", "plans", "shuffling", "tiled"),
]

UNEVEN = 1.05  # longest share over the mean share: above that another loop is shared
LONGEST_TABLE = 4096  # elements of a joined run whose offsets are written down one by one
LONGEST_WHOLE = 4 * LONGEST_TABLE  # the same where the last loop has no parts, as of a prime number of turns
SMALL_BUFFER_BITS = 8 * (4 << 10)  # of a buffer beside which the source's lines stay in the L1 cache, too
STREAM_PITCH_BYTES = 512  # rows further apart are no stream to the hardware prefetcher
BLOCKS = 4  # sizes of blocks, each twice the one before; the first is a line of the destination


@dataclass(frozen=True)
class TransposePlan(Plan):
    """Tiles that are transposed in registers, loaded from where the source lies."""

    kind = "transpose"
    can_claim = puts_together = True
    bounced: int = 0
    """So many columns pass through a buffer at a time, to be stored in whole lines; 0: none."""
    prefetch: bool = False
    """Whether source rows are prefetched."""

    def described(self) -> Iterator[str]:
        """Rows and columns."""
        joined = " joined" if len(self.columns.loops) + len(self.rows.loops) > 2 else ""
        yield f"{self.total} rows by {self.columns.extent} columns{joined}"

    def choices(self) -> Iterator[str]:
        """All that may be combined."""
        yield "direct"
        yield f"{self.block} rows"
        yield "rows outermost" if self.blocked is not None else "rows innermost"
        yield "buffered" if self.bounced else "unbuffered"
        yield "prefetched" if self.prefetch else "not prefetched"

    @property
    def even(self) -> tuple[Loop, ...]:
        """Rows and columns."""
        return *self.columns.loops, *self.rows.loops

    @property
    def halves(self) -> tuple[tuple[int, Run, str, int], ...]:
        """Tiles may be of 4-bit elements on either side, but not single ones."""
        nest = self.nest
        if min(self.columns.extent, self.total) < 2:
            return ()
        return (nest.read, self.columns, "src", 0), (nest.write, self.rows, "dst", nest.fill)

    def abreast(self, rows: int, columns: int, machine: Machine) -> int:
        """How many lanes of columns a tile takes side by side whose rows fill only one.

        A register has a longer piece of one row then, whose lanes are transposed all alike::

            r0: a0 a1 a2 a3 | a4 a5 a6 a7         a0 b0 c0 d0 | a4 b4 c4 d4
            r1: b0 b1 b2 b3 | b4 b5 b6 b7   ->    a1 b1 c1 d1 | a5 b5 c5 d5
            ..                                    ..
        """
        nest, lane = self.nest, LANE_BITS // self.mid
        plain = not (self.bounced or nest.fill or nest.pair or nest.adds) and type(self) is TransposePlan
        if not plain or rows != lane or columns != lane:
            return 1
        abreast = 8 * machine.vector // LANE_BITS
        while abreast > 1 and abreast * lane > self.columns.extent:
            abreast //= 2
        return abreast

    @property
    def shares_rows(self) -> bool:
        """Whether threads share the rows, in whole blocks, and not a loop around them or the columns."""
        return self.shared is not None and self.shared is self.rows.loops[-1]

    @property
    def lines_up(self) -> bool:
        """Whether all columns begin on a line if the first one does."""
        return all(stride % LINE_BITS == 0 for stride in self.columns.strides("dst"))

    def completes(self, machine: Machine) -> bool:
        """Columns of a line or more that begin on lines, or pass through a buffer."""
        return bool(self.bounced) or (self.lines_up and self.total * self.nest.write >= LINE_BITS)

    def narrows(self, machine: Machine) -> bool:
        """Where columns are whole lines: elsewhere two stores straddle lines for one."""
        return super().narrows(machine) and self.lines_up


AnyTranspose = TypeVar("AnyTranspose", bound=TransposePlan)


class StagedPlan(TransposePlan):
    """The same by way of a stage: some lines of each of some rows."""

    kind = "staged"

    def choices(self) -> Iterator[str]:
        """Staged rather than direct."""
        yield "staged"
        yield from (word for word in super().choices() if word != "direct")


@dataclass(frozen=True)
class HollowPlan(TransposePlan):
    """The same with zeros among the rows."""

    can_claim = puts_together = False
    group: int = 0
    """Joined rows are in groups of so many, each of which ends with zeros."""

    @property
    def total(self) -> int:
        """The zeros are rows like others."""
        return self.rows.extent

    def described(self) -> Iterator[str]:
        """How many rows are zeros."""
        yield from super().described()
        yield f"zeros {self.nest.fill} rows of {self.group}"


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Every way that is worth trying, for nests whose neighbours are others on either side."""
    made = tiled(nest)
    if made is not None:
        yield from _ways(made, facts)


def tiled(nest: Move) -> TransposePlan | None:
    """The rows and columns of a transpose, and what is around; None where there are none."""
    inner, outer = runs(nest)
    if nest.zero or inner is outer:
        return None
    if inner is not None and outer is not None and max(outer.extent + nest.fill, inner.extent) < 2:
        return None
    if nest.read == nest.write == 4 and moves_bits(nest) and inner is not None and not inner.extent % 2:
        nest, inner, outer = _in_pairs(nest, inner)
    one = one_of(nest)
    columns = Run((inner,)) if inner is not None else one
    rows = Run((outer,)) if outer is not None else one
    columns, rows = _joined(nest, columns, rows)
    group = rows.loops[0].extent if nest.fill and not rows.is_straight else 0
    rest = replace(nest, loops=nest.without(outer)) if group else nest  # its zeros are in the group, too
    around = left_of(rest, columns, rows)
    if group:
        return HollowPlan(nest, columns, rows, around, shared_of(around), group=group)
    return TransposePlan(nest, columns, rows, around, shared_of(around))


def _ways(made: TransposePlan, facts: Facts) -> Iterator[Plan]:
    """A transpose in all ways, each with its cost."""
    nest, columns, rows = made.nest, made.columns, made.rows
    line = LINE_BITS // max(8, nest.write)
    can = not nest.fill and not nest.pair and rows.is_straight
    hollow = isinstance(made, HollowPlan)
    far = not hollow and abs(rows.loops[0].src) >= 8 * STREAM_PITCH_BYTES and nest.bytes > facts.machine.l2
    inside = any(abs(loop.src) < abs(rows.loops[0].src) for loop in made.around)
    stages = (False, True)[: 1 + can]
    for stage, block in product(stages, _blocks(line, rows.extent, _longest_block(made))):
        kind = StagedPlan if stage else TransposePlan
        parts = nest, columns, rows, made.around, made.shared
        one = kind(*parts, block=block) if not hollow else replace(made, block=block)
        cost = shuffling(one) + transposing(nest, columns, rows, block, stage)
        if facts.hopeless(cost):
            continue
        for swept in _swept(one):
            back = L2_LINE_CYCLES * (inside != (swept.blocked is not None)) * (can and not stage)
            for lined in _lined(swept):
                more = ending(nest, columns, rows, block, bool(lined.bounced), facts.machine)
                for prefetch in (far, not far)[: 1 if hollow else 2]:
                    wrong = 0.0 if prefetch == far else TLB_MISS_CYCLES if far else INSTRUCTION_CYCLES
                    if facts.hopeless(cost + back + more + wrong):
                        continue
                    yield from costing(replace(lined, prefetch=prefetch), facts, cost + back + more + wrong)


def _blocks(line: int, rows: int, longest: float) -> list[int]:
    """Rows of a block that are worth trying: some lines of the destination, or all of a column."""
    blocks = [line << k for k in range(BLOCKS + 1)]
    most = next((block for block in blocks if block >= rows), blocks[-2])
    return [block for block in blocks if block <= min(most, max(line, longest))]


def _longest_block(made: TransposePlan) -> float:
    """Of so many rows: where threads have nothing but blocks of rows to share, each gets one at least."""
    small = made.nest.bytes < SHARED_BYTES or not made.rows.is_straight
    alone = count() == 1 or small or by_columns(made).shared is not None
    return math.inf if alone else made.rows.extent / count()


def shuffling(made: TransposePlan) -> float:
    """Cycles for a line that is put together of rows of a lane: loads, shuffles, conversions, stores."""
    nest, many = made.nest, LINE_BITS // made.mid
    lane = LANE_BITS // made.mid
    chunk = min(lane, 1 << (made.columns.extent.bit_length() - 1))
    again = -(-made.columns.extent // chunk) * chunk / made.columns.extent  # the last strip steps back
    tile = chunk * min(many, made.total)
    early = nest.conversion is not None and not made.late and made.kind != "staged"
    cost = instructions(many / chunk * again, math.log2(lane), max(1.0, many / made.total))
    converted = SPILLED * converting(nest, chunk * nest.read // 8) if early else converting(nest, LINE)
    return cost + RUN_CYCLES * many / tile + converted


def by_columns(made: AnyTranspose) -> AnyTranspose:
    """The same, with threads sharing columns where the loops around would leave some of them waiting."""
    nest, columns = made.nest, made.columns
    column = LINE_BITS // min(nest.read, nest.write)
    if columns.is_straight and columns.extent >= 2 * column and waiting(made.shared, 1) > UNEVEN:
        even = columns.extent % (16 * column) == 0
        unit = 4 * column if made.kind == "staged" and even else column
        if waiting(columns.loop, unit) < waiting(made.shared, 1):
            return replace(made, shared=columns.loop, unit=unit)
    return made


def by_rows(made: AnyTranspose) -> AnyTranspose:
    """The same, with threads sharing blocks of rows where neither loops around nor columns are enough."""
    nest, rows = made.nest, made.rows
    plain = rows.is_straight and not (nest.fill or nest.pair or nest.adds) and min(nest.read, nest.write) >= 8
    unit, least = max(made.block, LINE_BITS // made.mid), waiting(made.shared, made.unit)
    if plain and rows.extent >= 2 * unit and least > UNEVEN and waiting(rows.loop, unit) < least:
        return replace(made, shared=rows.loop, unit=unit)
    return made


def _swept(made: TransposePlan) -> Iterator[TransposePlan]:
    """The ways to go through rows and columns: which loop threads share, and which one is in blocks."""
    nest, columns, rows = made.nest, made.columns, made.rows
    made = by_rows(by_columns(made))
    yield made
    if made.shared in columns.loops or made.shares_rows:
        return
    if made.kind == "transpose" and rows.is_straight and not nest.fill and rows.extent >= 2 * made.block:
        # Whole source rows are used up, block by block.
        outer = outside(made.around, (*columns.loops, *rows.loops))
        yield replace(made, blocked=rows.loop, outer=outer)


def _lined(made: TransposePlan) -> Iterator[TransposePlan]:
    """As it is, and by way of a buffer where columns are no lines."""
    yield made
    if bounced := _bounced(made):
        yield replace(made, bounced=bounced)


def _bounced(made: TransposePlan) -> int:
    """How many columns of a transpose pass through a buffer at a time: dense ones that are no lines."""
    nest, run = made.nest, made.columns
    row = made.total * nest.write
    if nest.adds or nest.pair or made.blocked is not None or made.shares_rows or nest.dst % LINE_BITS:
        return 0
    if any(loop.dst % LINE_BITS for loop in made.around):
        return 0
    if not run.is_straight:
        dense = sorted(run.places("dst")) == list(range(0, run.extent * row, row))
        size = run.extent * row
        return (
            run.extent if dense and size % LINE_BITS == 0 and size <= BUFFER_BITS and row % LINE_BITS else 0
        )
    if run.loop.dst != row or row % LINE_BITS == 0:
        return 0
    even = LINE_BITS // math.gcd(row, LINE_BITS)  # so many make whole lines of the destination
    part = LANE_BITS if made.rows.extent <= fitting(made.rows) else LINE_BITS  # or else they are used up
    strip = LINE_BITS // min(nest.read, made.mid) if made.kind == "staged" else LANE_BITS // made.mid
    some = math.lcm(even, max(1, part // nest.read), strip)
    most = min(run.extent, BUFFER_BITS // row) // some * some
    most = min(most, max(some, SMALL_BUFFER_BITS // row // some * some))
    if run.loop is not made.shared:
        return most
    return some if most and run.extent % some == 0 and made.unit % some == 0 else 0


def _in_pairs(nest: Move, inner: Loop) -> tuple[Move, Loop, Loop | None]:
    """4-bit elements moved two at a time: bytes of the source are transposed, then taken apart."""
    pairs = Loop(inner.extent // 2, (8, *(2 * step for step in inner.steps[1:])))
    loops = tuple(pairs if loop is inner else loop for loop in nest.loops)
    made = replace(nest, widths=(8, *nest.widths[1:]), loops=loops, conversion=None, pair=inner.dst)
    return made, pairs, runs(made)[1]


def _joined(nest: Move, columns: Run, rows: Run) -> tuple[Run, Run]:
    """Runs that are too short for a line go on into the loops that continue them.

    The nine taps of a filter are a run of nine elements, but those of all filters of an output follow each
    other: ``oihw`` to ``hwio`` turns over runs of ``i`` and ``hw`` together.
    """
    free = [loop for loop in nest.loops if loop not in columns.loops and loop not in rows.loops]
    joined = _continued(_with_zeros(nest, rows) if nest.fill else rows, "dst", nest.write, free)
    if not (nest.fill and joined.is_straight):
        rows = joined
    taken = {(loop.src, loop.dst) for loop in rows.loops}  # or a part of it
    free = [loop for loop in free if (loop.src, loop.dst) not in taken]
    return _continued(columns, "src", nest.read, free), rows


def _with_zeros(nest: Move, rows: Run) -> Run:
    """A short row and the zeros behind it as one row of a power of two; as it was where that can't be.

    The zeros are rows of a tile like others, loaded from nowhere. They are not converted, so that must have
    been done behind loads.
    """
    group = rows.extent + nest.fill
    converted = nest.conversion is not None and nest.read <= nest.write
    if group & (group - 1) or converted or nest.tables or min(nest.read, nest.write) < 8:
        return rows
    return Run((rows.loop.taking(group),))


def _continued(run: Run, side: str, bits: int, free: list[Loop]) -> Run:
    """A run and the loops, or parts of them, that follow it, until it has whole lines."""
    line = LINE_BITS // bits
    while run.extent % line and run.extent < 4 * line:
        step = run.extent * bits
        after = next((loop for loop in free if getattr(loop, side) == step), None)
        if after is None or any(after.tables) or any(t for loop in run.loops for t in loop.tables):
            break
        taken = _taken(run, after, line)
        if taken is None:
            break
        run = Run((*run.loops, taken))
        if taken is not after:
            break
        free = [loop for loop in free if loop is not after]
    return run


def _taken(run: Run, after: Loop, line: int) -> Loop | None:
    """What a run takes of the loop that continues it; None: nothing, its table would be too long.

    Turns that make whole lines, the fewest. Where there are none, all of them if the table has room, or the
    longest part that has: its last tile steps back, which is little for so many. A prime number of turns has
    no part, and may have a longer table.
    """
    divisors = (n for n in range(2, after.extent) if not after.extent % n)
    enough = next((n for n in divisors if not n * run.extent % line), 0)
    if enough:
        return after.taking(enough) if run.extent * enough <= LONGEST_TABLE else None
    if run.extent * after.extent <= LONGEST_TABLE:
        return after
    part = part_of(after, LONGEST_TABLE // run.extent)
    if part.extent > 1 and run.extent * part.extent >= line:
        return part
    return after if run.extent * after.extent <= LONGEST_WHOLE else None
