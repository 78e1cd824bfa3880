"""Resizing: a product with a matrix along each axis, so its gradient is that with the transposed one."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient
from relayout.graph.graph import Array
from relayout.graph.operators.resizing import resize as definition

__all__: list[str] = []


@gradient("Resize")
def resize(r: Reverse) -> str:
    """From the elements of the result to those that they were read from, axis by axis."""
    if r.attributes["keep_aspect_ratio_policy"] != "stretch":
        raise LayoutError("a Resize that keeps the aspect ratio has no gradient")
    dims, dy = r.dims(r.x), r.dy
    rank = len(dims)
    axes = [k % rank for k in r.attributes["axes"] or range(rank)]
    for place, k in enumerate(axes):
        by = _matrix(r, place, len(axes), dims[k])
        if np.array_equal(by, np.eye(dims[k])):
            continue
        order = (*(axis for axis in range(rank) if axis != k), k)
        back = tuple(int(axis) for axis in np.argsort(order))
        last = k == rank - 1
        moved = dy if last else r("Transpose", dy, perm=order)
        made = r("MatMul", moved, r.writing.constant(by.T.astype(r.writing.dtype(r.x))))
        dy = made if last else r("Transpose", made, perm=back)
    return dy


def _matrix(r: Reverse, place: int, many: int, size: int) -> Array:
    """What an axis is multiplied by: what becomes of the rows of the identity."""
    scales, sizes = (r.data(k) if r.input(k) else None for k in (2, 3))
    one: dict[str, Any] = {**r.attributes, "axes": (1,), "extrapolation_value": 0.0}
    region = r.data(1)[[place, many + place]] if r.input(1) and r.data(1).size else None
    given = [None if data is None or not data.size else data[[place]] for data in (scales, sizes)]
    found: Array = definition(np.eye(size), region, *given, **one)
    return found
