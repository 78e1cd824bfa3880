"""Short rows put together to whole lines: ``lines``.

From ``nChw8c`` to ``nhwc``, rows of 8 half words that are neighbours in the destination lie pages apart in
the source. Copied one by one, each is a store of a quarter of a line. Here those of one line of the
destination are loaded into the lanes of a register or two, and stored as a whole::

    block 0   a0 a1 a2 ..
    block 1   b0 b1 b2 ..     ->    a0 b0 c0 d0 | a1 b1 c1 d1 | ..        a line each
    block 2   c0 c1 c2 ..
    block 3   d0 d1 d2 ..

Rows whose values are converted go the same way: what makes a line is converted as a whole, in full registers,
where each row by itself would leave some half empty. ``f32:nhwc`` to ``u8:nChw8c`` takes eight numbers of
each pixel.

With AVX2 there are two more ways, which are candidates. *Whole lines* reads the rows of a line of the source
one after the other, and writes to several lines in turn: for sources whose rows would push each other out of
the L1 cache before a line is read on. *Prefetched* asks for the rows of the next block, as so many are no
streams that a processor sees by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from relayout.ir.types import I8, I64, Value, constant, vector
from relayout.ir.vectors import join_lanes
from relayout.kernels.copy.base import Kernel, Place, writes
from relayout.kernels.copy.cost import (
    L2_LINE_CYCLES,
    NEAR,
    RUN_CYCLES,
    fitting,
    instructions,
)
from relayout.kernels.copy.plan import (
    LINE_BITS,
    UNUSUAL_CYCLES,
    Facts,
    Plan,
    Run,
    costing,
    outside,
    rest_of,
    shared_of,
)
from relayout.kernels.copy.problem import Move
from relayout.kernels.copy.rows import (
    BLOCK_CYCLES,
    BLOCKS,
    RowsPlan,
    apart_in_source,
    blocks_of,
    joins_lines,
    lines_fit,
    rows_of,
)
from relayout.loops.nest import Loop
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Lines", "LinesPlan", "plans"]


@dataclass(frozen=True)
class LinesPlan(RowsPlan):
    """Short rows that are put together to lines."""

    kind = "lines"
    can_claim = False
    beside: Loop | None = None
    """The rows of a line of the source, each of which goes to another line; None: one row after the other."""
    asks: bool = False
    """Whether the rows of the next block are asked for: so many are no streams that a processor sees."""

    def choices(self) -> Iterator[str]:
        """Whether whole lines are read, and whether they are asked for."""
        yield from super().choices()
        if self.beside is not None:
            yield "whole lines"
        if self.asks:
            yield "prefetched"

    def completes(self, machine: Machine) -> bool:
        """That is what they are put together for."""
        return self.beside is None or self.beside.dst % LINE_BITS == 0


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Blocks of rows of 8, 16 or 32 bytes, as they are or converted."""
    found = rows_of(nest)
    if found is not None and nest.conversion is not None:
        yield from _converted(found[0], facts)
        return
    apart = None if found is None else apart_in_source(found[0])
    if found is None or apart is None or joins_lines(found[0], apart) or not lines_fit(found[0]):
        return
    made, cost = found
    row = made.piece // 8
    far = nest.bytes > NEAR * facts.machine.l2
    for one, more in blocks_of(LinesPlan, made, apart, cost):
        if not facts.machine.is_avx2:
            yield from costing(one, facts, more)
            continue
        lost = L2_LINE_CYCLES * (LINE // row) * (one.block > fitting(Run((apart,))))
        whole = _of_whole_lines(one)
        if whole is not None:  # where rows push each other out, few are better than many
            few = BLOCK_CYCLES * log2(one.block / min(BLOCKS)) if lost else UNUSUAL_CYCLES
            yield from costing(whole, facts, (cost if lost else more) + few)
        yield from costing(replace(one, asks=True), facts, more + lost + UNUSUAL_CYCLES * (not far))
        yield from costing(one, facts, more + lost + UNUSUAL_CYCLES * far)


def _converted(made: RowsPlan, facts: Facts) -> Iterator[Plan]:
    """Short rows that are converted as many at a time as make a line.

    Row by row registers are not full: eight bytes come of a half or a quarter of what is converted at once.
    Where registers are a quarter of a line that is no gain.
    """
    nest, row = made.nest, made.piece // 8
    apart = next((loop for loop in made.around if loop.dst == made.piece), None)
    plain = made.rows.is_straight and not (nest.fill or nest.adds) and min(nest.read, nest.write) >= 8
    each = LINE // row if row in (8, 16, 32) else 0
    if apart is None or not each or apart.extent < each or not plain or 2 * facts.machine.vector < LINE:
        return
    for one, more in blocks_of(LinesPlan, made, apart, instructions(each, 0) + RUN_CYCLES):
        yield from costing(one, facts, more)


def _of_whole_lines(made: LinesPlan) -> LinesPlan | None:
    """The same with lines of the source read as a whole, where rows follow each other in it.

    Rows that are a power of two apart would push each other out of the L1 cache before a line is read on.
    """
    assert made.blocked is not None
    row = made.piece
    on = next((x for x in made.around if x.src == row and x.extent % (LINE_BITS // row) == 0), None)
    if on is None or row == LINE_BITS:
        return None
    part = on.taking(LINE_BITS // row)
    around = tuple(rest for loop in made.around if (rest := rest_of(loop, part)).extent > 1)
    outer = outside(around, (*made.rows.loops, made.blocked, part))
    shared = made.shared if made.shared is not on else shared_of(around)
    return replace(made, around=around, outer=outer, shared=shared, beside=part)


@writes(LinesPlan)
class Lines(Kernel):
    """Short rows that neighbour each other in the destination, put together to whole vectors."""

    plan: LinesPlan

    def body(self, place: Place) -> None:
        """The rows of one block."""
        b, loop, bits = self.b, self.plan.blocked, self.nest.write
        assert loop is not None
        width = self.plan.rows.extent * bits // 8
        size = max(self.machine.vector, width)
        per = LINE // width
        first, last = self.span

        beside, row = self.plan.beside, self.plan.rows.loop

        def load(at: Place) -> Value:
            return b.load(vector(width, I8), at.src) if self.what is None else self.load_raw(at, row.extent)

        def converted(at: Place, rows: int) -> Value:
            x = join_lanes(b, [load(self.moved(at, k, loop)) for k in range(rows)])
            lanes = [
                [k * one + o * two for o in range(rows) for k in range(row.extent)]
                for one, two in zip(row.tables, loop.tables, strict=True)
            ]
            return self.value(x, at, lanes)

        def each(o: Value) -> list[Place]:
            at = self.moved(place, o, loop)
            return [at] if beside is None else [self.moved(at, k, beside) for k in range(beside.extent)]

        def one(o: Value) -> None:
            for at in each(o):
                b.store(load(at) if self.what is None else converted(at, 1), at.dst)

        ahead = self.plan.block * loop.src // 8

        def line(o: Value) -> None:
            for at in each(o):
                if self.what is not None:
                    self.store_raw(converted(at, per), at.dst)
                    continue
                if self.plan.asks:
                    self.prefetch(self._in_turn(at.src, width, per), ahead)
                parts = [load(self.moved(at, k, loop)) for k in range(per)]
                together = size // width
                for k in range(0, per, together):
                    self.store_raw(join_lanes(b, parts[k : k + together]), b.gep(at.dst, k * width))

        whole = loop.extent // per * per  # blocks begin at a line, and only the last can end within one
        if whole == loop.extent:
            b.loop(first, last, per, line)
            return
        end = b.smin(last, whole)
        b.when(b.icmp("slt", first, end), lambda: b.loop(first, end, per, line))
        if self.what is not None:  # one that is done in part already
            ends = b.icmp("eq", last, loop.extent)
            b.when(ends, lambda: self.unstreamed(lambda: line(constant(I64, loop.extent - per))))
            return
        rest = b.smax(first, whole)
        b.when(b.icmp("slt", rest, last), lambda: b.loop(rest, last, 1, one))

    def _in_turn(self, first: Value, width: int, per: int) -> Value:
        """One of the rows that make a line, so many bytes wide: another one after each, as they are read on.

        So the lines of all rows are asked for once, and not for each row that they have.
        """
        b, loop = self.b, self.plan.blocked
        assert loop is not None
        if per == 1:
            return first
        turn = b.and_(b.lshr(b.ptrtoint(first), width.bit_length() - 1), per - 1)
        return self.step(first, turn, loop.src)

    def one_block(self, loop: Loop, place: Place) -> None:
        """The loops inside; the rows of the block are the body's."""
        self.loops(self.plan.around[self.plan.outer :], place)
