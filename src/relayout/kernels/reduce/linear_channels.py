"""The second step of a linear resampling in f32 where channels are neighbours, eight and more: with AVX2.

Columns of a row of results are f32 in the L1 cache (:mod:`~.linear_pairs`), pixel by pixel. A result is
between two pixels, whose channels are the lanes of vectors. Twice the size, two pixels of results are around
each column, whose weights are constants ::

    columns             a           b           c
    results           a   a b   a b   b c   b c ...         1/4 a + 3/4 b and 3/4 b + 1/4 c for b

bf16 are rounded as words of two (:class:`~relayout.ir.lanes.Lanes`), so that columns have elements of even
number first: within 16 channels, or within the eight of a pixel, two of which are rounded at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relayout.ir.builder import Function
from relayout.ir.types import FLOAT, I64, PTR, Value, vector
from relayout.ir.vectors import join
from relayout.kernels.reduce.linear_pairs import LANES, Pairs
from relayout.loops.nest import Nest

if TYPE_CHECKING:
    from relayout.kernels.reduce.linear import Linear

__all__ = ["Channels", "between_of"]

ENTRY_BYTES = 24  # bytes of an entry of the table of columns: two places and two weights
TWO = 2 * LANES
FOUR = 4 * LANES  # f32 of which packs make a register of bytes
SPLIT = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
"""Of even lanes of two pixels of eight, and odd ones, those of each pixel; or the other way round."""


def between_of(b: Function, name: str, k: Value) -> tuple[list[Value], list[Value]]:
    """An entry of a table: two places in bytes, and their weights."""
    at = b.gep(Value(f"@{name}", PTR), k, ENTRY_BYTES)
    places = [b.load(I64, b.gep(at, 8 * side)) for side in (0, 1)]
    return places, [b.load(FLOAT, b.gep(at, 16 + 4 * side)) for side in (0, 1)]


class Channels(Pairs):
    """Writes the loops of one block.

    Parameters
    ----------
    b, made, block
        Those of :class:`~.linear_pairs.Pairs`.
    columns : str
        The name of the table of columns.
    """

    def __init__(self, b: Function, made: Linear, block: Nest, columns: str) -> None:
        each, width = block.length, made.width
        near = width.dst == each * made.dst.bits // 8
        two = each == LANES and width.size > 1 and width.out > 1 and near
        pairs = made.src.name == made.dst.name == "bf16" and (each % TWO == 0 or two)
        super().__init__(b, made, block, pairs, pairs)
        self.doubles = self.doubles and each % LANES == 0
        self.columns, self.split = columns, pairs and each == LANES
        sizes = [FOUR] if made.dst.bits == 8 else []
        whole = next((lanes for lanes in (*sizes, TWO, LANES) if each % lanes == 0), 0)
        self.lanes = whole or min((*sizes, TWO)[0], 1 << (each - 1).bit_length())

    def loaded(self, pointer: Value, lanes: int) -> Value:
        """Elements of a row of the source as f32, in the order that columns have."""
        x = super().loaded(pointer, lanes)
        return self.b.shuffle(x, SPLIT) if self.split else x

    def along(self, dst: Value, columns: Value) -> None:
        """A row of results."""
        b, width = self.b, self.made.width
        if self.doubles:
            b.loop(0, width.size, 1, lambda k: self._around(dst, columns, k))
        elif self.split:
            b.loop(0, width.out, 2, lambda k: self._two(dst, columns, b.smin(k, width.out - 2)))
        else:
            b.loop(0, width.out, 1, lambda k: self._pixel(dst, columns, k))

    def _around(self, dst: Value, columns: Value, k: Value) -> None:
        """The results around a column."""
        b, size, step = self.b, self.made.dst.bits // 8, self.made.width.dst
        to = b.gep(dst, k, 2 * step)

        def some(i: Value | int, valid: int) -> None:
            found = self.doubled(columns, b.add(b.mul(k, self.each), i), self.lanes)
            if self.split:
                self._stored(to, *found)
                return
            for y, more in zip(found, (0, step), strict=True):
                self.out.store(b.gep(b.gep(to, more), i, size), y)

        self._chunks(some)

    def _two(self, dst: Value, columns: Value, k: Value) -> None:
        """Two pixels of eight bf16."""
        b = self.b
        several = [self._places(columns, b.add(k, more)) for more in (0, 1)]
        found = [self._between(*places, 0, LANES) for places in several]
        self._stored(b.gep(dst, k, self.made.width.dst), *found)

    def _pixel(self, dst: Value, columns: Value, k: Value) -> None:
        """One pixel."""
        b, size = self.b, self.made.dst.bits // 8
        places, to = self._places(columns, k), b.gep(dst, k, self.made.width.dst)

        def some(i: Value | int, valid: int) -> None:
            self.out.store(b.gep(to, i, size), self._between(*places, i, self.lanes), valid)

        self._chunks(some)

    def _chunks(self, some: Callable[[Value | int, int], None]) -> None:
        """The channels of a pixel: where each vector of them begins, and how many lanes it has."""
        whole = self.each // self.lanes * self.lanes
        if whole == self.lanes:
            some(0, self.lanes)
        elif whole:
            self.b.loop(0, whole, self.lanes, lambda i: some(i, self.lanes))
        if self.each > whole:
            some(whole, self.each - whole)

    def _places(self, columns: Value, k: Value) -> tuple[list[Value], list[Value]]:
        """Between which columns a pixel lies, and their weights."""
        places, weights = between_of(self.b, self.columns, k)
        return [self.b.gep(columns, place) for place in places], weights

    def _between(self, places: list[Value], weights: list[Value], i: Value | int, count: int) -> Value:
        """So many results between two columns."""
        b = self.b
        low, high = (b.load(vector(count, FLOAT), b.gep(place, i, 4), 4) for place in places)
        first, second = (b.splat(weight, count) for weight in weights)
        return self.finished(b.fmuladd(high, second, b.fmul(low, first)))

    def _stored(self, to: Value, one: Value, two: Value) -> None:
        """Two pixels of eight, even lanes first within each."""
        self.out.store(to, self.b.shuffle(join(self.b, [one, two]), SPLIT))
