"""Transposition of short rows that end with zeros: :class:`Hollow`.

Three inputs in blocks of four, 16 outputs each, are one line of the destination for every tap::

    o0: i0 i1 i2 .   o1: i0 i1 i2 .   ...   o15: i0 i1 i2 .

Four elements at a time, the line would be written in 16 pieces, and between two of them all other taps come:
lines a multiple of 1 KiB apart have left the L1 cache by then. So the zeros count as rows, too, and those
of all outputs are joined to a tile as long as the line, in which every fourth row is loaded from nowhere.
"""

from __future__ import annotations

from collections.abc import Callable

from relayout.ir.builder import Operand
from relayout.ir.types import Value, constant
from relayout.kernels.copy.base import NOWHERE, Place, writes
from relayout.kernels.copy.tiles import Transpose
from relayout.kernels.copy.tiling import HollowPlan
from relayout.records import replace
from relayout.targets.machine import Machine

__all__ = ["Hollow"]

MOST = 32  # rows of a tile, unless it has to be a whole line; no group is longer


@writes(HollowPlan)
class Hollow(Transpose):
    """A transpose with zeros among its rows: the last ones of every group.

    Groups are powers of two and shorter than a tile, so that all tiles begin with a group.
    """

    plan: HollowPlan
    has_zeros = True

    def __init__(self, plan: HollowPlan, machine: Machine, streaming: bool, name: str) -> None:
        self.valid = plan.group - plan.nest.fill  # rows of a group that are data
        super().__init__(replace(plan, nest=replace(plan.nest, fill=0)), machine, streaming, name)

    def prepare(self) -> None:
        """As for any transpose; rows of zeros are not prefetched, and the others are few.

        Tiles are shorter, too: bytes compile a third faster so, and in the caches a line may be completed in
        two goes.
        """
        super().prepare()
        self.ahead = False
        if not self.stream:
            self.main = self._tile_of(min(self.main.rows, MOST))

    def _sources(self, src: Value, row: Operand) -> Callable[[int], Value]:
        """Where rows begin; :data:`NOWHERE` for zeros."""
        source = super()._sources(src, row)
        return lambda k: source(k) if k % self.plan.group < self.valid else NOWHERE

    def tile_row(self, place: Place, columns: int) -> Value:
        """The columns of a tile in one of its rows."""
        zeros = constant(self.vector(columns), 0)
        return zeros if place.src is NOWHERE else super().tile_row(place, columns)
