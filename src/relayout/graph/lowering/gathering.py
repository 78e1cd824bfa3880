"""Elements by index: Gather, GatherElements, GatherND, and the scatters that add or replace.

What a constant picks with a regular step is a slice (:func:`.movement.picked`); all else is a copy with the
indices as an operand, each of which is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from relayout.dtypes import dtype as as_dtype
from relayout.graph.lowering.case import Case, Operand, label, row_major
from relayout.graph.lowering.movement import picked
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.indexing import Indexing, elements, points, taken
from relayout.primitives.indexing import ADDED, INDICES, Gather, Scatter

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []

CHECKED = 2e-9  # seconds that an index takes


def _operands(case: Case, count: int) -> list[Operand] | None:
    """The inputs; None where they are none for kernels."""
    found = [one for one in case.inputs if one is not None]
    if (
        case.chain
        or len(found) != count
        or not case.moving
        or any(0 in one.dims for one in (*found, case.out))
    ):
        return None
    if found[1].dtype not in INDICES or as_dtype(found[0].dtype).bits < 8:
        return None
    return found


@rule("Gather")
def gather(case: Case) -> Iterator[Way] | None:
    """Slices along an axis."""
    view = picked(case)
    if view is not None:
        return view
    given = _operands(case, 2)
    if given is None:
        return None
    data, indices = given
    axis = int(case.attributes["axis"]) % len(data.dims)
    how = taken(len(data.dims), len(indices.dims), axis, bool(case.attributes["from_end"]))
    return _gathers(case, data, indices, how)


@rule("GatherElements")
def gather_elements(case: Case) -> Iterator[Way] | None:
    """An element for each index."""
    given = _operands(case, 2)
    if given is None:
        return None
    axis = int(case.attributes["axis"]) % len(given[0].dims)
    how = elements(len(given[0].dims), axis, bool(case.attributes["from_end"]))
    return _gathers(case, given[0], given[1], how)


@rule("GatherND")
def gather_nd(case: Case) -> Iterator[Way] | None:
    """Slices at points."""
    given = _operands(case, 2)
    if given is None:
        return None
    data, indices = given
    batch = int(case.attributes["batch_dims"])
    return _gathers(case, data, indices, points(len(data.dims), len(indices.dims), indices.dims[-1], batch))


def _gathers(case: Case, data: Operand, indices: Operand, how: Indexing) -> Iterator[Way] | None:
    """Data row-major, or in an order of axes that the result can have, too."""
    if not how.fits(data.dims, indices.dims):
        return None
    out = case.out

    def make(site: Site) -> Value:
        src, places = site.value(data), site.value(indices)
        dst, into = site.target(0, site.way.outputs[0])
        return site.add(Gather(how, src.desc, places.desc, dst), src, places, into=into)

    def ways() -> Iterator[Way]:
        usual = row_major(data.dims, data.dtype)
        for desc in dict.fromkeys((usual, *(case.formats(data) if data.data is None else ()))):
            target = row_major(out.dims, out.dtype)
            if desc != usual:
                same = [d if d >= 0 else how.coordinates[0] for d, _ in how.axes] == [*range(len(data.dims))]
                if not (same and desc.layout.is_plain and desc.tag is not None):
                    continue
                target = label(MemoryDesc(out.dims, out.dtype, desc.tag))
            read = {
                one.name: form for one, form in ((data, desc), (indices, _usual(indices))) if one.data is None
            }
            yield Way(read, (target,), moving(target, target) + CHECKED * prod(indices.dims), make, "gather")

    return ways()


@rule("ScatterElements")
def scatter_elements(case: Case) -> list[Way] | None:
    """An element replaced for each index."""
    given = _operands(case, 3)
    if given is None:
        return None
    axis = int(case.attributes["axis"]) % len(given[0].dims)
    return _scatters(case, given, elements(len(given[0].dims), axis, bool(case.attributes["from_end"])))


@rule("ScatterND")
def scatter_nd(case: Case) -> list[Way] | None:
    """Slices replaced at points."""
    given = _operands(case, 3)
    if given is None:
        return None
    data, indices, _ = given
    from_end = bool(case.attributes["from_end"])
    how = points(len(data.dims), len(indices.dims), indices.dims[-1], from_end=from_end)
    return _scatters(case, given, how)


def _scatters(case: Case, given: list[Operand], how: Indexing) -> list[Way] | None:
    data, indices, updates = given
    adds = case.attributes["reduction"] == "add"
    if case.attributes["reduction"] not in ("none", "add") or (adds and data.dtype not in ADDED):
        return None
    if (adds and data.kind.kind == "b") or not how.fits(data.dims, indices.dims):
        return None
    if how.dims(data.dims, indices.dims) != updates.dims:
        return None

    def make(site: Site) -> Value:
        src, places, new = (site.value(one) for one in given)
        dst, into = site.target(0, site.way.outputs[0])
        made = Scatter(how, src.desc, places.desc, new.desc, dst, adds=adds)
        return site.add(made, src, places, new, into=into)

    target = row_major(case.out.dims, case.out.dtype)
    read = {one.name: _usual(one) for one in given if one.data is None}
    cost = moving(target, target, _usual(updates)) + CHECKED * prod(indices.dims)
    return [Way(read, (target,), cost, make, "scatter")]


def _usual(operand: Operand) -> MemoryDesc:
    return row_major(operand.dims, operand.dtype)
