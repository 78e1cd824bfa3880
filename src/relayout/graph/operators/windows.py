"""Windows that slide over the spatial axes of a tensor: what convolution and pooling share.

A window has ``kernel`` taps along an axis, ``dilation`` elements apart; the next window starts ``stride``
elements further on. ``begin`` and ``end`` are how many elements of padding stand in front of and behind the
data ::

    padding  data                padding      kernel 3, stride 2, dilation 1
    .        a  b  c  d  e  f    .            begin 1, end 1: three windows
    [.       a  b]
                [b  c  d]
                      [d  e  f]               the padding behind f is reached by none

Nothing here loops over elements: a tap of all windows is a strided slice of the padded data, and a sum or a
maximum over windows is taken axis by axis, so that a 7x7 window costs 14 passes and not 49.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array

__all__ = ["WINDOWS", "Size", "Windows", "around", "dims_of_windows", "fold", "per_axis", "slide", "spatial"]

Size = int | str | None
"""A dimension as inference knows it."""


@dataclass(frozen=True)
class Windows:
    """Windows over some axes, one number of each kind for each axis.

    Attributes
    ----------
    sizes : tuple of int
        Of the data.
    kernel, strides, dilations : tuple of int
        In elements.
    begin, end : tuple of int
        Elements of padding.
    counts : tuple of int
        How many windows there are.
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    counts: tuple[int, ...]

    def padded(self, x: Array, fill: float) -> Array:
        """The last axes with ``fill`` around them, as far as windows reach and no further."""
        axes = len(self.sizes)
        widths, cut = [(0, 0)] * (x.ndim - axes), [slice(None)] * (x.ndim - axes)
        for axis in range(axes):
            needed = self.reach(axis)
            end = max(0, needed - self.begin[axis] - self.sizes[axis])
            widths.append((self.begin[axis], end))
            cut.append(slice(0, needed))
        if any(before or behind for before, behind in widths):
            x = np.pad(x, widths, constant_values=fill)
        return x[tuple(cut)]

    def reach(self, axis: int) -> int:
        """How many elements of padded data the windows cover."""
        return max(0, (self.counts[axis] - 1) * self.strides[axis] + self.extent(axis))

    def extent(self, axis: int) -> int:
        """How many elements one window covers."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def taps(self, axis: int, tap: int) -> slice:
        """Where the windows have this tap, in padded data."""
        first = tap * self.dilations[axis]
        return slice(
            first,
            first + (self.counts[axis] - 1) * self.strides[axis] + 1 if self.counts[axis] else first,
            self.strides[axis],
        )

    def tapped(self, padded: Array, axis: int) -> list[Array]:
        """For each tap along an axis the elements that the windows have there."""
        lead = [slice(None)] * (padded.ndim - len(self.sizes) + axis)
        places = [(*lead, self.taps(axis, tap)) for tap in range(self.kernel[axis])]
        return [padded[place] for place in places]

    def view(self, padded: Array) -> Array:
        """Padded data with its last axes replaced by the kernel's and then the windows', without a copy."""
        axes = len(self.sizes)
        lead, steps = padded.shape[:-axes], padded.strides[-axes:]
        inner = (n * step for n, step in zip(self.dilations, steps, strict=True))
        outer = (n * step for n, step in zip(self.strides, steps, strict=True))
        shape = (*lead, *self.kernel, *self.counts)
        return as_strided(padded, shape, (*padded.strides[:-axes], *inner, *outer), writeable=False)

    def reduced(self, padded: Array, combine: Callable[..., Array]) -> Array:
        """All taps of each window combined by a ufunc such as ``np.maximum`` or ``np.add``."""
        for axis in range(len(self.sizes)):
            first, *others = self.tapped(padded, axis)
            made = first.copy()
            for other in others:
                combine(made, other, out=made)
            padded = made
        return padded


def per_axis(
    given: Sequence[int] | None, axes: int, default: int, what: str, least: int = 1
) -> tuple[int, ...]:
    """An attribute with one number for each axis.

    >>> per_axis(None, 2, 1, "strides")
    (1, 1)
    >>> per_axis((2, 0), 2, 1, "strides")
    Traceback (most recent call last):
    relayout.errors.LayoutError: strides (2, 0) must be 1 or more
    """
    if given is None or (not len(given) and axes):
        return (default,) * axes
    numbers = tuple(int(n) for n in given)
    if len(numbers) != axes:
        raise LayoutError(f"{what} {numbers} must be {axes} numbers, one for each spatial axis")
    if any(n < least for n in numbers):
        raise LayoutError(f"{what} {numbers} must be {least} or more")
    return numbers


WINDOWS: Final[dict[str, Any]] = {
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "dilations": None,
    "kernel_shape": ...,
    "pads": None,
    "strides": None,
}
"""The attributes of operators that slide windows, with their defaults: what :func:`slide` takes."""


def slide(
    sizes: Sequence[int],
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> Windows:
    """The windows that attributes of ONNX describe.

    >>> slide((6,), (3,), strides=(2,), pads=(1, 1)).counts
    (3,)
    >>> slide((6,), (3,), strides=(2,), auto_pad="SAME_UPPER").end
    (1,)
    >>> slide((2,), (3,), strides=(2,), ceil_mode=1).counts
    (1,)
    """
    axes = len(sizes)
    kernel = per_axis(kernel_shape, axes, 1, "kernel_shape")
    strides = per_axis(strides, axes, 1, "strides")
    dilations = per_axis(dilations, axes, 1, "dilations")
    given = around(pads, axes)
    found = [
        _axis(sizes[i], kernel[i], strides[i], dilations[i], given[i], given[axes + i], auto_pad, ceil_mode)
        for i in range(axes)
    ]
    begin, end, counts = (tuple(one[i] for one in found) for i in range(3))
    return Windows(tuple(sizes), kernel, strides, dilations, begin, end, counts)


def around(pads: Sequence[int] | None, axes: int) -> tuple[int, ...]:
    """The attribute with padding in front of all axes and then behind them."""
    found = (0,) * (2 * axes) if not pads else tuple(int(n) for n in pads)
    if len(found) != 2 * axes or min(found, default=0) < 0:
        raise LayoutError(f"pads {found} must be {2 * axes} numbers of 0 or more: all begins, then all ends")
    return found


def _axis(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, auto_pad: str, ceil: int
) -> tuple[int, int, int]:
    """Padding in front and behind, and how many windows."""
    extent = (kernel - 1) * dilation + 1
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + extent - size)  # never less than none, as in TensorFlow
        small, large = total // 2, total - total // 2
        return (small, large, count) if auto_pad == "SAME_UPPER" else (large, small, count)
    if auto_pad == "VALID":
        begin = end = 0
    elif auto_pad not in ("NOTSET", ""):
        raise LayoutError(f"auto_pad {auto_pad!r} is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    room = size + begin + end - extent
    if room < 0:
        if size == 0:
            return begin, end, 0
        if ceil and -room < stride:  # a size that is rounded up has a window that reaches over the end
            return begin, end, 1
        raise LayoutError(f"a window of {extent} elements doesn't fit {begin} + {size} + {end}")
    count = room // stride + 1
    if ceil and room % stride and count * stride < size + begin:  # no window starts in the padding behind
        count += 1
    return begin, end, count


def dims_of_windows(
    sizes: Sequence[Size],
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> tuple[Size, ...]:
    """How many windows there are along each axis, as far as it is known.

    >>> dims_of_windows(("height", 8), (3, 3), pads=(1, 1, 1, 1))
    ('height', 8)
    """
    axes = len(sizes)
    kernel = per_axis(kernel_shape, axes, 1, "kernel_shape")
    strides = per_axis(strides, axes, 1, "strides")
    dilations = per_axis(dilations, axes, 1, "dilations")
    given = around(pads, axes)
    found: list[Size] = []
    for axis, size in enumerate(sizes):
        of_axis = (kernel[axis], strides[axis], dilations[axis], given[axis], given[axes + axis])
        if isinstance(size, int):
            found.append(_axis(size, *of_axis, auto_pad, ceil_mode)[2])
            continue
        same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
        pad = given[axis] + given[axes + axis] if auto_pad in ("NOTSET", "") else 0
        kept = same or pad == (kernel[axis] - 1) * dilations[axis]
        found.append(size if kept and strides[axis] == 1 else None)
    return tuple(found)


def spatial(x: Array, least: int = 1) -> tuple[int, ...]:
    """The sizes of the axes behind batch and channels."""
    if x.ndim < 2 + least:
        raise LayoutError(f"{x.ndim} axes are too few: batch, channels and {least} or more spatial ones")
    return x.shape[2:]


def fold(columns: Array, windows: Windows) -> Array:
    """The sum of all windows where each has its place: the transpose of ``windows.view``.

    Parameters
    ----------
    columns : ndarray
        Its last axes are the kernel's and then the windows'.

    Returns
    -------
    ndarray
        With the data's sizes as its last axes; what falls into the padding is gone.
    """
    axes = len(windows.sizes)
    lead = columns.shape[: -2 * axes]
    reach = [max(windows.reach(a), windows.begin[a] + windows.sizes[a]) for a in range(axes)]
    made = np.zeros((*lead, *reach), columns.dtype)
    if prod(windows.counts):
        for tap in np.ndindex(*windows.kernel):
            place: Any = (..., *(windows.taps(axis, n) for axis, n in enumerate(tap)))
            made[place] += columns[(slice(None),) * len(lead) + tap]
    cut: Any = (..., *(slice(b, b + n) for b, n in zip(windows.begin, windows.sizes, strict=True)))
    return np.asarray(made[cut])
