"""All else, an element at a time: ``elements``."""

from __future__ import annotations

from collections.abc import Iterator

from relayout.ir.types import constant
from relayout.kernels.copy.base import Kernel, Place, writes
from relayout.kernels.copy.cost import ELEMENT_CYCLES
from relayout.kernels.copy.plan import LINE_BITS, Facts, Plan, costing, one_of, runs, shared_of
from relayout.kernels.copy.problem import Move

__all__ = ["Elements", "ElementsPlan", "plans"]


class ElementsPlan(Plan):
    """One element after the other."""

    kind = "elements"


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Every nest without zeros behind its rows can be moved so; not offered where ``rows`` has a plan."""
    inner, outer = runs(nest)
    rows = outer is not None and (inner is outer or nest.zero)
    if not (nest.fill or rows):
        one = one_of(nest)
        made = ElementsPlan(nest, one, one, nest.loops, shared_of(nest.loops))
        yield from costing(made, facts, ELEMENT_CYCLES * LINE_BITS / nest.write)


@writes(ElementsPlan)
class Elements(Kernel):
    """An element at a time."""

    def body(self, place: Place) -> None:
        """One element."""
        lanes = [[0]] * len(self.nest.tables)
        if self.nest.zero:
            self.store_raw(constant(self.vector(1, self.nest.write), 0), place.dst)
        else:
            self.store(self.load(place, 1, lanes), place, lanes)
