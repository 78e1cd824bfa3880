"""Elements by index: gradients are added up where they came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__ = ["put_back"]


@gradient("Gather")
def gather(r: Reverse) -> str:
    """Rows of ``dy`` added to rows of zeros; those of an index for padding are zeros themselves."""
    x, indices = r.inputs
    dims, dy, padding = r.dims(x), r.dy, int(r.attributes["padding_idx"])
    axis = int(r.attributes["axis"]) % len(dims)
    if padding >= 0:
        known = r("Equal", indices, r.writing.number(padding, indices))
        known = r.reshaped(known, (*r.dims(indices), *(1 for _ in dims[axis + 1 :])))
        dy = r("Where", known, r.number(0), dy)
    return put_back(r, dy, dims, axis, indices)


def put_back(r: Reverse, dy: str, dims: Sequence[int], axis: int, indices: str) -> str:
    """The gradient of what indices have taken along an axis: along the first one, others moved if need be."""
    many = r.dims(indices)
    rank = len(many)
    if axis:  # the axes of the indices to the front
        order = (*range(axis, axis + rank), *range(axis), *range(axis + rank, rank + len(dims) - 1))
        dy = r("Transpose", dy, perm=order)
    turned = (dims[axis], *dims[:axis], *dims[axis + 1 :])
    zeros = r("Expand", r.number(0), r.integers(*turned))
    places = r.reshaped(indices, (*many, 1))
    made = r("ScatterND", zeros, places, dy, reduction="add")
    if axis:
        back = (*range(1, axis + 1), 0, *range(axis + 1, len(dims)))
        made = r("Transpose", made, perm=back)
    return str(made)


@gradient("TopK")
def largest(r: Reverse) -> str:
    """To the elements that were taken."""
    zeros = r("Expand", r.number(0), r.integers(*r.dims(r.x)))
    axis = r.attributes["axis"]
    return str(r("ScatterElements", zeros, r.node.outputs[1], r.dy, axis=axis, reduction="add"))


@gradient("GatherElements")
def gather_elements(r: Reverse) -> str:
    """Elements of ``dy`` added to zeros."""
    zeros = r("Expand", r.number(0), r.integers(*r.dims(r.x)))
    return str(r("ScatterElements", zeros, r.inputs[1], r.dy, axis=r.attributes["axis"], reduction="add"))


@gradient("GatherND")
def gather_nd(r: Reverse) -> str:
    """Parts of ``dy`` added to zeros; axes of batches are coordinates like others, which count up."""
    places, batch = r.inputs[1], int(r.attributes["batch_dims"])
    if batch:
        *many, _ = r.dims(places)
        counted = np.moveaxis(np.indices(many)[:batch], 0, -1)
        places = r("Concat", r.writing.constant(counted.astype(r.writing.dtype(places))), places, axis=-1)
    zeros = r("Expand", r.number(0), r.integers(*r.dims(r.x)))
    return str(r("ScatterND", zeros, places, r.dy, reduction="add"))


@gradient("ScatterND", "ScatterElements")
def scatter(r: Reverse) -> list[str | None]:
    """Data that was replaced has no part in the result; updates have what stands in their places."""
    reduction = r.attributes["reduction"]
    if reduction not in ("none", "add"):
        raise LayoutError(f"a {r.node.operator} with reduction {reduction!r} has no gradient")
    indices, updates = r.inputs[1:3]
    given = {"axis": r.attributes["axis"]} if r.node.operator == "ScatterElements" else {}
    first: str | None = r.dy
    if reduction == "none":
        zeros = r("Expand", r.number(0), r.integers(*r.dims(updates)))
        first = r(r.node.operator, r.dy, indices, zeros, **given) if r.wants(0) else None
    taken = "GatherElements" if given else "GatherND"
    return [first, None, r(taken, r.dy, indices, **given) if r.wants(2) else None]
