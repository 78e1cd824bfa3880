"""Runs that are contiguous on both sides, as they come: ``rows``.

The same elements follow each other in source and destination: parts of a tensor, ``nChw8c`` and ``nhwc`` (8
channels), any two orders of the outer axes. They are copied in the widest vectors there are, or converted a
vector of the narrower type at a time. What else can be done depends on how long a row is:

===========================  =================================================================================
long                         threads share one row (:meth:`Rows._share`)
a line or more               whole vectors, several in a turn; then shorter ones, or one that overlaps
short, neighbours in both    several in a turn (:meth:`Rows._several`); one whose size is no power of two is
                             stored with bytes behind it, over which the next row is written
                             (:meth:`Rows._row_and_more`)
short, neighbours in the     in *blocks* (:func:`blocks_of`): lines of the source are still in the cache when
destination only             the rest of them is wanted; the shortest are put together, :mod:`~.lines`
short, zeros behind it       row and zeros as one vector (:meth:`Rows._padded`)
===========================  =================================================================================

Zeros are rows, too, which have no source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from math import log2
from typing import TypeVar

from relayout.ir.builder import Operand
from relayout.ir.types import I1, I8, I32, Value, constant, integer, poison, vector
from relayout.ir.vectors import join_lanes
from relayout.kernels.copy.base import Kernel, Place, writes
from relayout.kernels.copy.cost import (
    INSTRUCTION_CYCLES,
    PAGE_BYTES,
    PASS_CYCLES,
    RUN_CYCLES,
    SPLIT_LINE_CYCLES,
)
from relayout.kernels.copy.nibbles import DEALT, NIBBLES, joined, words
from relayout.kernels.copy.plan import (
    JOINED_BITS,
    LANE_BITS,
    LINE_BITS,
    LONG_ROW_BITS,
    WORD_BITS,
    Facts,
    Plan,
    Run,
    along,
    costing,
    in_lines,
    left_of,
    outside,
    read_on,
    runs,
    shared_of,
)
from relayout.kernels.copy.problem import LANES, Move, in_bytes
from relayout.loops.nest import Loop
from relayout.records import replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Rows", "RowsPlan", "apart_in_source", "blocks_of", "joins_lines", "lines_fit", "plans", "rows_of"]

SHORT_ROW_BYTES = 256  # rows up to that length go in blocks
BLOCK_ROWS = 32  # short rows in a block: lines that they share are then still in the L1 cache
BLOCKS = (8, 16, 32, 64, 128, 256)  # rows of a block that are worth trying
BLOCK_CYCLES = 0.1  # cycles for a line, each time that a block is twice or half as long as usual
PARTIAL_LINE_CYCLES = 60  # cycles to write a part of a line around the caches
MOST_ODD = 8  # vectors after which a row of few elements begins with a vector again
CLAIMED_BYTES = 8 * LINE  # that are written between asking for a line and writing it
LEAST_BYTES = 16  # of the shortest piece that asks for a line
UNROLL = 4  # vectors copied in one turn of the loop
TOGETHER = 4  # short rows copied in one turn of the loop


class RowsPlan(Plan):
    """Whole runs."""

    kind = "rows"
    can_claim = True

    def described(self) -> Iterator[str]:
        """How long a row is."""
        yield f"{in_bytes(self.piece)} bytes each"

    def choices(self) -> Iterator[str]:
        """Blocks of short rows; a buffer for rows that are no lines."""
        yield "row by row" if self.blocked is None else f"{self.block} rows"
        yield "buffered" if self.inside >= 0 else "unbuffered"

    @property
    def is_padded(self) -> bool:
        """Whether a row and the zeros behind it are one vector: a power of two, at least half of it zeros."""
        nest, total = self.nest, self.total
        even = 4 not in (nest.read, nest.write) or self.rows.extent % 2 == 0
        fits = total & (total - 1) == 0 and total <= LANES and nest.fill >= self.rows.extent
        return self.rows.is_straight and bool(nest.fill) and fits and even and not nest.adds

    @property
    def halves(self) -> tuple[tuple[int, Run, str, int], ...]:
        """Rows may be of 4-bit elements on either side."""
        nest = self.nest
        return (nest.read, self.columns, "src", 0), (nest.write, self.rows, "dst", nest.fill)

    def completes(self, machine: Machine) -> bool:
        """Rows of a line or more; short ones in blocks that are whole lines."""
        if self.blocked is not None:
            return self.block * self.blocked.dst % LINE_BITS == 0
        row = self.total if self.is_padded else self.rows.extent
        return row * self.nest.write >= LINE_BITS


AnyRows = TypeVar("AnyRows", bound=RowsPlan)


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Rows as they come, and short ones in blocks; those that are no lines also by way of a buffer."""
    found = rows_of(nest)
    if found is None:
        return
    made, cost = found
    apart = apart_in_source(made)
    if apart is not None:
        if joins_lines(made, apart):
            made = read_on(made)
        else:
            if not lines_fit(made):
                for one, more in blocks_of(RowsPlan, made, apart, cost):
                    yield from costing(one, facts, more)
            cost += SPLIT_LINE_CYCLES
    whole = made.piece % LINE_BITS == 0
    few = made.shared is None or made.shared.extent < 8
    if few and made.rows.extent * nest.write >= LONG_ROW_BITS and not nest.fill:
        yield from costing(replace(made, shared=made.rows.loops[-1]), facts, cost)
        return
    for plan in costing(made, facts, cost):
        partly = plan.stream and not whole
        yield replace(plan, cost=plan.cost + PARTIAL_LINE_CYCLES * LINE_BITS / made.piece) if partly else plan
    buffered = made if whole or nest.zero else in_lines(made)
    if buffered is not made:
        yield from (plan for plan in costing(buffered, facts, cost + PASS_CYCLES) if plan.stream)


def rows_of(nest: Move) -> tuple[RowsPlan, float] | None:
    """Rows as they come, and what a line of them costs; None where runs are not the same on both sides."""
    inner, outer = runs(nest)
    if outer is None or (inner is not outer and not nest.zero):
        return None
    rows = _repeated(nest, Run((outer,)))
    around = left_of(nest, rows)
    made = RowsPlan(nest, rows, rows, around, shared_of(around))
    each = LINE_BITS / made.piece  # rows in a line
    return made, each * (RUN_CYCLES + 2 * INSTRUCTION_CYCLES * -(-made.piece // 8 // LINE))


def apart_in_source(made: RowsPlan) -> Loop | None:
    """The loop from a short row to its neighbour in the destination, where that lies elsewhere in the source.

    Only if what lies beside a row in the source is read later, so that lines are wanted several times.
    """
    nest, row, bits = made.nest, made.piece // 8, made.rows.extent * made.nest.read
    if nest.zero or nest.fill or row > SHORT_ROW_BYTES:
        return None
    apart = next(
        (x for x in made.around if x.dst == 8 * row and x.src > bits and x.extent > BLOCK_ROWS), None
    )
    return apart if apart is not None and any(loop.src < apart.src for loop in made.around) else None


def joins_lines(made: RowsPlan, apart: Loop) -> bool:
    """Whether rows are whole lines: one of the source is read on at once then, and no blocks are needed."""
    row = made.piece // 8
    return row % LINE == 0 and apart.extent % max(1, JOINED_BITS // (8 * row)) == 0


def lines_fit(made: RowsPlan) -> bool:
    """Whether rows are so short that they are put together to vectors (:mod:`~.lines`)."""
    return made.piece // 8 in (8, 16, 32) and made.nest.conversion is None


def blocks_of(
    kind: type[AnyRows], made: RowsPlan, apart: Loop, cost: float
) -> Iterator[tuple[AnyRows, float]]:
    """Short rows that neighbour each other in the destination only, in blocks of several sizes; their costs.

    Lines are then still in the cache when their other parts are wanted.
    """
    around = tuple(loop for loop in made.around if loop is not apart)
    usual = BLOCK_ROWS if apart.extent > 2 * BLOCK_ROWS else apart.extent
    outer = outside(around, (*made.rows.loops, apart))
    for block in dict.fromkeys((usual, *(min(block, apart.extent) for block in BLOCKS))):
        shared, unit = shared_of(around), 1
        if shared is None or shared.extent < max(8, apart.extent // 64):
            shared, unit = apart, block
        one = kind(
            made.nest, made.columns, made.rows, around, shared, unit, blocked=apart, outer=outer, block=block
        )
        yield one, cost + BLOCK_CYCLES * abs(log2(block / usual))


def _repeated(nest: Move, rows: Run) -> Run:
    """A row of few elements, each with operands of its own, goes on into the rows that follow it.

    Pixels of three channels with a scale for each channel are such rows.
    """
    if not any(along(nest, rows)) or any(nest.tables) or nest.fill:
        return rows
    inner = rows.loop
    whole = all(
        stride in (0, 1) and (not stride or table.entries == inner.extent)
        for table in (nest.conversion.tables if nest.conversion else ())
        if table.number is not None
        for stride in (inner.tables[table.number],)
    )
    on = inner.extent * nest.read, inner.extent * nest.write
    after = next((loop for loop in nest.loops if (loop.src, loop.dst) == on and not any(loop.tables)), None)
    odd = inner.extent // math.gcd(inner.extent, LINE)
    return Run((inner, after)) if whole and after is not None and odd <= MOST_ODD else rows


@writes(RowsPlan)
class Rows(Kernel):
    """Whole runs in the widest vectors; zeros likewise."""

    plan: RowsPlan

    asks = 0
    """How many bytes behind what is read other bytes are asked for, which are wanted soon; 0: none are."""

    def prepare(self) -> None:
        """Find out which line to ask for."""
        self.ahead = self._ahead() if self.plan.claims else 0

    def _ahead(self) -> int:
        """How many bytes behind a line the one lies that is written some lines later; 0: none is asked for.

        Where that is on a page far away, writing goes on in several places in turn. Each of them is a stream,
        which processors see by themselves.
        """
        plan, written = self.plan, self.plan.piece // 8
        if written >= CLAIMED_BYTES:
            return CLAIMED_BYTES
        blocked = plan.blocked
        inner = () if blocked is None else (blocked._replace(extent=min(plan.block, blocked.extent)),)
        for loop in reversed((*plan.around[plan.outer if inner else 0 :], *inner)):
            turns = -(-CLAIMED_BYTES // written)
            if turns < loop.extent:
                return turns * loop.dst // 8 if abs(loop.dst) < 8 * PAGE_BYTES else 0
            written *= loop.extent
        return 0

    def _claim(self, place: Place, size: int) -> None:
        """Ask for the lines that are written some lines after these; what is read comes by itself."""
        if self.ahead and size >= LEAST_BYTES:
            for at in range(0, size, LINE):
                self.claim(self.b.gep(place.dst, self.ahead + at))

    def loops(
        self, left: tuple[Loop, ...], place: Place, body: Callable[[Place], None] | None = None
    ) -> None:
        """Loops around a row; short rows several at a time."""
        own = body in (None, self.body) and left and left[-1] not in (self.plan.blocked, self.plan.shared)
        few = self.plan.piece <= LINE_BITS and not self.plan.is_padded and not self.stream
        if own and few and len(left) == 1 and left[0].extent >= TOGETHER:
            self._several(left[0], place)
        elif own and few and len(left) == 2 and left[1].extent < TOGETHER and self._unrolls(left[0]):
            self._each_few(*left, place)
        else:
            super().loops(left, place, body)

    def _unrolls(self, loop: Loop) -> bool:
        """Whether turns of a loop around very few rows are written out, where that has been measured."""
        inside = loop is not self.plan.blocked and loop.extent >= TOGETHER
        return inside and self.machine.is_avx2 and not self.nest.zero

    def _each_few(self, outer: Loop, inner: Loop, place: Place) -> None:
        """Very few short rows in each turn of a loop, two turns of which are written out."""
        b = self.b

        def turn(i: Operand) -> None:
            self._few(inner, self.moved(place, i, outer))

        def two(i: Value) -> None:
            turn(i)
            turn(b.add(i, 1))

        if outer is not self.plan.shared:
            whole = outer.extent & -2
            b.loop(0, whole, 2, two)
            for k in range(whole, outer.extent):
                turn(k)
            return
        first, end = self.shared
        odd = b.sub(end, b.and_(b.sub(end, first), 1))  # loops have a turn at least
        b.when(b.icmp("slt", first, odd), lambda: b.loop(first, odd, 2, two))
        b.when(b.icmp("slt", odd, end), lambda: turn(odd))

    def _few(self, loop: Loop, place: Place) -> None:
        """All turns of a loop of very few; two halves of a vector that lie side by side as one vector."""
        b, size = self.b, self.plan.piece // 8
        plain = self.what is None and self.nest.write >= 8 and not self.nest.fill
        if plain and loop.extent == 2 and loop.dst == self.plan.piece and 2 * size == self.machine.vector:
            halves = [b.load(vector(size, I8), self.moved(place, k, loop).src, 1) for k in (0, 1)]
            self._claim(place, 2 * size)
            self.store_raw(join_lanes(b, halves), place.dst, False)
            return
        for k in range(loop.extent):
            self.body(self.moved(place, k, loop))

    def _several(self, loop: Loop, place: Place) -> None:
        """All turns of the innermost loop, each of which copies a short row."""
        b, last = self.b, loop.extent - 1
        hides = self._hides(loop)
        whole = last // TOGETHER * TOGETHER

        def row(at: Place) -> None:
            if hides:
                self._row_and_more(at)
            else:
                self.body(at)

        def some(i: Value) -> None:
            first = self.moved(place, i, loop)
            for k in range(TOGETHER):
                row(self.moved(first, k, loop))

        if whole:
            b.loop(0, whole, TOGETHER, some)
        for k in range(whole, last):
            row(self.moved(place, k, loop))
        self.body(self.moved(place, last, loop))

    def _hides(self, loop: Loop) -> bool:
        """Whether a row may be stored with what is none of it, because the next row is written over that."""
        plan, nest = self.plan, self.nest
        plain = self.what is None and plan.rows.is_straight and not (nest.zero or nest.fill)
        odd = plan.piece & (plan.piece - 1) and plan.piece % 8 == 0 and plan.piece > LANE_BITS
        return bool(plain and odd) and loop.dst == plan.piece and self.machine.vector == LINE

    def _row_and_more(self, place: Place) -> None:
        """A short row and zeros behind it: one vector, of which no more is loaded than the row."""
        b, size = self.b, self.plan.piece // 8
        kind = vector(1 << (size - 1).bit_length(), I8)
        mask = b.bitcast(constant(integer(kind.count), (1 << size) - 1), vector(kind.count, I1))
        given = place.src, constant(I32, 1), mask, constant(kind, 0)
        self._claim(place, size)
        b.store(b.call_value(kind, f"llvm.masked.load.{kind.mangled}.p0", *given), place.dst, 1)

    def body(self, place: Place) -> None:
        """One row: whole vectors, then what is left, then the zeros that follow."""
        if self.plan.is_padded:
            self._padded(place)
            return
        total, piece = self.plan.rows.extent, self._piece()
        inner = self.plan.rows.loops[0].extent
        together = UNROLL if self.plan.rows.is_straight else inner // math.gcd(inner, piece)
        turn = together * piece
        whole = total // turn * turn

        def some(i: Value) -> None:
            for k in range(together):
                self._copy(self._at(self._at(place, i), k * piece), k * piece, piece, True)

        def rest() -> None:
            for at, count in self._left(whole, total, piece):
                self._copy(self._at(place, at), at, count, at % piece == 0 and count == piece)

        if self.plan.shared is self.plan.rows.loops[-1]:
            self._share(whole, total, turn, some, rest)
            return
        if whole:
            self.b.loop(0, whole, turn, some)
        rest()
        for at, count in _halves(total, total + self.nest.fill, piece):
            self._zeros(self._at(place, at), count)

    def _padded(self, place: Place) -> None:
        """A short row and its zeros: put together, converted and stored as one vector."""
        b, loop, total = self.b, self.plan.rows.loop, self.plan.rows.extent
        room, whole = 1 << (total - 1).bit_length(), self.plan.total
        row = poison(self.vector(room, max(8, self.nest.read)))
        for at, count in _halves(0, total, room):
            part = self.load_raw(self.moved(place, at, loop), count)
            wide = b.shuffle(part, [k if k < count else -1 for k in range(room)])
            picks = [room + k - at if at <= k < at + count else k if k < at else -1 for k in range(room)]
            row = b.shuffle(row, picks, wide) if at else wide
        if self.what is not None:
            row = self.value(row, place, self.lanes(loop, room))
        self._claim(place, whole * self.nest.write // 8)
        self.put(b.shuffle(row, [k if k < total else room for k in range(whole)], 0), place.dst)

    def _share(
        self, whole: int, total: int, turn: int, some: Callable[[Value], None], rest: Callable[[], None]
    ) -> None:
        """Threads share the row: the range counts turns of its last loop, and is cut at whole turns here."""
        b, per = self.b, total // self.plan.rows.loops[-1].extent
        first, end = (b.mul(b.udiv(b.mul(x, per), turn), turn) for x in self.shared)
        b.when(b.icmp("slt", first, end), lambda: b.loop(first, end, turn, some))
        b.when(b.icmp("eq", self.shared[1], self.plan.extent), rest)

    def _at(self, place: Place, index: Operand) -> Place:
        """The place of an element of the row; where rows repeat each other, tables stay where they are."""
        loop = self.plan.rows.loops[0]
        if not self.plan.rows.is_straight:
            loop = Loop(loop.extent, (loop.src, *(0 for _ in loop.tables), loop.dst))
        return self.moved(place, index, loop)

    def _piece(self) -> int:
        """Elements that are copied at a time: a vector of the narrower side, at most four of the other."""
        bits = 8 * self.machine.vector
        narrow, wide = sorted((max(8, self.nest.read), max(8, self.nest.write)))
        piece = max(min(bits // narrow, 4 * bits // wide), 1)
        return DEALT if piece == DEALT // 2 and self._deals_nibbles else piece

    @property
    def _deals_nibbles(self) -> bool:
        """Whether two registers of bytes become one of 4-bit elements, and are only then put in order."""
        return self.nest.write == 4 and self.nest.read == WORD_BITS and self.deals == 4 and not self.plan.late

    def _left(self, start: int, total: int, piece: int) -> Iterator[tuple[int, int]]:
        """Pieces of the last elements.

        One larger piece may end with the row, over what is written already; not where old values are added.
        """
        least = 2 if 4 in (self.nest.read, self.nest.write) else 1
        at = start
        while at < total:
            left = total - at
            count = piece if left >= piece else max(1 << (left.bit_length() - 1), least)
            if count != left and left < piece and total >= 2 * count and not self.nest.adds:
                count = min(piece, 2 * count)
                at = total - count
            yield at, count
            at += count

    def _copy(self, place: Place, first: int, count: int, aligned: bool) -> None:
        if self.nest.zero:
            self._zeros(place, count, aligned)
            return
        loop = self.plan.rows.loops[0]
        lanes = self.lanes(loop, count)
        if not self.plan.rows.is_straight:
            lanes = [[(first + lane) % loop.extent * t for lane in range(count)] for t in loop.tables]
        if self.asks:
            for at in range(0, count * self.nest.read // 8, LINE):
                self.prefetch(place.src, self.asks + at)
        what = self.what
        if what is not None and self._deals_nibbles and count == DEALT:
            value = self.value(self.load_raw(place, count), place, lanes, dealt=True)
            self._claim(place, count // 2)
            self.store_raw(joined(self.b, value, what.dst), place.dst, aligned)
            return
        if what is not None and self._widens(count):
            value = words(self.b, place.src, count, what.src)
        else:
            value = self.load(place, count, lanes)
        self._claim(place, count * self.nest.write // 8)
        self.store(value, place, lanes, aligned)

    def _widens(self, count: int) -> bool:
        """Whether 4-bit elements that become floats are words at once, see :func:`.nibbles.words`."""
        real = self.what is not None and self.what.dst.is_float and self.plan.late
        return real and self.nest.read == 4 and self.machine.is_avx2 and count % NIBBLES == 0

    def _zeros(self, place: Place, count: int, aligned: bool = False) -> None:
        size = count * self.nest.write // 8
        self.store_raw(constant(vector(size, I8), 0), place.dst, aligned)


def _halves(start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Powers of two that cover a range."""
    while start < end:
        count = min(most, 1 << ((end - start).bit_length() - 1))
        yield start, count
        start += count
