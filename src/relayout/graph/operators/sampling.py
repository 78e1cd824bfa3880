"""Sampling: values of a tensor between its elements, at places that are computed.

A place is a coordinate for each spatial axis, in elements. Its value is that of the nearest element, or the
sum of the elements around it with weights that are products of weights along each axis: two for linear
interpolation, four for cubic (Keys' kernel with a = -0.75). Loops are over these neighbours and over images
or regions, never over places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, prod

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.convolution import biased
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import is_float, narrow, wide
from relayout.graph.operators.windows import Size, slide, spatial

__all__ = ["cubic", "mean_along", "reflected", "regions", "values_at"]


def cubic(distance: Array, a: float = -0.75) -> Array:
    """Keys' kernel: the weight of an element at a distance.

    >>> cubic(np.array([0.0, 0.5, 1.0, 2.0])).tolist()
    [1.0, 0.59375, 0.0, 0.0]
    """
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _neighbours(coordinates: Sequence[Array], mode: str) -> Iterator[tuple[list[Array], Array | float]]:
    """The indices of one neighbour of each place along each axis, and its weight; for each neighbour."""
    if mode == "nearest":
        yield [np.rint(x).astype(np.int64) for x in coordinates], 1.0
        return
    offsets = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
    floors = [np.floor(x) for x in coordinates]
    along = []
    for x, low in zip(coordinates, floors, strict=True):
        distances = [np.abs(x - low - n) for n in offsets]
        weights = [1 - d for d in distances] if mode == "linear" else [cubic(d) for d in distances]
        along.append([(low.astype(np.int64) + n, w) for n, w in zip(offsets, weights, strict=True)])
    for one in product(*along):
        weight: Array | float = 1.0
        for _, factor in one:
            weight = weight * factor
        yield [index for index, _ in one], weight


def values_at(x: Array, indices: Sequence[Array]) -> Array:
    """Elements ``[image, channel, place]`` at indices ``[image, place]`` of each axis; 0 outside."""
    sizes = x.shape[2:]
    inside = np.ones(indices[0].shape, bool)
    flat: Array = np.zeros(indices[0].shape, np.int64)
    for index, size in zip(indices, sizes, strict=True):
        inside &= (index >= 0) & (index < size)
        flat = flat * size + np.clip(index, 0, max(size - 1, 0))
    if not prod(sizes):
        return np.zeros((*x.shape[:2], *flat.shape[1:]), x.dtype)
    found = np.take_along_axis(x.reshape(*x.shape[:2], -1), flat[:, None, :], axis=2)
    return np.where(inside[:, None, :], found, "" if x.dtype == object else x.dtype.type(0))


def reflected(x: Array, low: float, high: float) -> Array:
    """Coordinates mirrored at both borders until they are within."""
    width = high - low
    if width <= 0:
        return np.full_like(x, low)
    turned = np.abs(x - low) % (2 * width)
    return low + np.where(turned > width, 2 * width - turned, turned)


def _infer_grid_sample(x: Fact, grid: Fact, /, **_: object) -> Fact:
    if x.dims is None or grid.dims is None:
        return Fact(None if x.dims is None else (*x.dims[:2], *(None,) * (len(x.dims) - 2)), x.dtype)
    return Fact((*x.dims[:2], *grid.dims[1:-1]), x.dtype)


@operator("GridSample", infer=_infer_grid_sample)
def grid_sample(
    x: Array,
    grid: Array,
    /,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Array:
    """Values at places of a grid, whose coordinates go from -1 to 1, the last axis first."""
    sizes = spatial(x)
    if grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != len(sizes):
        raise LayoutError(f"a grid of {grid.shape} for data of {x.shape}: it must end in {len(sizes)}")
    if mode not in ("linear", "nearest", "cubic") or padding_mode not in ("zeros", "border", "reflection"):
        raise LayoutError(
            f"mode {mode!r} is none of linear, nearest, cubic, or padding_mode {padding_mode!r} none of "
            "zeros, border, reflection"
        )
    places = wide(grid).reshape(len(grid), prod(grid.shape[1:-1]), len(sizes))
    borders = [(0.0, n - 1.0) if align_corners else (-0.5, n - 0.5) for n in sizes]
    coordinates = []
    for axis, (size, (low, high)) in enumerate(zip(sizes, borders, strict=True)):
        at = places[:, :, -1 - axis]
        at = (at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2
        if mode == "nearest":
            at = np.rint(at)
        if padding_mode == "border":
            at = np.where((at < low) | (at > high), np.clip(at, 0, size - 1), at)
        elif padding_mode == "reflection":
            at = np.where((at < low) | (at > high), reflected(at, low, high), at)
        coordinates.append(np.where(np.isfinite(at), np.clip(at, -(2.0**30), 2.0**30), -(2.0**30)))
    data = wide(x) if is_float(x.dtype) or mode == "nearest" else x.astype(np.float64)
    made: Array | None = None
    for indices, weight in _neighbours(coordinates, mode):
        if padding_mode == "border":
            indices = [np.clip(i, 0, n - 1) for i, n in zip(indices, sizes, strict=True)]
        elif padding_mode == "reflection":
            indices = [
                np.clip(np.rint(reflected(i, *b)), 0, n - 1).astype(np.int64)
                for i, b, n in zip(indices, borders, sizes, strict=True)
            ]
        found = values_at(data, indices)
        part = found if mode == "nearest" else found * np.asarray(weight)[:, None, :].astype(found.dtype)
        made = part if made is None else made + part
    assert made is not None
    return narrow(made.reshape(*x.shape[:2], *grid.shape[1:-1]), x.dtype)


def _infer_affine_grid(theta: Fact, size: Fact, /, **_: object) -> Fact:
    if size.data is not None:
        sizes = tuple(map(int, size.data))
        return Fact((sizes[0], *sizes[2:], len(sizes) - 2), theta.dtype)
    if size.dims and isinstance(size.dims[0], int):
        count = size.dims[0]
        return Fact((theta.dims[0] if theta.dims else None, *(None,) * (count - 2), count - 2), theta.dtype)
    return Fact(None, theta.dtype)


@operator("AffineGrid", infer=_infer_affine_grid)
def affine_grid(theta: Array, size: Array, /, *, align_corners: int = 0) -> Array:
    """The places that affine maps send an even grid to."""
    if size.ndim != 1 or theta.ndim != 3:
        raise LayoutError(f"maps of {theta.shape} and sizes of {size.shape}: 3 axes and 1")
    sizes = tuple(map(int, size))[2:]
    axes = len(sizes)
    if axes not in (2, 3) or theta.shape[1:] != (axes, axes + 1):
        raise LayoutError(f"maps of {theta.shape} for a grid of {axes} axes, which must be 2 or 3")
    if len(size) and int(size[0]) != theta.shape[0]:
        raise LayoutError(f"{theta.shape[0]} maps for {int(size[0])} images")
    kind = wide(theta)
    steps = [
        np.linspace(-1, 1, n) if align_corners else (2 * np.arange(n) + 1) / max(n, 1) - 1 for n in sizes
    ]
    even = np.stack([*reversed(np.meshgrid(*steps, indexing="ij")), np.ones(sizes)], axis=-1)
    made = even.astype(kind.dtype).reshape(1, prod(sizes), axes + 1) @ kind.swapaxes(1, 2)
    return narrow(made.reshape(theta.shape[0], *sizes, axes), theta.dtype)


def _infer_deform(x: Fact, w: Fact, offset: Fact, *_: Fact | None, **__: object) -> Fact:
    rank = x.dims or offset.dims
    if rank is None:
        return Fact(None, x.dtype)
    behind: Sequence[Size] = (None,) * (len(rank) - 2) if offset.dims is None else offset.dims[2:]
    batch = None if x.dims is None else x.dims[0]
    return Fact((batch, None if w.dims is None else w.dims[0], *behind), x.dtype)


@operator("DeformConv", infer=_infer_deform)
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    /,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Convolution whose taps are moved by offsets, interpolated linearly, and weighed by a mask."""
    windows = slide(spatial(x), kernel_shape or w.shape[2:], strides, dilations, pads)
    axes, taps, count = len(windows.sizes), prod(windows.kernel), prod(windows.counts)
    batch, channels = x.shape[:2]
    if group < 1 or w.shape[1] * group != channels or w.shape[0] % group or w.shape[2:] != windows.kernel:
        raise LayoutError(f"weights of {w.shape} in {group} groups for {channels} channels")
    if offset_group < 1 or channels % offset_group:
        raise LayoutError(f"{channels} channels can't be parted into {offset_group} groups of offsets")
    if offset.shape != (batch, offset_group * taps * axes, *windows.counts):
        raise LayoutError(
            f"offsets must be {(batch, offset_group * taps * axes, *windows.counts)}, got {offset.shape}"
        )
    if mask is not None and mask.shape != (batch, offset_group * taps, *windows.counts):
        raise LayoutError(f"a mask must be {(batch, offset_group * taps, *windows.counts)}, got {mask.shape}")
    moved = wide(offset).reshape(batch * offset_group, *windows.kernel, axes, *windows.counts)
    coordinates = []
    for axis in range(axes):
        tap = np.arange(windows.kernel[axis]) * windows.dilations[axis]
        start = np.arange(windows.counts[axis]) * windows.strides[axis] - windows.begin[axis]
        at = tap.reshape(-1, *(1,) * (axes - axis - 1 + axes)) + start.reshape(-1, *(1,) * (axes - axis - 1))
        part = np.take(moved, axis, axis=1 + axes)
        coordinates.append((part + at.astype(moved.dtype)).reshape(batch * offset_group, taps * count))
    data = wide(x).reshape(batch * offset_group, channels // offset_group, *x.shape[2:])
    columns = np.zeros((*data.shape[:2], taps * count), data.dtype)
    for indices, weight in _neighbours(coordinates, "linear"):
        columns += values_at(data, indices) * np.asarray(weight)[:, None, :]
    if mask is not None:
        columns *= wide(mask).reshape(batch * offset_group, 1, taps * count)
    columns = columns.reshape(batch, group, channels // group * taps, count)
    weights = wide(w).reshape(group, w.shape[0] // group, channels // group * taps)
    made = (weights @ columns).reshape(batch, w.shape[0], *windows.counts)
    return narrow(biased(made, b), x.dtype)


def _infer_roi_align(
    x: Fact, rois: Fact, *_: Fact | None, output_height: int = 1, output_width: int = 1, **__: object
) -> Fact:
    count = None if rois.dims is None else rois.dims[0]
    return Fact((count, None if x.dims is None else x.dims[1], output_height, output_width), x.dtype)


@operator("RoiAlign", infer=_infer_roi_align)
def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    /,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Each region of an image in equal parts: the mean of samples in each, or their largest.

    Samples are interpolated linearly. A mean of such samples is a product of two matrices with the image; of
    the largest, the definition takes the four weighted neighbours of each sample one by one.
    """
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or batch_indices.shape != rois.shape[:1]:
        raise LayoutError("data must be batch x channels x height x width, regions count x 4, indices count")
    if min(output_height, output_width) < 1:
        raise LayoutError(f"regions of {output_height} x {output_width} parts; both must be 1 or more")
    if mode not in ("avg", "max"):
        raise LayoutError(f"mode {mode!r} is none of avg, max")
    data = wide(x)
    made = np.zeros((len(rois), x.shape[1], output_height, output_width), data.dtype)
    half = coordinate_transformation_mode == "half_pixel"
    parts = output_height, output_width
    found = regions(x.shape, rois, batch_indices, half, spatial_scale, parts, sampling_ratio)
    for number, (image, rows, columns) in enumerate(found):
        if mode == "avg":
            left, right = mean_along(rows, x.shape[2]), mean_along(columns, x.shape[3])
            down = _product(left.astype(data.dtype), data[image])
            made[number] = _product(right.astype(data.dtype), down.swapaxes(1, 2)).swapaxes(1, 2)
        elif rows[0].size and columns[0].size:
            made[number] = _largest(data[image], rows, columns)
    return narrow(made, x.dtype)


Side = tuple[Array, Array, Array, Array]


def regions(
    dims: Sequence[int],
    rois: Array,
    batch_indices: Array,
    half: bool,
    scale: float,
    parts: tuple[int, int],
    ratio: int,
) -> Iterator[tuple[int, Side, Side]]:
    """Each region of a RoiAlign: its image, and samples along both sides.

    Raises
    ------
    LayoutError
        There is no such image.
    """
    corners = wide(rois) * np.float32(scale) - np.float32(0.5 if half else 0)
    for number, (west, north, east, south) in enumerate(corners):
        image = int(batch_indices[number])
        if not 0 <= image < dims[0]:
            raise LayoutError(f"region {number} is of image {image}; there are {dims[0]}")
        sides = (north, south, parts[0], dims[2]), (west, east, parts[1], dims[3])
        rows, columns = (_side(*side, half, ratio) for side in sides)
        yield image, rows, columns


def _side(start: float, stop: float, parts: int, size: int, half: bool, ratio: int) -> Side:
    """Neighbours below and above the samples ``[part, sample]`` of one side, and their weights."""
    length = float(stop - start) if half else max(float(stop - start), 1.0)
    samples = ratio if ratio > 0 else max(0, ceil(length / parts))
    step = length / parts
    at = start + np.arange(parts)[:, None] * step + (np.arange(samples) + 0.5) * (step / max(samples, 1))
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    above = at - low
    return low, np.minimum(low + 1, size - 1), (1 - above) * inside, above * inside


def mean_along(side: Side, size: int) -> Array:
    """The matrix that takes the mean of the samples of each part."""
    low, high, below, above = side
    parts, samples = low.shape
    matrix = np.zeros((parts, size))
    rows = np.arange(parts)[:, None]
    np.add.at(matrix, (rows, low), below)
    np.add.at(matrix, (rows, high), above)
    return np.asarray(matrix / max(samples, 1))


def _product(matrix: Array, x: Array) -> Array:
    """A matrix times others, in which zeros are no products: they would make NaN of infinities elsewhere."""
    if np.isfinite(x).all():
        return np.asarray(matrix @ x)
    made = np.zeros((len(x), len(matrix), x.shape[2]), x.dtype)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        for k, row in enumerate(matrix):
            there = np.flatnonzero(row)
            made[:, k] = row[there] @ x[:, there]
    return made


def _largest(image: Array, rows: Side, columns: Side) -> Array:
    """The largest weighted neighbour of all samples of each part."""
    best: Array | None = None
    for (y, wy), (x, wx) in product(
        zip(rows[:2], rows[2:], strict=True), zip(columns[:2], columns[2:], strict=True)
    ):
        values = image[:, y[:, :, None, None], x] * (wy[:, :, None, None] * wx).astype(image.dtype)
        largest = values.max(axis=(2, 4))
        best = largest if best is None else np.maximum(best, largest)
    assert best is not None
    return np.asarray(best)
