"""Transposition of squares whose sides are a line: every line is read once, and written once.

A tile of a :class:`~relayout.kernels.copy.tiles.Transpose` has 16 bytes of each of its rows, so that a line
of the source is loaded in four pieces, and has to stay in the L1 cache until the last of them. Here a row of
a tile is a line, loaded at once. 64 rows of 64 bytes, 32 of half words or 16 of words are turned over in
registers: within lanes first, as tiles are, 16 bytes by 16 rows at a time, and then lanes by lanes::

    rows of the source, a line each              a line each of the destination
    r0 .. r15   A0 | A1 | A2 | A3                A0 | B0 | C0 | D0   columns 0 to 15
    r16 .. r31  B0 | B1 | B2 | B3       ->       A1 | B1 | C1 | D1          16 to 31
    r32 .. r47  C0 | C1 | C2 | C3                A2 | B2 | C2 | D2          32 to 47
    r48 .. r63  D0 | D1 | D2 | D3                A3 | B3 | C3 | D3          48 to 63

That takes six shuffles for a line of bytes (five of half words, four of words) where tiles of lanes take four
(three, two) and three insertions. What it saves are loads, and everything that depends on how far rows are
apart: where they fall into few sets of the L1 cache nothing has to stay there.

Lines are read one after the other, each from another row, and written likewise: no processor sees a stream in
either. So squares ask for the lines of the source that later ones read, and for those of the destination that
the next one writes.

It goes down the rows, as :mod:`.patches` does, so lines of the destination that two squares share are still
in the L1 cache; what is left of rows and columns is done as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log2

from relayout.ir.builder import Operand
from relayout.ir.types import Value
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import INSTRUCTION_CYCLES, SCATTERED_LINE_CYCLES, instructions, squaring
from relayout.kernels.copy.network import squared
from relayout.kernels.copy.patches import Patched, PatchedPlan
from relayout.kernels.copy.plan import LINE_BITS, Facts, Plan, costing
from relayout.kernels.copy.problem import Move
from relayout.kernels.copy.tiles import Tile
from relayout.kernels.copy.tiling import TransposePlan, by_columns, by_rows, tiled
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE

__all__ = ["Squares", "SquaresPlan", "plans"]

ROWS_AHEAD = 64  # rows further down, as many lines later: a tenth of a microsecond and more
FEW_ROWS = 16  # of a square that is soon done: four of them further down would be four times as many pages


@dataclass(frozen=True)
class SquaresPlan(PatchedPlan):
    """Squares down the rows."""

    kind = "squares"
    puts_together = False
    across: bool = False
    """Whether the line of a row that is prefetched is the next one, and not that of a row further down."""

    def choices(self) -> Iterator[str]:
        """Whether lines are asked for, and which."""
        yield "prefetched" if self.prefetch else "not prefetched"
        if self.prefetch:
            yield "across" if self.across else "down"


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Planes of a square at least, of elements that are moved as they are, by registers of a line."""
    made = tiled(nest)
    if type(made) is not TransposePlan or nest.conversion is not None or facts.machine.vector != LINE:
        return
    nest, columns, rows = made.nest, made.columns, made.rows
    side = LINE_BITS // nest.write
    if nest.read != nest.write or nest.write < 8 or nest.fill or nest.pair:
        return
    if min(rows.extent, columns.extent) < side:
        return
    one = SquaresPlan(nest, columns, rows, made.around, made.shared, block=side)
    again = -(-columns.extent // side) * side / columns.extent  # of lines that are not full
    cost = again * instructions(1, log2(side)) + squaring(columns, rows, side)
    far = 4 * nest.bytes > facts.machine.holds  # less than half of that stays, beside others
    one = by_rows(by_columns(one))
    for prefetch in (far, not far):
        more = INSTRUCTION_CYCLES if prefetch else SCATTERED_LINE_CYCLES * far
        for across in (True, False)[: 1 + prefetch * rows.is_straight]:
            made = replace(one, prefetch=prefetch, across=prefetch and across)
            odd = across != (side <= FEW_ROWS or not rows.is_straight)
            yield from costing(made, facts, cost + more + INSTRUCTION_CYCLES * (prefetch and odd))


@writes(SquaresPlan)
class Squares(Patched):
    """Squares down the rows, then the next columns; tiles of lanes where there are none."""

    plan: SquaresPlan

    def prepare(self) -> None:
        """Choose the tiles: a square, and those for what is left over."""
        super().prepare()
        self.ahead = False
        side = self.plan.block
        self.square = self.main._replace(rows=side, columns=side, used=side)

    def down_the_rows(
        self, place: Place, column: Operand, strips: Sequence[int], first: Operand, last: Operand
    ) -> None:
        """All squares below each other."""
        if not isinstance(column, Value):  # the last columns
            super().down_the_rows(place, column, strips, first, last)
            return
        side = self.plan.block

        def squares(at: Place, *given: Value) -> None:
            i, start, stop = given
            self.b.loop(start, stop, side, lambda row: self._placed_tile(at, self.square, i, row, side))

        self.call("squares", place, (column, first, last), squares, spills=True)

    def _ask_ahead(self, source: Callable[[int], Value], row: int) -> None:
        """Ask for a line that is wanted some time later: the next one of a row, or of one further down."""
        if self.plan.across:
            self.prefetch(source(row), LINE)
        else:
            self.prefetch(source(ROWS_AHEAD + row), 0)

    def tile(
        self,
        tile: Tile,
        source: Callable[[int], Value],
        target: Callable[[int], Value],
        tables: tuple[Value, ...],
        valid: int,
    ) -> None:
        """Turn over a tile; a square by whole lines."""
        if tile is not self.square:
            super().tile(tile, source, target, tables, valid)
            return
        side = self.plan.block

        def row(k: int) -> Value:
            if self.plan.prefetch:
                self._ask_ahead(source, k)
            return self.b.load(self.vector(side), source(k), 1)

        for k, line in squared(self.b, (row(k) for k in range(side)), self.nest.read):
            self.store_raw(line, target(k))
            if self.plan.claims:
                self.claim(self.b.gep(target(k), LINE))
