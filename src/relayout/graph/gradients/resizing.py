"""Other sizes: interpolation is a product with a matrix along each axis, its gradient one with the transpose.

The matrix comes of the operator's own definition, of unit vectors: so every mode and every rule for where
elements lie is differentiated alike. Where each element is just repeated, gradients are sums of blocks.
"""

from __future__ import annotations

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient
from relayout.graph.graph import Array
from relayout.graph.operators import OPERATORS

__all__: list[str] = []


@gradient("Resize")
def resize(r: Reverse) -> str:
    """Axis by axis."""
    dims, wanted, dy = r.dims(r.x), r.dims(r.y), r.dy
    rank = len(dims)
    axes = [k % rank for k in r.attributes["axes"] or range(rank)]
    for place, axis in enumerate(axes):
        matrix = _matrix(r, place, dims[axis])
        if matrix.shape[1] != wanted[axis]:
            raise LayoutError(f"axis {axis} has {wanted[axis]} elements, not {matrix.shape[1]}")
        if matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, np.eye(len(matrix))):
            dy = _multiplied(r, dy, matrix, axis)
    return dy


def _matrix(r: Reverse, place: int, size: int) -> Array:
    """How much of each element along an axis is in each of the result's."""
    a = dict(r.attributes)
    if a["keep_aspect_ratio_policy"] != "stretch":
        raise LayoutError("a Resize has a gradient where each axis has a size or a scale of its own")
    corners = r.data(1) if r.input(1) else None
    if corners is not None and corners.size:
        corners = corners.reshape(2, -1)[:, place]
    given = [
        r.data(k).reshape(-1)[place : place + 1] if r.input(k) and r.data(k).size else None for k in (2, 3)
    ]
    unit = np.eye(size, dtype=r.writing.dtype(r.x))
    define = OPERATORS["Resize"]
    a["axes"] = [1]
    made, none = (define(one, corners, *given, **a) for one in (unit, np.zeros_like(unit[:1])))
    several = [one[0] if isinstance(one, tuple) else one for one in (made, none)]
    return np.asarray(several[0] - several[1])


def _multiplied(r: Reverse, dy: str, matrix: Array, axis: int) -> str:
    """A value multiplied by a matrix along an axis."""
    dims = r.dims(dy)
    size, wide = matrix.shape
    times = wide // size if size and wide % size == 0 else 0
    if times and np.array_equal(matrix, np.eye(size).repeat(times, 1)):
        blocks = r.reshaped(dy, (*dims[:axis], size, times, *dims[axis + 1 :]))
        return r.sum(blocks, [axis + 1])
    behind = len(dims) - 1 - axis
    if behind == 0:
        return str(r("MatMul", dy, r.writing.constant(np.ascontiguousarray(matrix.T))))
    if behind == 1:
        return str(r("MatMul", r.writing.constant(matrix), dy))
    flat = r.reshaped(dy, (*dims[: axis + 1], int(np.prod(dims[axis + 1 :]))))
    made = r("MatMul", r.writing.constant(matrix), flat)
    return r.reshaped(str(made), (*dims[:axis], size, *dims[axis + 1 :]))
