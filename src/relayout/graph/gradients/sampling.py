"""Samples between elements, and the grids that they are taken at."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient
from relayout.graph.operators import OPERATORS

__all__: list[str] = []


@gradient("GridSample")
def grid_sample(r: Reverse) -> Sequence[str | None]:
    """To the elements around each place, and to the place."""
    x, grid = r.inputs
    made = r.some("relayout.GridSampleGrad", [r.wants(0), r.wants(1)], r.dy, x, grid, **r.attributes)
    return [name or None for name in made]


@gradient("AffineGrid")
def affine_grid(r: Reverse) -> Sequence[str | None]:
    """A grid is a product of the maps and an even grid, which the map to itself makes."""
    *_, axes = r.dims(r.dy)
    dtype = r.writing.dtype(r.x)
    itself = np.eye(axes, axes + 1, dtype=dtype)[None]
    size = np.array([1, 1, *r.data(1)[2:]], np.int64)
    made = OPERATORS["AffineGrid"](itself, size, align_corners=r.attributes["align_corners"])
    even = (made[0] if isinstance(made, tuple) else made).reshape(-1, axes)
    even = np.concatenate([even, np.ones((len(even), 1), dtype)], axis=1)
    flat = r.reshaped(r.dy, (r.dims(r.dy)[0], prod(r.dims(r.dy)[1:-1]), axes))
    return [str(r("MatMul", r.transposed(flat), r.writing.constant(even))), None]


@gradient("RoiAlign")
def roi_align(r: Reverse) -> Sequence[str | None]:
    """To the images; where regions are has no gradient here, and neither have the largest of samples."""
    a = dict(r.attributes)
    if a.pop("mode") != "avg" or r.wants(1):
        raise LayoutError("a RoiAlign has a gradient by its images, with mode 'avg'")
    a = {name: a[name] for name in ("coordinate_transformation_mode", "sampling_ratio", "spatial_scale")}
    return [str(r("relayout.RoiAlignGrad", r.dy, *r.inputs[1:3], dims=r.dims(r.x), **a)), None, None]
