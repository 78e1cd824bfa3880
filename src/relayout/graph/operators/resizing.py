"""Resize: each axis by itself, from a place in the result to one in the data and to its neighbours.

What differs between modes are three small functions of an axis: where a place of the result is in the data
(``coordinate_transformation_mode``), which neighbours have what weights there (``mode``, ``antialias``), and
what becomes of neighbours that are outside (the element at the border, or none with ``exclude_outside``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.quantization import saturated
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.sampling import cubic
from relayout.graph.operators.types import is_float, is_integer, narrow, wide
from relayout.graph.operators.windows import Size

__all__: list[str] = []


@dataclass(frozen=True)
class Axis:
    """How one axis is resized.

    Attributes
    ----------
    before, after : int
        Its sizes.
    scale : float
        What it is multiplied by; ``before * scale`` may be a fraction.
    start, end : float
        The part of the axis that is taken, where there is a region.
    """

    before: int
    after: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def kept(self) -> bool:
        """Whether nothing changes."""
        return self.after == self.before and self.scale == 1 and (self.start, self.end) == (0, 1)

    def places(self, transformation: str, single: bool = False) -> Array:
        """Where in the data the elements of the result are.

        In single precision, where they are rounded: scales are given in it, and resized by 0.6, element 3 is
        at 5, not just below it. PyTorch and ONNX Runtime compute places so.
        """
        kind = np.float32 if single else np.float64
        at, last, scale = np.arange(self.after, dtype=kind), self.before - 1, kind(self.scale)
        length = self.before * self.scale
        if transformation == "asymmetric":
            return np.asarray(at / scale)
        if transformation == "align_corners":
            return at * (0 if length == 1 else last / (length - 1))
        if transformation == "tf_crop_and_resize":
            if self.after == 1:
                return at + 0.5 * (self.start + self.end) * last
            return self.start * last + at * ((self.end - self.start) * last / (self.after - 1))
        half = (at + kind(0.5)) / scale - 0.5
        if transformation == "half_pixel":
            return np.asarray(half)
        if transformation == "tf_half_pixel_for_nn":  # of versions 11 and 12
            return np.asarray((at + kind(0.5)) / scale)
        if transformation == "pytorch_half_pixel":
            return np.asarray(half if self.after > 1 else at)
        if transformation == "half_pixel_symmetric":
            return np.asarray(half + self.before / 2 * (1 - self.after / length))
        raise LayoutError(f"there is no coordinate_transformation_mode {transformation!r}")


ROUNDINGS: Final[dict[str, Callable[[Array], Array]]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _neighbours(places: Array, axis: Axis, mode: str, antialias: bool, a: float) -> tuple[Array, Array]:
    """Indices and weights ``[place, neighbour]``, for linear and cubic interpolation."""
    shrunk = min(axis.scale, 1.0) if antialias else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / shrunk))
    indices = np.floor(places)[:, None] + np.arange(1 - reach, reach + 1)
    distances = (indices - places[:, None]) * shrunk
    weights = np.clip(1 - np.abs(distances), 0, None) if mode == "linear" else cubic(distances, a)
    if antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return indices.astype(np.int64), weights


def _axes(
    dims: Sequence[Size],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    axes: Sequence[int] | None,
    policy: str,
    transformation: str,
) -> list[Axis | None]:
    """How each axis is resized; None where its size is not known."""
    rank = len(dims)
    which = (
        list(range(rank)) if axes is None else [int(n) % rank if -rank <= n < rank else rank for n in axes]
    )
    if rank in which:
        raise LayoutError(f"axes {tuple(axes or ())} of {rank}")
    given = scales if scales is not None and scales.size else sizes
    if given is None or not given.size or (scales is not None and scales.size and sizes is not None):
        raise LayoutError("either scales or sizes must be given, and not both")
    if given.ndim != 1:
        raise LayoutError(f"scales or sizes of {given.shape} must be a vector")
    if len(given) != len(which):
        raise LayoutError(f"{len(given)} scales or sizes for {len(which)} axes")
    cropped = transformation == "tf_crop_and_resize"
    region = [0.0] * len(which) + [1.0] * len(which)
    if cropped:
        if roi is None or roi.shape != (2 * len(which),):
            raise LayoutError(f"tf_crop_and_resize needs a roi of {2 * len(which)} numbers")
        region = [float(n) for n in roi]
    made: list[Axis | None] = [Axis(n, n, 1.0) if isinstance(n, int) else None for n in dims]
    if given is sizes and len(given) and min(given) < 0:
        raise LayoutError(f"sizes {tuple(map(int, given))} must be 0 or more")
    uniform = None
    if given is sizes and policy != "stretch":
        if policy not in ("not_larger", "not_smaller"):
            raise LayoutError(
                f"keep_aspect_ratio_policy {policy!r} is none of stretch, not_larger, not_smaller"
            )
        known = [dims[axis] for axis in which]
        if not all(isinstance(n, int) for n in known):
            return [None if i in which else one for i, one in enumerate(made)]
        ratios = [int(n) / m for n, m in zip(given, known, strict=True) if isinstance(m, int) and m]
        uniform = min(ratios) if policy == "not_larger" else max(ratios)
    for number, axis in enumerate(which):
        size, start, end = dims[axis], region[number], region[len(which) + number]
        if not isinstance(size, int):
            continue
        if given is not sizes:
            scale = float(given[number])
            if not scale > 0:
                raise LayoutError(f"scale {scale} of axis {axis} must be more than 0")
            after = floor(np.float32(size * (end - start)) * np.float32(scale))  # 5/3 of 3 are 5
        elif uniform is not None:
            scale, after = uniform, floor(uniform * size + 0.5)
        else:
            after = int(given[number])
            scale = after / size if size else 1.0
        made[axis] = Axis(size, after, scale, start, end)
    return made


def _data(fact: Fact | None) -> Array | None:
    return None if fact is None else fact.data


def _infer_resize(
    x: Fact,
    roi: Fact | None = None,
    scales: Fact | None = None,
    sizes: Fact | None = None,
    /,
    *,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    keep_aspect_ratio_policy: str = "stretch",
    **_: object,
) -> Fact:
    if x.dims is None:
        return Fact(None, x.dtype)
    rank = len(x.dims)
    policy, cropped = keep_aspect_ratio_policy, coordinate_transformation_mode == "tf_crop_and_resize"
    changed = range(rank) if axes is None else [n % rank for n in axes]
    wanted, factors = _data(sizes), _data(scales)
    if factors is not None and not factors.size:
        factors = None
    unknown = Fact(tuple(None if i in changed else n for i, n in enumerate(x.dims)), x.dtype)
    if wanted is None and factors is None:
        return unknown
    if cropped and wanted is None and _data(roi) is None:
        return unknown
    corners = _data(roi) if _data(roi) is not None else np.array([0.0, 1.0]).repeat(len(changed))
    made = _axes(x.dims, corners, factors, wanted, axes, policy, coordinate_transformation_mode)
    found: list[Size] = []
    for axis, one in enumerate(made):
        if one is not None:
            found.append(one.after)
        elif axis not in changed:
            found.append(x.dims[axis])
        elif wanted is not None and policy == "stretch":
            found.append(int(wanted[list(changed).index(axis)]))
        elif factors is not None and factors[list(changed).index(axis)] == 1 and not cropped:
            found.append(x.dims[axis])
        else:
            found.append(None)
    return Fact(tuple(found), x.dtype)


@operator("Resize", infer=_infer_resize)
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    /,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """A tensor of other sizes, its elements the nearest ones or interpolated."""
    if mode not in ("nearest", "linear", "cubic") or nearest_mode not in ROUNDINGS:
        raise LayoutError(
            f"mode {mode!r} is none of nearest, linear, cubic, or nearest_mode {nearest_mode!r} none of "
            + ", ".join(ROUNDINGS)
        )
    plan = _axes(x.shape, roi, scales, sizes, axes, keep_aspect_ratio_policy, coordinate_transformation_mode)
    made = x if mode == "nearest" else wide(x) if is_float(x.dtype) else x.astype(np.float64)
    for number, axis in enumerate(plan):
        assert axis is not None
        if axis.kept:
            continue
        lead = (1,) * number
        behind = (1,) * (x.ndim - number - 1)
        if not axis.before or not axis.after:
            if axis.after:
                raise LayoutError(f"axis {number} has no elements to make {axis.after} of")
            made = np.zeros((*made.shape[:number], 0, *made.shape[number + 1 :]), made.dtype)
            continue
        places = axis.places(coordinate_transformation_mode, mode == "nearest")
        if mode == "nearest":
            index = np.clip(ROUNDINGS[nearest_mode](places), 0, axis.before - 1).astype(np.int64)
            result = np.take(made, index, axis=number)
        else:
            indices, weights = _neighbours(places, axis, mode, bool(antialias), cubic_coeff_a)
            if exclude_outside:
                weights = np.where((indices < 0) | (indices >= axis.before), 0, weights)
                sums = weights.sum(axis=1, keepdims=True)
                weights = weights / np.where(sums == 0, 1, sums)
            indices = np.clip(indices, 0, axis.before - 1)
            result = np.zeros((*made.shape[:number], axis.after, *made.shape[number + 1 :]), made.dtype)
            for tap in range(indices.shape[1]):
                weight = weights[:, tap].astype(made.dtype).reshape(*lead, -1, *behind)
                if weight.any():
                    with np.errstate(invalid="ignore"):  # of infinities, whose weight may be 0
                        part = np.take(made, indices[:, tap], axis=number) * weight
                    result += part if weight.all() else np.where(weight == 0, 0, part)
        if coordinate_transformation_mode == "tf_crop_and_resize":
            outside = ((places < 0) | (places > axis.before - 1)).reshape(*lead, -1, *behind)
            result = np.where(outside, made.dtype.type(extrapolation_value), result)
        made = result
    if is_integer(x.dtype) and mode != "nearest":
        return saturated(np.rint(made), x.dtype)
    return narrow(made, x.dtype)
