"""Convolutions: as matrix products of weights and columns of windows.

The columns of a group are its windows written out, (channels x taps) by (windows); the product with the
weights, (output channels) by (channels x taps), is the result in its own order. Columns are made for a few
rows of windows at a time, so that they stay in cache and memory stays bounded. Depthwise groups have no
product that would pay: there each tap is one multiplication of a slice by a number for each channel.

The transposed convolution goes the other way: the product makes columns, and these are added up in place.

Integers are multiplied as doubles, in which every sum of 8-bit products that fits the 32 bits of the result
is exact, since NumPy has fast products of floating point only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide
from relayout.graph.operators.windows import (
    Size,
    Windows,
    around,
    dims_of_windows,
    fold,
    per_axis,
    slide,
    spatial,
)

__all__ = ["biased", "channelwise", "convolve", "infer_conv", "integer_convolution", "transposed_windows"]

COLUMN_BYTES = 4 << 20
"""Columns are made for so many bytes at a time: about what a core's own caches hold."""


def convolve(x: Array, w: Array, windows: Windows, groups: int) -> Array:
    """The convolution of data by weights, in the data type of both."""
    padded = windows.padded(x, 0)
    batch, channels = x.shape[:2]
    if channels == groups and w.shape[0] <= 4 * groups:  # too small for a product to pay
        return _depthwise(padded, w, windows)
    weights = w.reshape(groups, w.shape[0] // groups, prod(w.shape[1:]))
    made = np.empty((batch, groups, weights.shape[1], *windows.counts), np.result_type(x, w))
    view = windows.view(padded.reshape(batch, groups, channels // groups, *padded.shape[2:]))
    row = prod(windows.counts[1:]) * weights.shape[2] * groups * made.itemsize
    rows = max(1, COLUMN_BYTES // max(row, 1))
    start = 2 + len(windows.kernel)  # of the windows' axes in one image's view
    for image in range(batch):
        for first in range(0, windows.counts[0], rows):
            place: Any = (image, *(slice(None),) * start, slice(first, first + rows))
            part = view[place]
            columns = part.reshape(groups, weights.shape[2], prod(part.shape[start:]))
            product = weights @ columns
            made[image, :, :, first : first + rows] = product.reshape(*product.shape[:2], *part.shape[start:])
    return made.reshape(batch, w.shape[0], *windows.counts)


def _depthwise(padded: Array, w: Array, windows: Windows) -> Array:
    batch, groups = padded.shape[:2]
    axes = len(windows.kernel)
    made = np.zeros((batch, groups, w.shape[0] // groups, *windows.counts), np.result_type(padded, w))
    weights = w.reshape(groups, -1, *windows.kernel)
    for tap in np.ndindex(*windows.kernel):
        place = (slice(None), slice(None), None, *(windows.taps(axis, n) for axis, n in enumerate(tap)))
        factors = weights[(slice(None), slice(None)) + tap]  # noqa: RUF005 (mypy takes it for a star index)
        made += factors.reshape(groups, -1, *(1,) * axes) * padded[place]
    return made.reshape(batch, w.shape[0], *windows.counts)


def _checked(x: Array, w: Array, group: int, kernel_shape: Sequence[int] | None) -> None:
    """Refuse weights that don't fit the data."""
    spatial(x)
    if w.ndim != x.ndim:
        raise LayoutError(f"weights of {w.ndim} axes for data of {x.ndim}")
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise LayoutError(f"kernel_shape {tuple(kernel_shape)}, but the weights' is {w.shape[2:]}")
    if group < 1 or x.shape[1] % group:
        raise LayoutError(f"{x.shape[1]} channels can't be parted into {group} groups")


def _forward(
    x: Array,
    w: Array,
    b: Array | None = None,
    /,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **_: object,
) -> None:
    """Refuse weights and a bias of a convolution that don't fit the data."""
    _checked(x, w, group, kernel_shape)
    if w.shape[1] * group != x.shape[1]:
        raise LayoutError(
            f"{x.shape[1]} channels, but the weights take {w.shape[1]} in each of {group} groups"
        )
    if w.shape[0] % group:
        raise LayoutError(f"{w.shape[0]} output channels can't be parted into {group} groups")
    _fitting(b, w.shape[0])


def _backward(
    x: Array,
    w: Array,
    b: Array | None = None,
    /,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **_: object,
) -> None:
    """Refuse weights and a bias of a transposed convolution that don't fit the data."""
    _checked(x, w, group, kernel_shape)
    if w.shape[0] != x.shape[1]:
        raise LayoutError(f"{x.shape[1]} channels, but the weights take {w.shape[0]}")
    _fitting(b, w.shape[1] * group)


def _fitting(bias: Array | None, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise LayoutError(f"a bias of {bias.shape} for {channels} channels")


def channelwise(bias: Array, axes: int) -> Array:
    """A vector as it is broadcast over the channels of data with so many axes."""
    return bias.reshape(-1, *(1,) * (axes - 2))


def biased(y: Array, bias: Array | None) -> Array:
    """A result with the bias of each channel added."""
    if bias is None:
        return y
    _fitting(bias, y.shape[1])
    y += channelwise(bias.astype(y.dtype, copy=False), y.ndim)
    return y


def infer_conv(
    x: Fact,
    w: Fact,
    *_: Fact | None,
    kernel_shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    **__: object,
) -> Fact:
    """What is known of a convolution's result."""
    if x.dims is None:
        return Fact(None, x.dtype)
    kernel = kernel_shape or (None if w.dims is None else w.dims[2:])
    channels = None if w.dims is None else w.dims[0]
    found: Sequence[Size] = (None,) * (len(x.dims) - 2)
    if kernel is not None and all(isinstance(n, int) for n in kernel):
        known = tuple(n for n in kernel if isinstance(n, int))
        found = dims_of_windows(x.dims[2:], known, strides, dilations, pads, auto_pad)
    return Fact((x.dims[0], channels, *found), x.dtype)


@operator("Conv", infer=infer_conv, fits=_forward)
def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Convolution; f16 and bf16 are accumulated in f32."""
    windows = slide(spatial(x), w.shape[2:], strides, dilations, pads, auto_pad)
    return narrow(biased(convolve(wide(x), wide(w), windows, group), b), x.dtype)


def _shifted(x: Array, zero: Array | None, axis: int = -1) -> Array:
    """Integers less their zero point, as doubles; a vector of zero points goes along an axis."""
    made = x.astype(np.float64)
    if zero is not None and zero.size:
        points = zero.astype(np.float64)
        if zero.size == 1:
            points = points.reshape(())
        elif axis >= 0 and zero.shape == x.shape[axis : axis + 1]:
            points = points.reshape(-1, *(1,) * (x.ndim - axis - 1))
        else:
            raise LayoutError(f"zero points of {zero.shape} for a tensor of {x.shape}")
        made -= points
    return made


def integer_convolution(
    x: Array,
    w: Array,
    x_zero: Array | None,
    w_zero: Array | None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Exact sums of products of integers less their zero points, as doubles, by a Conv's attributes."""
    _forward(x, w, group=group, kernel_shape=kernel_shape)
    windows = slide(spatial(x), w.shape[2:], strides, dilations, pads, auto_pad)
    return convolve(_shifted(x, x_zero), _shifted(w, w_zero, 0), windows, group)


def _infer_integer(x: Fact, w: Fact, *_: Fact | None, **attributes: Any) -> Fact:
    return Fact(infer_conv(x, w, **attributes).dims, np.dtype(np.int32))


@operator("ConvInteger", infer=_infer_integer, like="Conv")
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    /,
    **windows: Any,
) -> Array:
    """Convolution of integers less their zero points, into s32; padding is the zero point."""
    made = integer_convolution(x, w, x_zero_point, w_zero_point, **windows)
    return made.astype(np.int64).astype(np.int32)


def _infer_transposed(
    x: Fact,
    w: Fact,
    b: Fact | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Fact:
    if x.dims is None:
        return Fact(None, x.dtype)
    kernel = kernel_shape or (None if w.dims is None else w.dims[2:])
    channels = None if w.dims is None or not isinstance(w.dims[1], int) else w.dims[1] * group
    axes = len(x.dims) - 2
    found: list[Size] = [None] * axes
    if kernel is not None and all(isinstance(n, int) for n in kernel):
        for axis, size in enumerate(x.dims[2:]):
            if not isinstance(size, int):
                continue
            windows = transposed_windows(
                [n if isinstance(n, int) else 1 for n in x.dims[2:]],
                [n for n in kernel if isinstance(n, int)],
                *(strides, dilations, pads, auto_pad, output_padding, output_shape),
            )
            found[axis] = windows.sizes[axis]
    if output_shape:
        found = list(output_shape[-axes:])
    return Fact((x.dims[0], channels, *found), x.dtype)


def transposed_windows(
    counts: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> Windows:
    """The windows of the convolution that this is the transpose of: its data is the result here."""
    axes = len(counts)
    kernel = per_axis(kernel, axes, 1, "kernel_shape")
    strides = per_axis(strides, axes, 1, "strides")
    dilations = per_axis(dilations, axes, 1, "dilations")
    extra = per_axis(output_padding, axes, 0, "output_padding", 0)
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if auto_pad not in ("NOTSET", "", "VALID") and not same:
        raise LayoutError(f"auto_pad {auto_pad!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    explicit = around(None if auto_pad == "VALID" else pads, axes)
    if output_shape and (len(output_shape) < axes or min(output_shape) < 0):
        raise LayoutError(f"output_shape {tuple(output_shape)} must be {axes} numbers of 0 or more")
    sizes, begin, end = [], [], []
    for axis in range(axes):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        full = (counts[axis] - 1) * strides[axis] + extent + extra[axis] if counts[axis] else 0
        if output_shape or same:
            wanted = output_shape[axis - axes] if output_shape else counts[axis] * strides[axis]
            total = max(0, full - wanted)
            small, large = total // 2, total - total // 2
            before, behind = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        else:
            before, behind = explicit[axis], explicit[axes + axis]
            wanted = max(0, full - before - behind)
        sizes.append(int(wanted))
        begin.append(before)
        end.append(behind)
    parts = (tuple(part) for part in (sizes, kernel, strides, dilations, begin, end, counts))
    return Windows(*parts)


@operator("ConvTranspose", infer=_infer_transposed, fits=_backward)
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    /,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Transposed convolution: each element of the data adds the weights, times itself, to the result."""
    windows = transposed_windows(
        spatial(x), w.shape[2:], strides, dilations, pads, auto_pad, output_padding, output_shape
    )
    batch, channels, count = x.shape[0], x.shape[1], prod(x.shape[2:])
    weights = wide(w).reshape(group, channels // group, prod(w.shape[1:])).swapaxes(1, 2)
    made = np.empty((batch, w.shape[1] * group, *windows.sizes), np.result_type(wide(x), weights))
    for image in range(batch):
        product = weights @ wide(x[image]).reshape(group, channels // group, count)
        columns = product.reshape(group * w.shape[1], *windows.kernel, *windows.counts)
        made[image] = fold(columns, windows)
    return narrow(biased(made, b), x.dtype)


def _infer_col2im(x: Fact, image_shape: Fact, block_shape: Fact, /, **_: object) -> Fact:
    channels: Size = None
    if x.dims is not None and block_shape.data is not None and isinstance(x.dims[1], int):
        channels = x.dims[1] // max(1, prod(int(n) for n in block_shape.data))
    batch = None if x.dims is None else x.dims[0]
    if image_shape.data is not None:
        return Fact((batch, channels, *map(int, image_shape.data)), x.dtype)
    axes = image_shape.dims[0] if image_shape.dims else None
    return Fact((batch, channels, *(None,) * axes) if isinstance(axes, int) else None, x.dtype)


@operator("Col2Im", infer=_infer_col2im)
def col2im(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    /,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Columns of blocks added up to the images that they are of."""
    if image_shape.ndim != 1 or image_shape.shape != block_shape.shape:
        raise LayoutError(f"image_shape of {image_shape.shape} and block_shape of {block_shape.shape}")
    sizes, kernel = tuple(map(int, image_shape)), tuple(map(int, block_shape))
    windows = slide(sizes, kernel, strides, dilations, pads)
    if x.ndim != 3 or x.shape[1] % prod(kernel) or x.shape[2] != prod(windows.counts):
        raise LayoutError(
            f"images of {sizes} have {prod(windows.counts)} blocks of {kernel}: "
            f"columns must be batch x (channels x {prod(kernel)}) x {prod(windows.counts)}"
        )
    channels = x.shape[1] // prod(kernel)
    columns = x.reshape(x.shape[0], channels, *kernel, *windows.counts)
    return np.ascontiguousarray(fold(columns, windows))


def _infer_causal(x: Fact, w: Fact, *_: Fact | None, **__: object) -> tuple[Fact, Fact]:
    taps = None if w.dims is None else w.dims[2]
    lead = (None, None) if x.dims is None else x.dims[:2]
    return Fact(x.dims, x.dtype), Fact((*lead, taps - 1 if isinstance(taps, int) else None), x.dtype)


@operator("CausalConvWithState", infer=_infer_causal)
def causal_conv_with_state(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    /,
    *,
    activation: str = "none",
) -> tuple[Array, Array]:
    """Depthwise convolution along time that sees nothing of the future, and the last elements that it saw."""
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (x.shape[1], 1):
        raise LayoutError("data must be batch x channels x length, and weights channels x 1 x taps")
    if activation not in ("none", "silu", "swish"):
        raise LayoutError(f"activation {activation!r} is none of none, silu, swish")
    taps = weight.shape[2]
    if taps < 1:
        raise LayoutError("weights have no taps")
    past = np.zeros((*x.shape[:2], taps - 1), x.dtype) if past_state is None else past_state
    if past.shape != (*x.shape[:2], taps - 1):
        raise LayoutError(f"the past must be {(*x.shape[:2], taps - 1)}, got {past.shape}")
    whole = np.concatenate([past, x], axis=2)
    windows = slide(whole.shape[2:], (taps,))
    made = biased(convolve(wide(whole), wide(weight), windows, x.shape[1]), bias)
    if activation != "none":
        made = made / (1 + np.exp(-made))
    return narrow(made, x.dtype), whole[:, :, x.shape[2] :].copy()
