"""Gradients of what is done with rows, as programs: softmax and normalisations.

The kernel (:mod:`relayout.kernels.reduce.gradients`) wants all tensors to have the same neighbours. Where
they have not, those that differ from the source are reordered; where rows are fused with other axes, all are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import dense_like, row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.primitives.drafting import Draft, if_possible, kernel_step
from relayout.records import replace

if TYPE_CHECKING:
    from relayout.kernels.reduce.gradients import Gradient
    from relayout.primitives.program import Program

__all__ = ["row_gradient"]


@locked
@if_possible
def row_gradient(
    what: Gradient,
    descs: Mapping[str, MemoryDesc],
    axes: Sequence[int],
    scale: MemoryDesc | None = None,
    of_rows: Sequence[tuple[str, Layout]] = (),
    in_cache: bool = False,
) -> Program | None:
    """The program of a gradient along some axes; None where there is no kernel.

    Parameters
    ----------
    what : Gradient
    descs : mapping of str to MemoryDesc
        The source, what comes in, the workspace if there is one, and the destination, in this order, by the
        names of their buffers, with the dims that they are seen with.
    axes : sequence of int
        Those of a row.
    scale : MemoryDesc, optional
        With as many axes, of one element along those that it does not have.
    of_rows : sequence of (str, Layout)
        The buffers with one element for a row, and where it is for each element.
    in_cache : bool
        Whether there is none either where going over the rows of a task twice does not pay, or something
        would have to be reordered.
    """
    from relayout.kernels.reduce.gradients import ENTRY, UNROLL, module, planned
    from relayout.primitives.summing import leaves, stays
    from relayout.targets.machine import host

    names = list(descs)
    source, coming, *masks, target = names
    src = descs[source]
    near = dense_like(src.layout)
    far = row_major(src.dims)
    for layout in (None, near, far):
        seen = {
            name: desc
            if layout is None or desc.layout.same_bytes(layout) or (layout is near and name == source)
            else desc.with_layout(layout)
            for name, desc in descs.items()
        }
        table = None
        if scale is not None:
            like = dense_like(seen[source].layout, scale.dims)
            table = MemoryDesc(scale.dims, "f32", like)
            table = scale if scale.dtype.name == "f32" and scale.layout.same_bytes(like) else table
        tables = [(seen[name].layout, 1) for name in masks]
        tables += [(views.broadcast_to(table.layout, src.dims), 4)] if table is not None else []
        layouts = [one for _, one in of_rows]
        one, two, three = (seen[name] for name in (source, coming, target))
        found = planned(what, one, two, three, axes, tables, layouts)
        if found is not None:
            break
    if found is None:
        return None
    found = replace(found, stream=leaves(found.rows, sum(seen[name].nbytes for name in names)))
    if in_cache:
        again = sum(descs[name].dtype.bits // 8 for name in names if name != target)
        size = again + descs[target].dtype.bits // 8
        if seen != descs or not stays(found.rows, 2 * UNROLL, size, again):
            return None
    draft = Draft()
    at = {n: draft.read(descs[n], seen[n], n, f"{n} in order") for n in names if n != target}
    at[target] = draft.write(descs[target], seen[target], target, f"{target} in order")
    scales = []
    if table is not None and scale is not None:
        scales = [draft.read(scale, table, "scale", "scale in order")]
    size = sum(desc.nbytes for desc in descs.values())
    key, write = ("gradient", found), partial(module, found)
    operands = [at[coming], *(at[name] for name in masks), *scales, *(name for name, _ in of_rows)]
    draft.add(kernel_step(key, ENTRY, write, at[source], at[target], size, operands))
    return draft.program(f"{found.lanes(host())} lanes" + "".join(f", {name}" for name in draft.scratch))
