"""Pooling: the maximum, average or p-norm of windows, and what undoes a maximum.

Windows are reduced axis by axis, which is exact for maxima and cheap for sums. Where a maximum stands is
found in the same way: the first of equal ones along the last axis, then the first of those, is the first in
the order in which the elements lie.

The geometry is that of :mod:`relayout.graph.operators.windows`. With ``ceil_mode`` a last window may reach
beyond the padding; what is there belongs to no window, and no average counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.normalization import average
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import is_float, narrow, wide
from relayout.graph.operators.windows import (
    WINDOWS,
    Size,
    Windows,
    dims_of_windows,
    per_axis,
    slide,
    spatial,
)

__all__ = ["counted", "places_of_largest"]


def infer_pool(x: Fact, /, **attributes: Any) -> Fact:
    if x.dims is None:
        return Fact(None, x.dtype)
    known = {name: one for name, one in attributes.items() if name in WINDOWS}
    return Fact((*x.dims[:2], *dims_of_windows(x.dims[2:], **known)), x.dtype)


def _infer_max_pool(x: Fact, /, **attributes: Any) -> tuple[Fact, Fact]:
    values = infer_pool(x, **attributes)
    return values, Fact(values.dims, np.dtype(np.int64))


@operator("MaxPool", infer=_infer_max_pool, like=WINDOWS)
def max_pool(
    x: Array, /, *, storage_order: int = 0, wanted: int = 1, **attributes: Any
) -> Array | tuple[Array, Array]:
    """The largest element of each window, and its index in the whole tensor."""
    windows = slide(spatial(x), **attributes)
    least = -np.inf if is_float(x.dtype) else np.iinfo(x.dtype).min
    data = windows.padded(wide(x), least)
    if wanted < 2:
        return narrow(windows.reduced(data, np.maximum), x.dtype)
    values, places = _largest(data, _places(windows, "F" if storage_order else "C"), windows)
    planes = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(windows.sizes))
    return narrow(values, x.dtype), places + planes * prod(windows.sizes)


def places_of_largest(x: Array, windows: Windows) -> Array:
    """Where in its plane the first largest element of each window is, in row-major order."""
    return _largest(windows.padded(x, -np.inf), _places(windows, "C"), windows)[1]


def _places(windows: Windows, order: str) -> Array:
    """The index of each element of one plane of the padded data; -1 in the padding."""
    plane = np.arange(prod(windows.sizes)).reshape(windows.sizes, order="F" if order == "F" else "C")
    return windows.padded(plane[None, None], -1)


def _largest(values: Array, places: Array, windows: Windows) -> tuple[Array, Array]:
    """The maximum of each window with its place; the first of equal ones, and NaN before all numbers."""
    places = np.broadcast_to(places, values.shape)
    for axis in reversed(range(len(windows.sizes))):
        (best, at), *others = zip(windows.tapped(values, axis), windows.tapped(places, axis), strict=True)
        best, at = best.copy(), at.copy()
        for other, there in others:
            better = (other > best) | ((other != other) & (best == best)) | ((at < 0) & (there >= 0))
            np.copyto(best, other, where=better)
            np.copyto(at, there, where=better)
        values, places = best, at
    return values, places


@operator("AveragePool", infer=infer_pool, like=WINDOWS)
def average_pool(x: Array, /, *, count_include_pad: int = 0, **attributes: Any) -> Array:
    """The mean of each window; padding counts as elements only where that is asked for."""
    windows = slide(spatial(x), **attributes)
    sums = windows.reduced(windows.padded(wide(x), 0), np.add)
    counts = counted(windows, bool(count_include_pad)).astype(sums.dtype)
    return narrow(sums / np.maximum(counts, 1), x.dtype)


def counted(windows: Windows, padding: bool) -> Array:
    """How many elements of each window count for its mean; ``padding``: those around the data, too."""
    found = np.ones((), np.int64)
    for axis in range(len(windows.sizes)):
        found = found[..., None] * _counted(windows, axis, padding)
    return found


def _counted(windows: Windows, axis: int, padding: bool) -> Array:
    """How many elements of each window count, along one axis."""
    first, last = windows.begin[axis], windows.begin[axis] + windows.sizes[axis]
    if padding:
        first, last = 0, last + windows.end[axis]
    starts = np.arange(windows.counts[axis])[:, None] * windows.strides[axis]
    taps = starts + np.arange(windows.kernel[axis]) * windows.dilations[axis]
    return np.asarray(((taps >= first) & (taps < last)).sum(axis=1))


@operator("LpPool", infer=infer_pool, like=WINDOWS)
def lp_pool(x: Array, /, *, p: int = 2, **attributes: Any) -> Array:
    """The p-norm of each window."""
    windows = slide(spatial(x), **attributes)
    powers = np.abs(windows.padded(wide(x), 0)) ** _order(p)
    return narrow(windows.reduced(powers, np.add) ** (1 / p), x.dtype)


def _order(p: int) -> int:
    if p < 1:
        raise LayoutError(f"there is no norm of order {p}")
    return p


def _infer_global(x: Fact, /, **_: object) -> Fact:
    return Fact(None if x.dims is None else (*x.dims[:2], *(1,) * (len(x.dims) - 2)), x.dtype)


def _behind(x: Array) -> tuple[int, ...]:
    """The spatial axes."""
    if x.ndim < 2:
        raise LayoutError(f"{x.ndim} axes are too few: batch, channels and spatial ones")
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool", infer=_infer_global)
def global_average_pool(x: Array, /) -> Array:
    """The mean of each channel."""
    return narrow(average(wide(x), _behind(x)), x.dtype)


@operator("GlobalMaxPool", infer=_infer_global)
def global_max_pool(x: Array, /) -> Array:
    """The largest element of each channel."""
    return narrow(wide(x).max(axis=_behind(x), keepdims=True), x.dtype)


@operator("GlobalLpPool", infer=_infer_global)
def global_lp_pool(x: Array, /, *, p: int = 2) -> Array:
    """The p-norm of each channel."""
    sums = (np.abs(wide(x)) ** _order(p)).sum(axis=_behind(x), keepdims=True)
    return narrow(sums ** (1 / p), x.dtype)


def _unpooled(
    sizes: Sequence[Size],
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> list[Size]:
    axes = len(sizes)
    kernel = per_axis(kernel_shape, axes, 1, "kernel_shape")
    steps = per_axis(strides, axes, 1, "strides")
    around = pads or (0,) * (2 * axes)
    return [
        (n - 1) * steps[i] + kernel[i] - around[i] - around[axes + i] if isinstance(n, int) else None
        for i, n in enumerate(sizes)
    ]


def _infer_unpool(
    x: Fact,
    indices: Fact,
    output_shape: Fact | None = None,
    /,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
) -> Fact:
    if output_shape is not None:
        if output_shape.data is not None:
            return Fact(tuple(map(int, output_shape.data)), x.dtype)
        return Fact(None if x.dims is None else (None,) * len(x.dims), x.dtype)
    if x.dims is None:
        return Fact(None, x.dtype)
    return Fact((*x.dims[:2], *_unpooled(x.dims[2:], kernel_shape, strides, pads)), x.dtype)


@operator("MaxUnpool", infer=_infer_unpool)
def max_unpool(
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    /,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Maxima back where they were, and zeros elsewhere.

    Indices count in the tensor that kernel, strides and pads lead to; a larger ``output_shape`` has zeros
    behind it.
    """
    if indices.shape != x.shape:
        raise LayoutError(f"indices of {indices.shape} for data of {x.shape}")
    sizes = [n for n in _unpooled(spatial(x), kernel_shape, strides, pads) if isinstance(n, int)]
    inner = (*x.shape[:2], *sizes)
    flat = np.zeros(prod(inner), x.dtype)
    if indices.size and not (indices.min() >= 0 and indices.max() < flat.size):
        raise LayoutError(f"indices {indices.min()} to {indices.max()} must be 0 to {flat.size - 1}")
    flat[indices.reshape(-1)] = x.reshape(-1)
    made = flat.reshape(inner)
    if output_shape is None:
        return made
    if output_shape.ndim != 1:
        raise LayoutError(f"output_shape of {output_shape.shape} must be a vector")
    outer = tuple(map(int, output_shape))
    if len(outer) != x.ndim or any(n < m for n, m in zip(outer, inner, strict=True)):
        raise LayoutError(f"output_shape {outer} doesn't hold {inner}")
    return np.pad(made, [(0, n - m) for n, m in zip(outer, inner, strict=True)])


def _infer_roi_pool(x: Fact, rois: Fact, /, *, pooled_shape: Sequence[int], **_: object) -> Fact:
    count = None if rois.dims is None else rois.dims[0]
    channels = None if x.dims is None else x.dims[1]
    return Fact((count, channels, *pooled_shape), x.dtype)


@operator("MaxRoiPool", infer=_infer_roi_pool)
def max_roi_pool(
    x: Array, rois: Array, /, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> Array:
    """The largest element of each part of each region, its corners rounded to whole elements."""
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5:
        raise LayoutError("data must be batch x channels x height x width, and regions count x 5")
    made = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
    corners = wide(rois)
    boxes = np.floor(corners[:, 1:] * np.float32(spatial_scale) + 0.5).astype(np.int64)
    for number, (left, top, right, bottom) in enumerate(boxes):
        image = int(corners[number, 0])
        if not 0 <= image < len(x):
            raise LayoutError(f"region {number} is of image {image}; there are {len(x)}")
        rows = _parts(top, bottom, pooled_shape[0], x.shape[2])
        columns = _parts(left, right, pooled_shape[1], x.shape[3])
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                part = x[image, :, row, column]
                if part.size:
                    made[number, :, i, j] = part.max(axis=(1, 2))
    return made


def _parts(first: int, last: int, count: int, size: int) -> list[slice]:
    """A side of a region in so many parts, which may overlap by an element, within the data."""
    length = max(last - first + 1, 1) / count
    edges = np.arange(count + 1) * length
    starts = np.clip(np.floor(edges[:-1]) + first, 0, size).astype(int)
    ends = np.clip(np.ceil(edges[1:]) + first, 0, size).astype(int)
    return [slice(*pair) for pair in zip(starts, ends, strict=True)]
