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

That is no stream, which the processor would see and read in advance. So tiles may ask for what the patch
below them reads, each for its share: the first one for a quarter of the rows of tiles 5 to 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relayout.ir.builder import Operand
from relayout.ir.types import Value
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import INSTRUCTION_CYCLES, L2_LINE_CYCLES, near, patching
from relayout.kernels.copy.plan import LANE_BITS, LINE_BITS, Facts, Plan, costing
from relayout.kernels.copy.problem import Move
from relayout.kernels.copy.tiles import ENOUGH, Tile, Transpose
from relayout.kernels.copy.tiling import TransposePlan, by_columns, by_rows, shuffling, tiled
from relayout.records import dataclass, replace

__all__ = ["Patched", "PatchedPlan", "plans"]


@dataclass(frozen=True)
class PatchedPlan(TransposePlan):
    """The same, a patch after the other down the rows."""

    kind = "patched"
    asks: bool = False
    """Whether there is a choice: to ask for the lines of the next patch, or not to."""

    def choices(self) -> Iterator[str]:
        """Whether these lines are asked for."""
        if self.asks:
            yield "prefetched" if self.prefetch else "not prefetched"

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
    machine = facts.machine
    far = nest.bytes > machine.l2 and not near(nest, machine)
    # Squares, where there are more registers, have a choice of their own.
    asks = rows.is_straight and rows.extent >= 2 * line and machine.registers < ENOUGH
    one = replace(by_rows(by_columns(one)), asks=asks)
    for prefetch in (far, not far) if asks else (False,):
        cost = shuffling(one) + patching(columns, rows, line, one.width, far and not prefetch)
        cost += prefetch * (INSTRUCTION_CYCLES if far else L2_LINE_CYCLES)
        yield from costing(replace(one, prefetch=prefetch), facts, cost)


@writes(PatchedPlan)
class Patched(Transpose):
    """Patches down the rows, then the next columns."""

    plan: PatchedPlan

    def prepare(self) -> None:
        """Choose the tiles; lines are asked for here, and not strip by strip."""
        super().prepare()
        self.ahead = False

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
        shares = len(range(*strips))

        def turned(row: Operand, u: Value) -> None:
            if self.plan.asks and self.plan.prefetch:
                self._ask_below(place, column, row, b.udiv(b.sub(u, start), step), tile.rows // shares)
            self.strip(place, tile, b.add(column, u), row, b.add(row, tile.rows))

        start, stop, step = strips
        b.loop(first, last, tile.rows, lambda row: b.loop(start, stop, step, lambda u: turned(row, u)))

    def _ask_below(self, place: Place, column: Operand, row: Operand, number: Operand, rows: int) -> None:
        """Ask for a share of the lines of the patch below one that begins at a column and a row.

        Behind the last row there may be nothing, which is no harm.
        """
        below = self.b.add(row, self.main.rows)
        source = self._sources(
            self.step(place.src, column, self.nest.read), self.b.add(below, self.b.mul(number, rows))
        )
        for k in range(rows):
            self.b.prefetch(source(k))
