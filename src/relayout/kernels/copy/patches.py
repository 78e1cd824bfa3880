"""Transposition patch by patch: what a line of each row holds is used up before the next rows are read.

A strip of a :class:`~relayout.kernels.copy.tiles.Transpose` is 16 bytes wide, so that a line of the source is
wanted by four strips. Between two of them lie all rows of a block. Where columns are no whole lines, blocks
must be high, or lines of the destination that two blocks share are fetched twice; where they are high, lines
of the source are. Patches are a line wide and a tile high, and go down the rows::

    columns ->
    +----+----+----+----+          +--
    | 1  | 2  | 3  | 4  |          | 21     tiles in the order in which they are turned over:
    +----+----+----+----+          +--      a line of the source, four tiles wide, is read once,
    | 5  | 6  | 7  | 8  |          | 25     and a line of the destination that ends within a patch
    +----+----+----+----+          +--      is in the L1 cache when the next one goes on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relayout.ir.builder import Operand
from relayout.ir.types import Value
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import patching
from relayout.kernels.copy.plan import LANE_BITS, LINE_BITS, Facts, Plan, costing
from relayout.kernels.copy.problem import Move
from relayout.kernels.copy.tiles import Tile, Transpose
from relayout.kernels.copy.tiling import TransposePlan, by_columns, by_rows, shuffling, tiled

__all__ = ["Patched", "PatchedPlan", "plans"]


class PatchedPlan(TransposePlan):
    """The same, a patch after the other down the rows."""

    kind = "patched"

    def choices(self) -> Iterator[str]:
        """There is one way to do it."""
        return iter(())

    @property
    def width(self) -> int:
        """Columns of a patch: a line of the source."""
        return LINE_BITS // self.nest.read


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Planes of more than a tile either way, whose tiles take a part of a line."""
    made = tiled(nest)
    if type(made) is not TransposePlan or made.nest.fill or made.nest.pair:
        return
    nest, columns, rows = made.nest, made.columns, made.rows
    line, strip = LINE_BITS // made.mid, LANE_BITS // made.mid
    if min(nest.read, nest.write) < 8 or rows.extent < line or columns.extent < 2 * strip:
        return
    one = PatchedPlan(nest, columns, rows, made.around, made.shared, block=line)
    if one.width < 2 * strip:
        return
    far = nest.bytes > facts.machine.l2
    cost = shuffling(one) + patching(columns, rows, line, one.width, far)
    yield from costing(by_rows(by_columns(one)), facts, cost)


@writes(PatchedPlan)
class Patched(Transpose):
    """Patches down the rows, then the next columns."""

    plan: PatchedPlan

    def plane(self, place: Place) -> None:
        """All rows and columns."""
        b, tile = self.b, self.main
        whole = self.plan.total // tile.rows * tile.rows
        ends = self.ends_of(whole)
        width = max(
            tile.columns, min(self.plan.width, self.plan.columns.extent) // tile.columns * tile.columns
        )

        def patches(column: Operand, _: int) -> None:
            first = 0
            if not isinstance(column, Value):  # the last ones, some of whose columns are done
                first = (width - (self.plan.columns.extent % width or width)) // tile.columns * tile.columns
            strips = first, width, tile.columns
            self.over_rows(whole, lambda *span: self.down_the_rows(place, column, strips, *span))
            self.at_the_end(lambda: self.unstreamed(lambda: end(column, range(*strips))))

        def end(column: Operand, strips: range) -> None:
            for last, row in ends:
                for k in range(strips.start, strips.stop, last.columns):
                    down(last, b.add(column, k), row)

        def down(tile: Tile, column: Operand, row: Operand) -> None:
            self.strip(place, tile, column, row, self.b.add(row, tile.rows))

        self.columns(width, patches)
        if not ends:
            self.at_the_end(lambda: self.sweep_left_over(place, whole))

    def down_the_rows(
        self, place: Place, column: Operand, strips: Sequence[int], first: Operand, last: Operand
    ) -> None:
        """The patches below each other, from one row to another; ``strips``: a range of columns."""
        b, tile = self.b, self.main

        def turned(row: Operand, u: Value) -> None:
            self.strip(place, tile, b.add(column, u), row, b.add(row, tile.rows))

        start, stop, step = strips
        b.loop(first, last, tile.rows, lambda row: b.loop(start, stop, step, lambda u: turned(row, u)))
