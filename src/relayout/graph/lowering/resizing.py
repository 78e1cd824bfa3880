"""Resizing: copies for whole factors, otherwise resampling by a matrix for each axis.

Interpolation is linear along an axis, whatever its mode: element o of the result is a sum over elements i of
the source, with weights that depend on sizes alone. The definition, applied to the identity, is that matrix.
Few of its elements are not zero, and only these are multiplied: a product with zeros would make NaN of what
is infinite, and spread it along the whole axis.

Where the first two axes keep their sizes, that is one resampling
(:class:`relayout.primitives.resampling.Resampling`) in whatever format the source comes. Otherwise, and where
a result has many neighbours, it is one axis after the other. In memory an axis lies between those outside and
those inside of it, which are the images and the channels of a resampling::

    dst[outside, o, inside] = sum over i of matrix[o, i] * src[outside, i, inside]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.lowering.case import Case, Operand, label, reshaped, row_major, spellings, unfused
from relayout.graph.lowering.chains import chain_of, following
from relayout.graph.lowering.movement import enlarged
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.graph.operators import OPERATORS
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.resampling import Matrices

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.ops.post_ops import PostOp
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__: list[str] = []

MULTIPLIED = 1e-11  # seconds of a product and a sum
MOST_NEIGHBOURS = 16  # of a result in all axes together: those of cubic interpolation in two
IMAGES = range(3, 6)  # how many axes a resampling takes

Rows = tuple[tuple[tuple[int, float], ...], ...]


@rule("Resize")
def resized(case: Case) -> Iterable[Way] | None:
    """Elements several times over, or interpolated."""
    return enlarged(case) or _interpolated(case)


def _interpolated(case: Case) -> Iterator[Way] | None:
    """Sums of neighbours along each axis that changes."""
    src, out, a = case.inputs[0], case.out, case.attributes
    if src is None or src.data is not None or not case.floats_of(src, out):
        return None
    if any(one is not None and one.data is None for one in case.inputs[1:]) or 0 in (*src.dims, *out.dims):
        return None
    if a["coordinate_transformation_mode"] == "tf_crop_and_resize":
        return None
    if a["keep_aspect_ratio_policy"] != "stretch":
        return None
    several = dict(_rows(case, src))
    if not several:
        return None
    neighbours = prod(max(map(len, rows)) for rows in several.values())
    if len(src.dims) in IMAGES and min(several) >= 2 and neighbours <= MOST_NEIGHBOURS:
        return _at_once(case, src, several)
    return _by_axis(case, src, several) if not case.chain else None


def _at_once(case: Case, src: Operand, several: Mapping[int, Rows]) -> Iterator[Way] | None:
    """All spatial axes in one resampling, and the chain behind it."""
    steps = chain_of(case)
    if steps is None:
        return None
    kept: dict[int, Rows] = {
        axis: tuple(((k, 1.0),) for k in range(src.dims[axis])) for axis in range(2, len(src.dims))
    }
    matrices = Matrices(tuple(several.get(axis, rows) for axis, rows in kept.items()))

    def build(desc: MemoryDesc, dst: MemoryDesc, ops: list[PostOp]) -> tuple[Primitive, list[Any]]:
        return primitives.Resampling(desc, matrices, dst, post_ops=ops), []

    return following(case, src, steps, build, dims=case.out.dims)


def _by_axis(case: Case, src: Operand, several: Mapping[int, Rows]) -> Iterator[Way]:
    """A resampling along each axis that changes."""
    out = case.out

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, site.way.outputs[0])
        # Axes in the order of memory; a view of the source, which may be a part of something larger.
        order = _order(site.way.outputs[0])
        found = site.transposed(value, order)
        dims = list(found.desc.dims)
        last = list(several)[-1]
        for axis, rows in several.items():
            place = order.index(axis)
            outside, inside = prod(dims[:place]), prod(dims[place + 1 :])
            dims[place] = len(rows)
            target = row_major((outside, len(rows), inside), src.dtype)
            seen = _seen(dst, order, target.dims) if into and axis == last else None
            if into and seen is not None:  # the last one writes where the result belongs
                _resampled(site, found, rows, site.sequence.view(into["dst"], seen))
                return into["dst"]
            found = _resampled(site, found, rows, site.place(target))
        found = site.reshaped(found, dims)
        return site.transposed(found, tuple(np.argsort(order).tolist()))

    def ways() -> Iterator[Way]:
        cost, done = 0.0, list(src.dims)
        for axis, rows in several.items():
            done[axis] = len(rows)
            cost += MULTIPLIED * prod(done) * max(map(len, rows))
        known = dict.fromkeys(desc for desc in case.formats(src) if desc.layout.is_plain and desc.tag)
        for desc in known or [row_major(src.dims, src.dtype)]:
            for one in spellings(desc):
                order = one.tag or row_major(out.dims, src.dtype).layout
                target = label(MemoryDesc(out.dims, src.dtype, order))
                yield Way({src.name: desc}, (target,), cost + moving(desc, target), make, "axis by axis")

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


def _resampled(site: Site, value: Value, rows: Rows, whole: Value) -> Value:
    """Sums along the second of three axes, written to some memory."""
    outside, _, inside = whole.desc.dims
    value = site.reshaped(value, (outside, prod(value.desc.dims) // (outside * inside), inside))
    source, target = (site.transposed(one, (0, 2, 1)) for one in (value, whole))
    site.add(primitives.Resampling(source.desc, Matrices((rows,)), target.desc), source, into={"dst": target})
    return whole


def _rows(case: Case, src: Operand) -> Iterator[tuple[int, Rows]]:
    """For each axis that changes the rows of its matrix, those that shrink first."""
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
def _matrix(before: int, after: int, scale: float | None, attributes: tuple[tuple[str, Any], ...]) -> Rows:
    """What the definition makes of the identity, axis 0 resized: what is not zero of each row."""
    scales = None if scale is None else np.array([scale, 1], np.float32)
    sizes = None if scale is not None else np.array([after, before], np.int64)
    (found,) = OPERATORS["Resize"](
        np.eye(before, dtype=np.float32), None, scales, sizes, outputs=1, **dict(attributes)
    )
    return tuple(tuple((int(k), float(row[k])) for k in np.flatnonzero(row)) for row in found)
