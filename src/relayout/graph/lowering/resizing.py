"""Resizing: copies for whole factors, otherwise a matrix for each axis.

Interpolation is linear along an axis, whatever its mode: element o of the result is a sum over elements i of
the source, with weights that depend on sizes alone. The definition, applied to the identity, is that matrix.
In memory the axis lies between those outside and those inside of it, and its product with the matrix is a
convolution of width 1 whose channels are the elements along the axis::

    dst[outside, o, inside] = sum over i of matrix[o, i] * src[outside, i, inside]

Few elements of the matrix are not zero, all near its diagonal, so it is cut into bands of rows, each of which
meets a few elements of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.arrays import stored
from relayout.graph.lowering.case import Case, Operand, label, reshaped, row_major, unfused
from relayout.graph.lowering.movement import enlarged, sliced
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.graph.operators import OPERATORS
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []

MULTIPLIED = 1e-11  # seconds of a product and a sum
BAND = 28  # rows of a band: two tiles of matrix products
DENSE = 1.5  # times as many columns as a band has, from which on bands pay
VECTOR = 16  # elements that lie together, in whole vectors


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
        dst, into = site.target(0, site.way.outputs[0])
        # Axes in the order of memory; a view of the source, which may be a part of something larger.
        order = _order(site.way.outputs[0])
        found = site.transposed(value, order)
        dims = list(found.desc.dims)
        last = list(matrices)[-1]
        for axis, matrix in matrices.items():
            place = order.index(axis)
            outside, inside = prod(dims[:place]), prod(dims[place + 1 :])
            dims[place] = matrix.shape[0]
            target = row_major((outside, len(matrix), inside), src.dtype)
            seen = _seen(dst, order, target.dims) if into and axis == last else None
            if into and seen is not None:  # the last one writes where the result belongs
                _multiplied(site, found, matrix, site.sequence.view(into["dst"], seen))
                return into["dst"]
            found = _multiplied(site, found, matrix, site.place(target))
        found = site.reshaped(found, dims)
        return site.transposed(found, tuple(np.argsort(order).tolist()))

    def ways() -> Iterator[Way]:
        cost, done = 0.0, list(src.dims)
        for axis, matrix in matrices.items():
            bands = _bands(matrix)
            terms = bands[0].end - bands[0].begin if bands else matrix.shape[1]
            done[axis] = matrix.shape[0]
            cost += MULTIPLIED * prod(done) * terms
        known = dict.fromkeys(desc for desc in case.formats(src) if desc.layout.is_plain and desc.tag)
        for desc in known or [row_major(src.dims, src.dtype)]:
            target = label(MemoryDesc(out.dims, src.dtype, desc.tag or row_major(out.dims, src.dtype).layout))
            yield Way({src.name: desc}, (target,), cost + moving(desc, target), make, "matrices")

    return ways()


def _order(desc: MemoryDesc) -> tuple[int, ...]:
    """The axes from the outermost in memory to the innermost."""
    strides = desc.layout.strides
    return tuple(sorted(range(len(strides)), key=lambda axis: (-abs(strides[axis]), axis)))


def _seen(desc: MemoryDesc, order: tuple[int, ...], dims: tuple[int, ...]) -> MemoryDesc | None:
    """A tensor with its axes in an order, under other dims; None where no layout says it."""
    try:
        layout = unfused(reshaped(views.permute(desc.layout, order), dims))
    except LayoutError:
        return None
    return MemoryDesc(dims, desc.dtype, layout)


def _multiplied(site: Site, value: Value, matrix: NDArray[np.float32], whole: Value) -> Value:
    """A product along the second of three axes, written to some memory."""
    outside, out, inside = whole.desc.dims
    size = matrix.shape[1]
    value = site.reshaped(value, (outside, size, inside))
    bands = _bands(matrix) if inside == 1 or inside % VECTOR == 0 else ()
    if bands:
        return _in_bands(site, value, matrix, bands, whole)
    if inside == 1:
        value, target = (site.reshaped(one, one.desc.dims[:2]) for one in (value, whole))
        weights, given = MemoryDesc((size, out), "f32", any_format), matrix.T
        made: Any = primitives.Matmul(value.desc, weights, None, target.desc)
    else:
        target = whole
        weights, given = MemoryDesc((out, size, 1), "f32", any_format), matrix[:, :, None]
        made = primitives.Convolution(value.desc, weights, None, target.desc)
    site.add(made, value, np.ascontiguousarray(given), into={"dst": target})
    return whole


def _in_bands(
    site: Site, value: Value, matrix: NDArray[np.float32], bands: Sequence[Band], whole: Value
) -> Value:
    """The same with a product for each band: of rows by its matrix, or of its matrix by many others."""
    outside, _, _ = value.desc.dims
    inside = whole.desc.dims[-1]
    for first, last, begin, end in bands:
        part = np.ascontiguousarray(matrix[first:last, begin:end])
        source, target = site.viewed(value, sliced(1, begin, end)), site.viewed(whole, sliced(1, first, last))
        if inside == 1:
            source, target = (site.reshaped(one, one.desc.dims[:2]) for one in (source, target))
            weights = MemoryDesc(part.T.shape, "f32", any_format)
            made = primitives.Matmul(source.desc, weights, None, target.desc)
            site.add(made, source, np.ascontiguousarray(part.T), into={"dst": target})
            continue
        given = site.sequence.constant(stored(part), f"{site.case.name}.constant")
        many = outside, *part.shape
        given = site.viewed(given, partial(views.broadcast_to, dims=many))
        made = primitives.Matmul(given.desc, source.desc, None, target.desc)
        site.add(made, given, source, into={"dst": target})
    return whole


class Band(NamedTuple):
    """Rows of a matrix, and the columns that have all of their elements that are not zero."""

    first: int
    last: int
    begin: int
    end: int


def _bands(matrix: NDArray[np.float32]) -> tuple[Band, ...]:
    """A matrix in bands of as many columns each; none where these are hardly fewer than all.

    >>> _bands(np.eye(64, dtype=np.float32))[1:]
    (Band(first=28, last=56, begin=28, end=56), Band(first=56, last=64, begin=36, end=64))
    >>> _bands(np.ones((64, 64), np.float32))
    ()
    """
    rows, columns = matrix.shape
    found = []
    for first in range(0, rows, BAND):
        filled = np.flatnonzero(matrix[first : first + BAND].any(0))
        found.append((first, int(filled.min(initial=columns)), int(filled.max(initial=0)) + 1))
    width = max((end - begin for _, begin, end in found), default=columns)
    if len(found) < 2 or width * DENSE > columns:
        return ()
    starts = ((first, max(0, min(begin, columns - width))) for first, begin, _ in found)
    return tuple(Band(first, min(first + BAND, rows), at, at + width) for first, at in starts)


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
