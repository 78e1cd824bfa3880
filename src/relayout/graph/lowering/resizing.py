"""Resizing: copies for whole factors, otherwise a matrix for each axis.

Interpolation is linear along an axis, whatever its mode: element o of the result is a sum over elements i of
the source, with weights that depend on sizes alone. The definition, applied to the identity, is that matrix.
In memory the axis lies between those outside and those inside of it, and its product with the matrix is a
convolution of width 1 whose channels are the elements along the axis::

    dst[outside, o, inside] = sum over i of matrix[o, i] * src[outside, i, inside]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.graph.lowering.case import Case, Operand, label, row_major
from relayout.graph.lowering.movement import enlarged
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.graph.operators import OPERATORS
from relayout.layout.descriptor import MemoryDesc, any_format

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []

MULTIPLIED = 1e-11  # seconds of a product and a sum


@rule("Resize")
def resized(case: Case) -> Iterable[Way] | None:
    """Elements several times over, or interpolated."""
    return enlarged(case) or _interpolated(case)


def _interpolated(case: Case) -> Iterator[Way] | None:
    """A product along each axis that changes."""
    src, out, a = case.inputs[0], case.out, case.attributes
    if src is None or src.data is not None or src.dtype != "f32" or case.chain:
        return None
    if any(one is not None and one.data is None for one in case.inputs[1:]) or 0 in (*src.dims, *out.dims):
        return None
    if a["coordinate_transformation_mode"] == "tf_crop_and_resize":
        return None
    if a["keep_aspect_ratio_policy"] != "stretch":
        return None
    matrices = dict(_matrices(case, src))
    if not matrices:
        return None

    def make(site: Site) -> Value:
        value = site.value(src)
        dst = site.way.outputs[0]
        # Axes in the order of memory; a view of the source, which may be a part of something larger.
        order = _order(dst)
        found = site.transposed(value, order)
        dims = list(found.desc.dims)
        for axis, matrix in matrices.items():
            place = order.index(axis)
            outside, inside = prod(dims[:place]), prod(dims[place + 1 :])
            dims[place] = matrix.shape[0]
            found = _multiplied(site, found, matrix, outside, inside)
        found = site.reshaped(found, dims)
        return site.transposed(found, tuple(np.argsort(order).tolist()))

    def ways() -> Iterator[Way]:
        cost, done = 0.0, list(src.dims)
        for axis, matrix in matrices.items():
            cost += MULTIPLIED * prod(done) * matrix.shape[0]
            done[axis] = matrix.shape[0]
        known = dict.fromkeys(desc for desc in case.formats(src) if desc.layout.is_plain and desc.tag)
        for desc in known or [row_major(src.dims, src.dtype)]:
            target = label(MemoryDesc(out.dims, src.dtype, desc.tag or row_major(out.dims, src.dtype).layout))
            yield Way({src.name: desc}, (target,), cost + moving(desc, target), make, "matrices")

    return ways()


def _order(desc: MemoryDesc) -> tuple[int, ...]:
    """The axes from the outermost in memory to the innermost."""
    strides = desc.layout.strides
    return tuple(sorted(range(len(strides)), key=lambda axis: (-abs(strides[axis]), axis)))


def _multiplied(site: Site, value: Value, matrix: NDArray[np.float32], outside: int, inside: int) -> Value:
    """A product along the axis between those outside and those inside."""
    out, size = matrix.shape
    if inside == 1:
        value = site.reshaped(value, (outside, size))
        weights, given = MemoryDesc((size, out), "f32", any_format), matrix.T
        made: Any = primitives.Matmul(value.desc, weights, None, row_major((outside, out), "f32"))
    else:
        value = site.reshaped(value, (outside, size, inside))
        weights, given = MemoryDesc((out, size, 1), "f32", any_format), matrix[:, :, None]
        made = primitives.Convolution(value.desc, weights, None, row_major((outside, out, inside), "f32"))
    return site.add(made, value, np.ascontiguousarray(given))


def _matrices(case: Case, src: Operand) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """For each axis that changes what it is multiplied by, those that shrink first."""
    scales, sizes, rank = case.constant(2), case.constant(3), len(src.dims)
    axes = numbers(case.attributes["axes"] or range(rank))
    given = {axis % rank: k for k, axis in enumerate(axes)}
    attributes = tuple((name, one) for name, one in case.attributes.items() if name != "axes")
    for axis in sorted(given, key=lambda axis: case.out.dims[axis] / src.dims[axis]):
        scale = float(scales[given[axis]]) if scales is not None and scales.size else None
        if scale == 1 or (sizes is not None and case.out.dims[axis] == src.dims[axis]):
            continue
        yield axis, _matrix(src.dims[axis], case.out.dims[axis], scale, attributes)


@lru_cache(maxsize=256)
def _matrix(
    before: int, after: int, scale: float | None, attributes: tuple[tuple[str, Any], ...]
) -> NDArray[np.float32]:
    """What the definition makes of the identity, axis 0 resized."""
    scales = None if scale is None else np.array([scale, 1], np.float32)
    sizes = None if scale is not None else np.array([after, before], np.int64)
    (found,) = OPERATORS["Resize"](
        np.eye(before, dtype=np.float32), None, scales, sizes, outputs=1, **dict(attributes)
    )
    return np.asarray(found, np.float32)
