"""What is chosen by its value: the largest, the different, those that are not zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.axes import axis_in, one_number, only
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide

INDEX = np.dtype(np.int64)


def _top_dims(x: Fact, k: Fact, *, axis: int = -1, **_: Any) -> tuple[Fact, Fact]:
    dims = x.dims
    if dims is not None:
        axis = axis_in(axis, len(dims))
        dims = (*dims[:axis], one_number(k), *dims[axis + 1 :])
    return Fact(dims, x.dtype), Fact(dims, INDEX)


@operator("TopK", infer=_top_dims)
def top_k(x: Array, k: Array, /, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """Sorted even where that is not asked for; of equal elements, the first comes first."""
    axis = axis_in(axis, x.ndim)
    count, size = int(only(k, "K")), x.shape[axis]
    if not 0 <= count <= size:
        raise LayoutError(f"axis {axis} has no {count} elements, it has {size}")
    keys = np.flip(wide(x), axis) if largest else wide(x)
    order = np.argsort(keys, axis, kind="stable")
    order = np.flip(size - 1 - order, axis) if largest else order
    indices = order.take(np.arange(count), axis).astype(INDEX)
    return np.take_along_axis(x, indices, axis), indices


def _unique_dims(x: Fact, *, axis: int | None = None, **_: Any) -> tuple[Fact, ...]:
    dims = (None,) if axis is None else x.dims
    if axis is not None and dims is not None:
        axis = axis_in(axis, len(dims))
        dims = (*dims[:axis], None, *dims[axis + 1 :])
    return Fact(dims, x.dtype), *(Fact((None,), INDEX),) * 3


@operator("Unique", infer=_unique_dims)
def unique(x: Array, /, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, Array, Array, Array]:
    """Each element or slice once, where it is first, which of them each one is, and how many times."""
    values, first, inverse, counts = np.unique(wide(x), True, True, True, axis=axis)
    values, inverse = narrow(values, x.dtype), inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values, first, counts = values.take(order, axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first.astype(INDEX), inverse.astype(INDEX), counts.astype(INDEX)


def _nonzero_dims(x: Fact) -> Fact:
    return Fact((None if x.dims is None else len(x.dims), None), INDEX)


@operator("NonZero", infer=_nonzero_dims)
def non_zero(x: Array, /) -> Array:
    """The indices of elements that are not 0: a row for each axis."""
    if not x.ndim:  # no axis, and so no index
        return np.zeros((0, int(bool(wide(x)))), INDEX)
    return np.array(np.nonzero(wide(x)), INDEX)


def _compressed_dims(x: Fact, condition: Fact, *, axis: int | None = None) -> Fact:
    if axis is None:
        return Fact((None,), x.dtype)
    if x.dims is None:
        return Fact(None, x.dtype)
    axis = axis_in(axis, len(x.dims))
    return Fact((*x.dims[:axis], None, *x.dims[axis + 1 :]), x.dtype)


@operator("Compress", infer=_compressed_dims)
def compress(x: Array, condition: Array, /, *, axis: int | None = None) -> Array:
    """Slices along an axis, or elements, whose condition holds; a short condition is false behind its end."""
    size = x.size if axis is None else x.shape[axis_in(axis, x.ndim)]
    return np.compress(condition.reshape(-1)[:size], x, axis)
