"""Linear resampling in f32 between pairs of rows: with AVX2.

What all ways along a row have in common (:mod:`~.linear_pixels`, :mod:`~.linear_channels`): between two
rows of the source lie one or more rows of results. Their columns are made first, so that elements of the two
are converted once for two rows of results ::

    twice the size      rows of results       0 | 1   2 | 3   4 | ...
                        between rows          0   0   1   1   2

Columns are f32 in the L1 cache. In front of them and behind them there is room for a pixel, or a register
that reaches too far.

Trap: registers that are loaded an element further than they were stored have to wait until both stores are
done, which for short rows was half of the time. So columns of the next pair are made in between, where both
are in the L1 cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relayout.dtypes import dtype
from relayout.ir.builder import Function, Operand, numbers_of, table
from relayout.ir.lanes import Lanes
from relayout.ir.types import FLOAT, I1, I64, PTR, Value, constant
from relayout.kernels.reduce.blocks import in_tasks
from relayout.loops.nest import Nest
from relayout.targets.machine import LINE

if TYPE_CHECKING:
    from relayout.kernels.reduce.linear import Between, Linear

__all__ = ["LANES", "Pairs", "between", "doubled", "together"]

LANES = 8  # f32 of a register
COLUMNS = 2 * LANES  # that are made at a time
WRITTEN_OUT = 8  # vectors of a row, in place of a loop
BEHIND = 4 * LANES  # columns behind the last one that may be read
TOGETHER = 2  # rows of results whose columns are made at a time
MOST_ROOM = 1 << 16  # bytes of columns, if it is more than one row
MOST_AHEAD = 1 << 14  # bytes of columns, if those of the next pair are made first, too
PAIRS_OF_ROWS = 8  # whose results are a task
ENTRY_BYTES = 48  # bytes of an entry of the table of pairs
F32 = dtype("f32")


def doubled(size: int) -> tuple[Between, ...]:
    """The columns of rows of so many pixels that become twice as long.

    >>> doubled(2)
    ((0, 0.5, 0, 0.5), (0, 0.75, 1, 0.25), (0, 0.25, 1, 0.75), (1, 0.5, 1, 0.5))
    """
    inside = [(k, w, k + 1, 1 - w) for k in range(size - 1) for w in (0.75, 0.25)]
    return ((0, 0.5, 0, 0.5), *inside, (size - 1, 0.5, size - 1, 0.5))


def together(made: Linear) -> int:
    """How many rows of results have their columns made at a time: two, if there is room."""
    most = max(made.width.size * block.length for block in made.blocks)
    return TOGETHER if 4 * TOGETHER * most <= MOST_ROOM else 1


def between(name: str, rows: Sequence[Between], step: int, most: int) -> tuple[str, int]:
    """The text of the table that says between which rows results lie; and how many entries it has.

    An entry is where two rows of the source are, in bytes, the first row of results and how many there are,
    ``most`` of them at most, and the weights of the first and the last of them.

    >>> between("rows", doubled(2), 64, 2)[1], between("rows", doubled(2), 64, 1)[1]
    (3, 4)
    """
    entries: list[tuple[int, list[Between]]] = []
    for k, row in enumerate(rows):
        last = entries[-1][1] if entries else []
        if 0 < len(last) < most and last[-1][::2] == row[::2]:
            last.append(row)
        else:
            entries.append((k, [row]))
    data = b""
    for first, found in entries:
        (one, _, two, _), weights = found[0], [w for row in (found[0], found[-1]) for w in row[1::2]]
        data += struct.pack("<4q4f", one * step, two * step, first, len(found), *weights)
    return table(name, numbers_of(data)), len(entries)


class Pairs:
    """Writes the loops of one block: pictures, pairs of their rows, columns; a row of results is abstract.

    Parameters
    ----------
    b : Function
        What is being written.
    made : Linear
        What is computed.
    block : Nest
        Images and channels.
    columns, results : bool
        Whether columns, and results, have bf16 of even number first (:class:`~relayout.ir.lanes.Lanes`).
    """

    def __init__(self, b: Function, made: Linear, block: Nest, columns: bool, results: bool) -> None:
        self.b, self.made, self.block = b, made, block
        self.into = Lanes(b, made.src, F32, pairs=columns)
        self.out = Lanes(b, F32, made.dst, pairs=results, near=made.stays_near)
        self.each = block.length
        self.size = made.width.size * self.each
        self.doubles = made.columns == doubled(made.width.size)
        self.front = -(-self.each // LANES) * LANES if self.doubles else 0
        """Columns of the room in front of the first one."""
        self.row = 4 * (self.front + -(-self.size // LANES) * LANES + max(self.front, BEHIND))
        self.together = together(made)
        self.both = self.together * self.row
        self.ahead = 2 * self.both <= MOST_AHEAD
        self.room = b.alloca(self.both * (1 + self.ahead), LINE)

    def along(self, dst: Value, columns: Value) -> None:
        """A row of results."""
        raise NotImplementedError

    def write(self, name: str, count: int) -> None:
        """All tasks, by the table of a name that has so many entries."""
        b, block = self.b, self.block

        def task(src: Value, dst: Value, group: Value) -> None:
            first = b.mul(group, PAIRS_OF_ROWS)
            end = b.smin(b.add(first, PAIRS_OF_ROWS), count)
            entries = b.gep(Value(f"@{name}", PTR), first, ENTRY_BYTES)

            def after_columns(k: Value) -> None:
                entry = b.gep(entries, k, ENTRY_BYTES)
                self._columns(src, entry, self.room)
                self._results(dst, entry, self.room)

            if not self.ahead:
                b.loop(0, b.sub(end, first), 1, after_columns)
                return
            self._columns(src, entries, self.room)

            def pair(k: Value) -> None:
                mine, other = (b.gep(self.room, b.and_(n, 1), self.both) for n in (k, b.add(k, 1)))
                entry = b.gep(entries, k, ENTRY_BYTES)
                b.when(
                    b.icmp("slt", b.add(b.add(first, k), 1), end),
                    lambda: self._columns(src, b.gep(entry, ENTRY_BYTES), other),
                )
                self._results(dst, entry, mine)

            b.loop(0, b.sub(end, first), 1, pair)

        in_tasks(b, block.starts, block.around, task, -(-count // PAIRS_OF_ROWS))

    def _columns(self, src: Value, entry: Value, room: Value) -> None:
        """The columns of results between two rows of the source."""
        b = self.b
        one, two, many = (b.load(I64, b.gep(entry, 8 * k)) for k in (0, 1, 3))
        rows, room = [b.gep(src, one), b.gep(src, two)], b.gep(room, 4 * self.front)
        several = b.icmp("sgt", many, 1) if self.together > 1 else constant(I1, 0)
        b.when(several, lambda: self._down(rows, entry, room, TOGETHER))
        b.when(b.not_(several), lambda: self._down(rows, entry, room, 1))
        if self.doubles:
            b.loop(0, many, 1, lambda k: self._repeated(b.gep(room, k, self.row)))

    def _results(self, dst: Value, entry: Value, room: Value) -> None:
        """The results between two rows of the source, of their columns."""
        b = self.b
        first, many = (b.load(I64, b.gep(entry, 8 * k)) for k in (2, 3))
        room = b.gep(room, 4 * self.front)

        def each(k: Value) -> None:
            self.along(b.gep(dst, b.add(first, k), self.made.height.dst), b.gep(room, k, self.row))

        b.loop(0, many, 1, each)

    def _down(self, rows: list[Value], entry: Value, room: Value, many: int) -> None:
        """The columns of so many rows of results."""
        b, read = self.b, self.made.src.bits // 8
        lanes = min(COLUMNS, 1 << (self.size.bit_length() - 1))
        weights = [b.splat(b.load(FLOAT, b.gep(entry, 32 + 4 * k)), lanes) for k in range(2 * many)]

        def some(at: Operand) -> None:
            low, high = (self.loaded(b.gep(row, at, read), lanes) for row in rows)
            for k in range(many):
                first, second = weights[2 * k : 2 * k + 2]
                y = b.fmuladd(high, second, b.fmul(low, first))
                b.store(y, b.gep(b.gep(room, at, 4), k * self.row), 4)

        self.in_vectors(lanes, some)

    def in_vectors(self, lanes: int, some: Callable[[Operand], None]) -> None:
        """Go through columns: so many at a time, the last of which step back. A few are written out."""
        b, last = self.b, self.size - lanes
        if self.size <= WRITTEN_OUT * lanes:
            for k in range(0, self.size, lanes):
                some(min(k, last))
        else:
            b.loop(0, self.size, lanes, lambda k: some(b.smin(k, last) if self.size % lanes else k))

    def loaded(self, pointer: Value, lanes: int) -> Value:
        """Elements of a row of the source as f32, in the order that columns have."""
        return self.into.load(pointer, lanes)

    def doubled(self, columns: Value, at: Operand, count: int) -> tuple[Value, Value]:
        """Results twice as close, around so many columns: in front of their middle, and behind it.

        In front of the first column and behind the last one are copies (:meth:`_repeated`).
        """
        b, kind = self.b, self.into.constant(0.0, count).type
        near = b.gep(columns, at, 4)
        left, middle, right = (b.load(kind, b.gep(near, 4 * k * self.each), 4) for k in (-1, 0, 1))
        found = [
            b.fmuladd(second, 1 - w, b.fmul(first, w))
            for first, w, second in ((left, 0.25, middle), (middle, 0.75, right))
        ]
        return self.finished(found[0]), self.finished(found[1])

    def finished(self, y: Value) -> Value:
        """Results with functions behind them."""
        for function in self.made.post_ops:
            y = function.emit(self.b, y)
        return y

    def _repeated(self, columns: Value) -> None:
        """Copies of the first pixel in front of columns, and of the last one behind them."""
        b, end = self.b, self.size - self.each
        lanes = min(self.each & -self.each, LANES)
        kind = self.into.constant(0.0, lanes).type

        def copied(k: Value) -> None:
            for first, to in ((0, -self.each), (end, self.size)):
                x = b.load(kind, b.gep(b.gep(columns, 4 * first), k, 4), 4)
                b.store(x, b.gep(b.gep(columns, 4 * to), k, 4), 4)

        b.loop(0, self.each, lanes, copied)
