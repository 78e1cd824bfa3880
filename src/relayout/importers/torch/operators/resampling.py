"""Resampling: sizes changed, samples at given places, blocks put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import FLOAT32, INT64, Call, Number, Size, dims_of, rank
from relayout.importers.torch.operators.table import aten


def _resize(
    call: Call, x: Value, sizes: Sequence[Size] | None, scales: Sequence[Number | None], **how: Any
) -> Value:
    """By the scales, where the program has them: then positions follow from these, not from the sizes.

    The graph's scales are float32. Where they lead to another size, as 0.7 of 10 does, the product is a whole
    number but for rounding, and the size of that axis says the same.
    """
    axes = range(2, rank(x))
    scaled = list(zip(axes, scales, strict=True)) if scales and None not in scales else []
    exact = {axis: scale for axis, scale in scaled if _is_exact(call, x, axis, scale)}
    if exact:
        x = call.emit("Resize", x, None, call.constant([*exact.values()], FLOAT32), axes=tuple(exact), **how)
    left = {axis: dims_of(call.result)[axis] for axis in axes if axis not in exact}
    if not left:
        return x
    if sizes is None and not all(isinstance(n, int) for n in left.values()):
        raise call.refuse(f"a resampling to {call.result.dims}, of which something is not known")
    known: Sequence[Any] = [sizes[axis - 2] for axis in left] if sizes else list(left.values())
    return call.emit("Resize", x, None, None, call.vector(known), axes=tuple(left), **how)


def _is_exact(call: Call, x: Value, axis: int, scale: Number | None) -> bool:
    old, new = dims_of(x)[axis], dims_of(call.result)[axis]
    return not isinstance(old, int) or not isinstance(new, int) or int(old * float(np.float32(scale))) == new


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def nearest(call: Call, x: Value, sizes: Sequence[Size] | None, scales: Sequence[float] | None) -> Value:
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize(call, x, sizes, scales or (), **how)


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def nearest_by_axes(call: Call, x: Value, sizes: Sequence[Size], *scales: float | None) -> Value:
    return nearest(call, x, sizes, _given(scales))


@aten("_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec")
def nearest_exact(
    call: Call, x: Value, sizes: Sequence[Size] | None, scales: Sequence[float] | None
) -> Value:
    """The element below the middle of each new one."""
    how = {
        "mode": "nearest",
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_ceil",
    }
    return _resize(call, x, sizes, scales or (), **how)


@aten(
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec"
)
@aten("_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec")
def linear(
    call: Call, x: Value, sizes: Sequence[Size] | None, corners: bool, scales: Sequence[float] | None
) -> Value:
    how: dict[str, Any] = {"coordinate_transformation_mode": "align_corners" if corners else "half_pixel"}
    smooth = "_aa" in call.operator
    if smooth:  # what lies outside has no weight then, and the cubic kernel is another one
        how |= {"antialias": 1, "exclude_outside": 1}
    how |= (
        {"mode": "cubic", "cubic_coeff_a": -0.5 if smooth else -0.75}
        if "cubic" in call.operator
        else {"mode": "linear"}
    )
    if corners:
        scales = None
    return _resize(call, x, sizes, scales or (), **how)


@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
@aten("upsample_bicubic2d.default", "_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
def linear_by_axes(
    call: Call, x: Value, sizes: Sequence[Size], corners: bool, *scales: float | None
) -> Value:
    return linear(call, x, sizes, corners, _given(scales))


def _given(scales: Sequence[float | None]) -> list[float] | None:
    found = [scale for scale in scales if scale is not None]
    return found if found and len(found) == len(scales) else None


@aten("col2im.default")
def col2im(
    call: Call, x: Value, sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Value:  # fmt: skip
    batched = call.unsqueeze(x, 0) if rank(x) == 2 else x
    made = call.emit(
        "Col2Im", batched, call.constant(sizes, INT64), call.constant(kernel, INT64),
        dilations=tuple(dilation), pads=tuple(padding) * 2, strides=tuple(stride),
        dims=(1, *dims_of(call.result)),
    )  # fmt: skip
    return made if batched is x else call.squeeze(made, 0)


@aten("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(call: Call, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    return call.emit(
        *("GridSample", x, grid),
        mode=("linear", "nearest", "cubic")[mode],
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=int(corners),
    )
