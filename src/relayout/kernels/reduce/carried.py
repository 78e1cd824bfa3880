"""Largest elements of windows that overlap: each column is combined once.

Windows of 3x3 at every other pixel share a column with the next ones. So the columns of a pixel that the next
pixel has, too, are carried over, and 6 elements are read for a result in place of 9::

    pixel 0     a b c
    pixel 1         c d e          a letter: the elements of a column of the window
    pixel 2             e f g

Rows of a window that are padding are replaced by the nearest one that is none. That changes no maximum, and
all windows have as many rows, whose addresses are known when a row of results begins.

**16-bit floating point in three maxima.** As integers, bf16 and f16 without a sign are in the order of the
numbers, with NaN on top, and those with a sign are in the opposite order, below. To make integers in the
order of all numbers takes three instructions for each element. It is less to find three integers of each
window::

    first = max, signed      of elements from 0 on the largest, or NaN without a sign; else of any sign
    second = min, signed     of elements below 0 the largest
    third = max, unsigned    above -infinity: a NaN with a sign

The result is ``first`` where that has no sign, else ``second``; and NaN where either of ``first`` and
``third`` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from relayout.ir.builder import Builder, Function
from relayout.ir.lanes import INFINITE, Lanes
from relayout.ir.types import I16, I64, Value, constant, vector
from relayout.ir.vectors import paired, pieces_of, store_pieces
from relayout.ops.reductions import Reduction

if TYPE_CHECKING:
    from relayout.kernels.reduce.axis import Axis

__all__ = ["INTEGERS", "MOST_ROWS", "MOST_VECTORS", "Elements", "Raw", "carries", "carry"]

MOST_ROWS = 16  # of a window: their addresses are in registers, or nearly
INTEGERS = 3  # that are found of elements of 16 bits
MOST_VECTORS = 4  # of a pixel, which are carried, each up to three times

Values = list[Value]


def carries(axes: Sequence[Axis], vectors: int) -> bool:
    """Whether columns of windows are shared, and no window is all padding."""
    *others, x = axes
    rows = prod(axis.kernel for axis in others)
    return (
        x.dilation == 1
        and x.shared > 0
        and rows <= MOST_ROWS
        and x.kernel <= MOST_ROWS
        and vectors <= MOST_VECTORS
        and all(axis.is_filled for axis in others)
    )


class Elements:
    """Elements as vectors hold them."""

    def __init__(self, vectors: Lanes, reduction: Reduction) -> None:
        self.vectors, self.reduction = vectors, reduction

    def load(self, at: Value, count: int) -> Values:
        """What is carried of some elements."""
        return [self.vectors.load(at, count)]

    def both(self, one: Values, other: Values) -> Values:
        """The same of two sets of elements."""
        return [self.reduction.emit(self.vectors, one[0], other)]

    def store(self, to: Value, values: Values) -> None:
        """Write the results."""
        self.vectors.store(to, values[0])


class Raw:
    """Maxima of bf16 or f16 by three integers, as their bits are.

    >>> from relayout.targets.machine import machine
    >>> b = Builder(machine("x86-64-v4"))
    >>> raw, x, y = Raw(b, "bf16"), Value("%x", vector(32, I16)), Value("%y", vector(32, I16))
    >>> raw.both([x] * 3, [y] * 3)
    [<32 x i16> %v1, <32 x i16> %v2, <32 x i16> %v3]
    """

    def __init__(self, b: Builder, kind: str) -> None:
        self.b, self.top = b, INFINITE[kind]

    def load(self, at: Value, count: int) -> Values:
        """What is carried of some elements."""
        return [self.b.load(vector(count, I16), at, 2)] * INTEGERS

    def both(self, one: Values, other: Values) -> Values:
        """The same of two sets of elements."""
        names = "smax", "smin", "umax"
        return [self.b.intrinsic(name, x, y) for name, x, y in zip(names, one, other, strict=True)]

    def store(self, to: Value, values: Values) -> None:
        """Write the results; there is one NaN."""
        b, top, (first, second, third) = self.b, self.top, values
        nan = top | (top & ~(top << 1)) >> 1
        strange = b.or_(b.icmp("sgt", first, top), b.icmp("ugt", third, constant(third.type, top - 0x8000)))
        found = b.select(b.icmp("slt", first, 0), second, first)
        store_pieces(b, b.select(strange, nan, found), to, pieces_of(0, found.type.count, 0, 2))


def carry(
    b: Function,
    elements: Elements | Raw,
    x: Axis,
    rows: Sequence[Value],
    dst: Value,
    inside: tuple[int, int],
    places: Sequence[tuple[int, int]],
    count: int,
) -> None:
    """Write the pixels all of whose columns are elements.

    Parameters
    ----------
    b : Function
        What is being written.
    elements : Elements or Raw
        What is carried, and how it is combined.
    x : Axis
        Along which windows overlap.
    rows : sequence of Value
        The address of each row of the windows, at the first column of the first window.
    dst : Value
        Where the first result lies.
    inside : tuple of int
        The first of these pixels, and the one behind the last.
    places : sequence of tuple of int
        Where the vectors of a pixel lie in source and destination, in bytes.
    count : int
        Elements of a vector.
    """
    shared = x.shared

    def column(index: Value) -> list[Values]:
        """One column of all rows: of each vector what is carried."""
        at = [b.gep(row, index, x.src) for row in rows]
        return [
            paired([elements.load(b.gep(one, place), count) for one in at], elements.both)
            for place, _ in places
        ]

    def pixel(i: Value, given: Values) -> Values:
        found = [_apart(column, len(places)) for column in _apart(given, shared)]
        begin = b.mul(i, x.stride)
        found += [column(b.add(begin, k)) for k in range(shared, x.kernel)]
        to = b.gep(dst, i, x.dst)
        for k, (_, place) in enumerate(places):
            elements.store(b.gep(to, place), paired([some[k] for some in found], elements.both))
        return _flat(found[x.stride :])

    first, last = inside
    if last > first:
        begin = b.mul(constant(I64, first), x.stride)
        before = [column(b.add(begin, k)) for k in range(shared)]
        b.repeat(first, last, 1, _flat(before), pixel)


def _flat(given: Sequence[list[Values]]) -> Values:
    return [one for column in given for vector in column for one in vector]


def _apart(given: Values, parts: int) -> list[Values]:
    each = len(given) // parts
    return [given[k * each : (k + 1) * each] for k in range(parts)]
