"""Largest and smallest elements where pixels are neighbours: down the columns, then along the rows.

A window of 3x3 has nine elements, of which its neighbours have six. The largest of a column is found once for
all windows that share it, and kept in the L1 cache as a row, with the lowest number on both sides in the
place of padding. Rows of results are made several at a time, so that most elements are read once or twice::

    rows of the source      a b c d e f             of results, one below the other
    b and c, d and e        .  bc  de  .
    columns                 a bc    bc d            c de    de f
    along a row             x x x                   three loads from the row of columns, one element apart

For 3x3 that is 1.25 loads and 1.6 comparisons down, and two along, in place of nine and eight. It does more
for floating point of 16 bits, whose bits are made integers in the order of the numbers when they are loaded
(:class:`~relayout.ir.lanes.Lanes`), and made numbers when results are stored: rows of columns are integers.

With stride 2 all pixels of a row of columns are combined as with stride 1, and every other one is picked from
two registers last.

Rows of padding are replaced by the nearest row that is none. It is in the same window, so no maximum changes,
and all windows have as many rows.

Rows of results are written one after the other: several at once, a vector each, are no stream to a processor,
and take twice as long where they go to memory.

Traps: a window that is all padding has no such row, and is left to others. The last vector of a row steps
back, as do the last rows of results: they are written twice, with the same elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout.ir.builder import Function, Operand
from relayout.ir.lanes import Lanes
from relayout.ir.types import Value, vector
from relayout.kernels.reduce.blocks import in_tasks
from relayout.loops.nest import Loop, Nest
from relayout.ops.reductions import REDUCTIONS
from relayout.targets.machine import LINE, Machine

if TYPE_CHECKING:
    from relayout.kernels.reduce.axis import Axis
    from relayout.kernels.reduce.window import Window

__all__ = ["Maxima", "suits"]

ROWS = {1: 8, 2: 4}  # of results that are made together, by the stride; of f32 half as many
MOST_TAPS = 16  # of a window along an axis, which are written out
MOST_BYTES = 1 << 14  # of the rows of columns together
LEAST_ROWS = 2
LEAST_LANES = 4  # of a vector of a row of results


def suits(window: Window, scheme: str, axes: tuple[Axis, Axis, Axis], length: int, machine: Machine) -> bool:
    """Whether windows overlap, and rows are contiguous.

    Parameters
    ----------
    window : Window
        What is computed.
    scheme : str
        Where lanes would come from otherwise.
    axes : tuple of Axis
        Depth, height and width.
    length : int
        Channels that are neighbours.
    machine : Machine
        For whom: with registers of 64 bytes columns of these rows are carried, or rows combined first.
    """
    d, h, x = axes
    plain = REDUCTIONS[window.reduction].repeats and not (window.post_ops or window.before)
    if (
        not machine.is_avx2
        or not plain
        or window.src is not window.dst
        or not (scheme == "pixels" or window.raw)
    ):
        return False
    size = window.src.bits // 8
    if (x.src, x.dst) != (length * size, length * size) or (d.kernel, d.front) != (1, 0):
        return False
    for axis in (h, x):
        if axis.dilation != 1 or axis.kernel > MOST_TAPS or not axis.is_filled:
            return False
    if x.shared <= 0 or x.stride not in ROWS or x.out * length < LEAST_LANES:
        return False
    whole = length & (length - 1) == 0
    return (x.stride == 1 or whole) and _rows(window, axes, length) >= min(h.out, LEAST_ROWS)


def _rows(window: Window, axes: tuple[Axis, Axis, Axis], length: int) -> int:
    """Rows of results that are made together."""
    _, h, x = axes
    most = ROWS.get(h.stride, 1) // (1 if window.whole else 2)
    return min(h.out, most, MOST_BYTES // (_columns(x, length) * _held(window)))


def _held(window: Window) -> int:
    """Bytes of an element of a row of columns."""
    return window.src.bits // 8 if window.whole else 4


def _columns(x: Axis, length: int) -> int:
    """Elements of a row of columns: with padding, and what is read behind it."""
    return max(x.front + x.size, x.reach + x.stride - 1) * length


class Maxima:
    """Writes the loops of one block of images and channels.

    Parameters
    ----------
    b : Function
        What is being written.
    window : Window
        What is computed.
    axes : tuple of Axis
        Depth, height and width.
    block : Nest
        Images and channels.
    vectors : Lanes
        How elements are held.
    """

    def __init__(
        self, b: Function, window: Window, axes: tuple[Axis, Axis, Axis], block: Nest, vectors: Lanes
    ) -> None:
        self.b, self.block, self.v = b, block, vectors
        self.reduction = REDUCTIONS[window.reduction]
        self.d, self.h, self.x = axes
        self.group, self.size, self.held = block.length, window.src.bits // 8, _held(window)
        self.many = _rows(window, axes, block.length)
        self.row = _columns(self.x, self.group) * self.held  # bytes of a row of columns
        room = b.alloca(self.many * self.row, LINE)
        self.rooms = [b.gep(room, k * self.row) for k in range(self.many)]

    def write(self) -> None:
        """All tasks: some rows of results each."""
        b, block, d, h = self.b, self.block, self.d, self.h
        self._padded()
        around = [*block.around, Loop(d.out, (d.stride * d.src, d.dst))]

        def task(src: Value, dst: Value, group: Value) -> None:
            first = b.smin(b.mul(group, self.many), h.out - self.many)
            self._down(self._sources(src, first))
            self._along(b.gep(dst, first, h.dst))

        in_tasks(b, block.starts, around, task, -(-h.out // self.many))

    def _padded(self) -> None:
        """What is no element in rows of columns: the same for all of them, so it is written once."""
        b, x, end = self.b, self.x, _columns(self.x, self.group)
        lowest = self.v.constant(self.v.nearest(self.reduction.identity), 1)
        for room in self.rooms:

            def one(k: Value, room: Value = room) -> None:
                b.store(lowest, b.gep(room, k, self.held), self.held)

            b.loop(0, x.front * self.group, 1, one)
            b.loop((x.front + x.size) * self.group, end, 1, one)

    def _sources(self, src: Value, first: Value) -> list[Value]:
        """The rows of the source that some rows of results are made of."""
        b, h = self.b, self.h
        begin, rows = h.begin(b, first), range((self.many - 1) * h.stride + h.kernel)
        return [b.gep(src, h.nearest(b, b.add(begin, k)), h.src) for k in rows]

    def _both(self, values: Sequence[Value]) -> Value:
        return self.reduction.emit(self.v, values[0], values[1:]) if len(values) > 1 else values[0]

    def _down(self, rows: Sequence[Value]) -> None:
        """The rows of columns."""
        b, x, kernel, stride = self.b, self.x, self.h.kernel, self.h.stride
        total = x.size * self.group
        lanes = min(self.v.most, 1 << (total.bit_length() - 1))

        following = b.gep(rows[-1], self.h.src)  # a piece for each vector: no stream to hardware
        piece = self.many * stride * lanes * self.size

        def some(k: Value) -> None:
            at = b.smin(k, total - lanes)
            for line in range(0, piece, LINE):
                b.prefetch(b.gep(b.gep(following, at, self.many * stride * self.size), line))
            loaded = [self.v.load(b.gep(row, at, self.size), lanes) for row in rows]
            columns: list[Value] = []
            for j in range(0, self.many, 2):
                if stride == 1 and kernel > 1 and j + 1 < self.many:
                    shared = self._both(loaded[j + 1 : j + kernel])
                    columns += [self._both([shared, loaded[j]]), self._both([shared, loaded[j + kernel]])]
                    continue
                for one in range(j, min(j + 2, self.many)):
                    columns.append(self._both(loaded[one * stride : one * stride + kernel]))
            for column, room in zip(columns, self.rooms, strict=True):
                b.store(column, b.gep(b.gep(room, x.front * self.group * self.held), at, self.held), 1)

        b.loop(0, total, lanes, some)

    def _along(self, dst: Value) -> None:
        """The rows of results."""
        b, x, group = self.b, self.x, self.group
        total = x.out * group
        lanes = min(self.v.most, 1 << (total.bit_length() - 1))
        picks = x.stride > 1 and group < lanes

        def combined(room: Value, place: Operand) -> Value:
            at = b.gep(room, place, self.held)
            kind = vector(lanes, self.v.element)
            return self._both(
                [b.load(kind, b.gep(at, tap * group * self.held), 1) for tap in range(x.kernel)]
            )

        def row(number: Value) -> None:
            room, start = b.gep(self.rooms[0], number, self.row), b.gep(dst, number, self.h.dst)

            def some(k: Value) -> None:
                at = b.smin(k, total - lanes)
                first = b.mul(at, x.stride)
                found = combined(room, first)
                if picks:
                    other = combined(room, b.add(first, lanes))
                    pixels = range(0, 2 * lanes // group, 2)
                    found = b.shuffle(found, [p * group + j for p in pixels for j in range(group)], other)
                self.v.store(b.gep(start, at, self.size), found)

            def pixel(k: Value) -> None:
                for skip in self._parts(lanes):
                    found = combined(room, b.add(b.mul(k, x.stride * group), skip))
                    self.v.store(b.gep(b.gep(start, skip * self.size), k, x.dst), found)

            if x.stride == 1 or picks:
                b.loop(0, total, lanes, some)
            else:
                b.loop(0, x.out, 1, pixel)

        b.loop(0, self.many, 1, row)

    def _parts(self, lanes: int) -> list[int]:
        """Where the vectors of a pixel begin."""
        return [min(k, self.group - lanes) for k in range(0, self.group, lanes)]
