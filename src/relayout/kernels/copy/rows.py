"""Runs that are contiguous on both sides: ``rows``, ``lines`` and ``elements``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from relayout.ir.builder import Operand
from relayout.ir.types import I8, Value, constant, poison, vector
from relayout.ir.vectors import join_lanes
from relayout.kernels.copy.base import Kernel, Place
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE

__all__ = ["Elements", "Lines", "Rows"]

LONG_ROW_BYTES = 4096  # longer rows are prefetched
PREFETCH_BYTES = 8 * LINE  # how far ahead of the loads
UNROLL = 4  # vectors copied in one turn of the loop


class Rows(Kernel):
    """Whole runs in the widest vectors; zeros likewise."""

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
        far = total * self.nest.read // 8 > LONG_ROW_BYTES

        def some(i: Value) -> None:
            for k in range(together):
                self._copy(self._at(self._at(place, i), k * piece), k * piece, piece, True, far)

        def rest() -> None:
            for at, count in self._left(whole, total, piece):
                self._copy(self._at(place, at), at, count, at % piece == 0 and count == piece, False)

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
        return max(min(bits // narrow, 4 * bits // wide), 1)

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

    def _copy(self, place: Place, first: int, count: int, aligned: bool, far: bool) -> None:
        if self.nest.zero:
            self._zeros(place, count, aligned)
            return
        loop = self.plan.rows.loops[0]
        lanes = self.lanes(loop, count)
        if not self.plan.rows.is_straight:
            lanes = [[(first + lane) % loop.extent * t for lane in range(count)] for t in loop.tables]
        value = self.load(place, count, lanes)
        if far:
            self.prefetch(place.src, PREFETCH_BYTES)
        self.store(value, place, lanes, aligned)

    def _zeros(self, place: Place, count: int, aligned: bool = False) -> None:
        size = count * self.nest.write // 8
        self.store_raw(constant(vector(size, I8), 0), place.dst, aligned)


def _halves(start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Powers of two that cover a range."""
    while start < end:
        count = min(most, 1 << ((end - start).bit_length() - 1))
        yield start, count
        start += count


class Lines(Kernel):
    """Short rows that neighbour each other in the destination, put together to whole vectors."""

    def body(self, place: Place) -> None:
        """The rows of one block."""
        b, loop, bits = self.b, self.plan.blocked, self.nest.write
        assert loop is not None
        row = self.plan.rows.extent * bits // 8
        size = max(self.machine.vector, row)
        per = LINE // row
        first, last = self.span

        def load(at: Place) -> Value:
            return b.load(vector(row, I8), at.src)

        def one(o: Value) -> None:
            at = self.moved(place, o, loop)
            b.store(load(at), at.dst)

        def line(o: Value) -> None:
            at = self.moved(place, o, loop)
            parts = [load(self.moved(at, k, loop)) for k in range(per)]
            together = size // row
            for k in range(0, per, together):
                self.store_raw(join_lanes(b, parts[k : k + together]), b.gep(at.dst, k * row))

        whole = loop.extent // per * per  # blocks begin at a line, and only the last can end within one
        if whole == loop.extent:
            b.loop(first, last, per, line)
            return
        end = b.smin(last, whole)
        b.when(b.icmp("slt", first, end), lambda: b.loop(first, end, per, line))
        rest = b.smax(first, whole)
        b.when(b.icmp("slt", rest, last), lambda: b.loop(rest, last, 1, one))

    def one_block(self, loop: Loop, place: Place) -> None:
        """The loops inside; the rows of the block are the body's."""
        self.loops(self.plan.around[self.plan.outer :], place)


class Elements(Kernel):
    """An element at a time."""

    def body(self, place: Place) -> None:
        """One element."""
        lanes = [[0]] * len(self.nest.tables)
        if self.nest.zero:
            self.store_raw(constant(self.vector(1, self.nest.write), 0), place.dst)
        else:
            self.store(self.load(place, 1, lanes), place, lanes)
