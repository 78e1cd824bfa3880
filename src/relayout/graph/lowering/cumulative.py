"""Running sums along an axis, in steps that double what is summed.

::

    x           a  b    c      d
    step 1      a  ab   bc     cd         each and the one before it
    step 2      a  ab   abc    abcd       and the two before those

So an axis of 512 elements takes 9 passes over the tensor, each of which is an addition of two parts of the
one before. Masks and positions, of which networks make running sums, are small and lie in the L1 cache.
Integers wrap around, so the order of additions does not matter; that of real numbers is another one than the
definition's, and rounds less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relayout import primitives
from relayout.graph.lowering.case import Case, row_major
from relayout.graph.lowering.expressions import kind_of_operand
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.ops.expressions import Expression

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []

SUMMED = ("s64", "s32", "s16", "s8", "u8", "f32", "f64")


@rule("CumSum")
def cumulated(case: Case) -> list[Way] | None:
    """Along an axis that is known."""
    src, axis = case.inputs[0], case.constant(1)
    if src is None or src.data is not None or axis is None or case.chain or 0 in src.dims or not src.dims:
        return None
    kind, along = kind_of_operand(src), int(axis.reshape(-1)[0]) % len(src.dims)
    count = src.dims[along]
    if kind is None or src.dtype not in SUMMED or kind == "bool" or count < 2:
        return None
    back, apart = bool(case.attributes["reverse"]), bool(case.attributes["exclusive"])
    add = Expression.of((kind, kind), [("add", kind, (0, 1))])
    desc = row_major(src.dims, src.dtype)

    def make(site: Site) -> Value:
        def part(value: Value, start: int, size: int) -> Value:
            """Some elements along the axis, counted from its end where sums go back."""
            first = count - start - size if back else start
            dims = _with(src.dims, along, size)
            offsets = [first if k == along else 0 for k in range(len(dims))]
            return site.sequence.view(value, value.desc.submemory(dims, offsets))

        def copied(what: Value, to: Value) -> None:
            site.add(primitives.Reorder(what.desc, to.desc), what, into={"dst": to})

        found, done = site.value(src), 1
        while done < count:
            made, rest = site.place(desc), count - done
            copied(part(found, 0, done), part(made, 0, done))
            one, two, dst = part(found, done, rest), part(found, 0, rest), part(made, done, rest)
            site.add(primitives.Pointwise(add, [one.desc, two.desc], dst.desc), one, two, into={"dst": dst})
            found, done = made, 2 * done
        if apart:
            made = site.place(desc)
            zeros = np.zeros(_with(src.dims, along, 1), src.kind)
            copied(site.sequence.constant(zeros, "zeros"), part(made, 0, 1))
            copied(part(found, 0, count - 1), part(made, 1, count - 1))
            found = made
        return found

    cost = moving(desc, desc, desc) * (count - 1).bit_length()
    return [Way({src.name: desc}, (desc,), cost, make, "running sum")]


def _with(dims: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*dims[:axis], size, *dims[axis + 1 :])
