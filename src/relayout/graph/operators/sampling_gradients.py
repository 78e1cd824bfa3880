"""Gradients of samples between elements: by the elements, and by the places.

A sample is a sum of elements with weights that depend on its place, so its gradient goes to these elements
with the same weights, and to the place by the derivatives of the weights. A place that padding has moved has
the derivative of that: 0 at a border, a sign where it was mirrored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np

from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.sampling import cubic, mean_along, reflected, regions, values_at
from relayout.graph.operators.types import narrow, wide
from relayout.graph.operators.windows import spatial

__all__: list[str] = []

FAR = 2.0**30  # elements; places farther away are bounded, so that they are whole numbers of 64 bits


def _cubic_slope(x: Array, a: float = -0.75) -> Array:
    """The derivative of :func:`.sampling.cubic`."""
    d = np.abs(x)
    near = (3 * (a + 2) * d - 2 * (a + 3)) * d
    far = (3 * a * d - 10 * a) * d + 8 * a
    return np.sign(x) * np.where(d <= 1, near, np.where(d < 2, far, 0))


def _places(
    grid: Array, sizes: Sequence[int], mode: str, padding: str, corners: bool
) -> Iterator[tuple[Array, Array]]:
    """Coordinates in elements along each axis, and their derivatives by those of the grid."""
    for axis, size in enumerate(sizes):
        at = grid[..., -1 - axis]
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
        slope = np.full_like(at, (size - 1) / 2 if corners else size / 2)
        outside = (at < low) | (at > high)
        if mode == "nearest":
            at = np.rint(at)
        if padding == "border":
            slope = np.where(outside, 0, slope)
            at = np.where(outside, np.clip(at, 0, size - 1), at)
        elif padding == "reflection":
            width = max(high - low, 1e-30)
            back = np.abs(at - low) % (2 * width) > width
            turned = np.where(back, -1.0, 1.0) * np.sign(at - low)
            slope = np.where(outside, slope * turned * (high > low), slope)
            at = np.where(outside, reflected(at, low, high), at)
        finite = np.isfinite(at)
        yield np.where(finite, np.clip(at, -FAR, FAR), -FAR), np.where(finite, slope, 0)


def _along(at: Array, mode: str) -> list[tuple[Array, Array, Array]]:
    """For each neighbour along an axis its index, its weight, and the derivative of that by the place."""
    if mode == "nearest":
        return [(np.rint(at).astype(np.int64), np.ones_like(at), np.zeros_like(at))]
    floor = np.floor(at)
    found = []
    for n in (0, 1) if mode == "linear" else (-1, 0, 1, 2):
        away = at - floor - n
        if mode == "linear":
            weight, slope = 1 - np.abs(away), np.full_like(at, 2.0 * n - 1)
        else:
            weight, slope = cubic(away), _cubic_slope(away)
        found.append((floor.astype(np.int64) + n, weight, slope))
    return found


def _infer(dy: Fact, x: Fact, grid: Fact, /, **_: object) -> tuple[Fact, Fact]:
    return Fact(x.dims, x.dtype), Fact(grid.dims, grid.dtype)


@operator("relayout.GridSampleGrad", infer=_infer)
def grid_sample_grad(
    dy: Array,
    x: Array,
    grid: Array,
    /,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> tuple[Array, Array]:
    """By the elements and by the grid: each neighbour of a place with its weight."""
    sizes, data, flat = spatial(x), wide(x), prod(x.shape[2:])
    points = wide(grid).reshape(len(grid), prod(grid.shape[1:-1]), len(sizes))
    come = wide(dy).reshape(*x.shape[:2], points.shape[1])
    both = list(_places(points, sizes, mode, padding_mode, bool(align_corners)))
    elements: Array = np.zeros((*x.shape[:2], flat), data.dtype)
    places: Array = np.zeros_like(points)
    images, channels = (np.arange(n).reshape(shape) for n, shape in
                        ((x.shape[0], (-1, 1, 1)), (x.shape[1], (1, -1, 1))))  # fmt: skip
    for neighbour in product(*(_along(at, mode) for at, _ in both)):
        indices = [index for index, _, _ in neighbour]
        for axis, (index, size) in enumerate(zip(indices, sizes, strict=True)):
            if padding_mode == "border":
                indices[axis] = np.clip(index, 0, size - 1)
            elif padding_mode == "reflection":
                low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
                turned = np.rint(reflected(index, low, high))
                indices[axis] = np.clip(turned, 0, size - 1).astype(np.int64)
        inside, at = np.ones(indices[0].shape, bool), np.zeros(indices[0].shape, np.int64)
        for index, size in zip(indices, sizes, strict=True):
            inside &= (index >= 0) & (index < size)
            at = at * size + np.clip(index, 0, max(size - 1, 0))
        weight = np.where(inside, prod((one for _, one, _ in neighbour), start=np.ones(at.shape)), 0)
        if flat:
            np.add.at(elements, (images, channels, at[:, None, :]), come * weight[:, None, :])
        worth = (come * values_at(data, indices)).sum(axis=1)
        for axis, (_, _, slope) in enumerate(neighbour):
            beside = (one for k, (_, one, _) in enumerate(neighbour) if k != axis)
            others = prod(beside, start=np.ones(at.shape))
            places[..., -1 - axis] += worth * slope * others * both[axis][1]
    return narrow(elements.reshape(x.shape), x.dtype), narrow(places.reshape(grid.shape), grid.dtype)


def _infer_regions(dy: Fact, *_: Fact | None, dims: Sequence[int], **__: object) -> Fact:
    return Fact(tuple(dims), dy.dtype)


@operator("relayout.RoiAlignGrad", infer=_infer_regions)
def roi_align_grad(
    dy: Array,
    rois: Array,
    batch_indices: Array,
    /,
    *,
    dims: Sequence[int],
    coordinate_transformation_mode: str = "half_pixel",
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """By the images that means of samples are taken of: the transposes of the two matrices of each region."""
    half, parts = coordinate_transformation_mode == "half_pixel", (dy.shape[2], dy.shape[3])
    come = wide(dy)
    made: Array = np.zeros(tuple(dims), come.dtype)
    found = regions(dims, rois, batch_indices, half, spatial_scale, parts, sampling_ratio)
    for number, (image, rows, columns) in enumerate(found):
        left, right = mean_along(rows, dims[2]), mean_along(columns, dims[3])
        made[image] += left.T.astype(come.dtype) @ come[number] @ right.astype(come.dtype)
    return narrow(made, dy.dtype)
