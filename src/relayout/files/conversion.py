"""From file to file, in slices.

Source and destination are memory maps, so neither is ever loaded. They are converted slice by slice, and a
slice is nothing but a pair of views: both tensors are halved along the axis that lies outermost in both,
until what is left fits into the memory that one may use at a time. Cuts fall on the borders of blocks of both
formats, so every slice is a layout of its own::

    nhwc -> nChw16c, 1x64x4096x4096       cut along h, at any row: n and c can't be cut, or lie innermost
    nchw -> NChw16n16c, 1000x64x56x56     cut along n, at multiples of 16

Where the layouts can't be cut (fused axes), or the file is small, there is one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import lcm, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relayout.dtypes import DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, counted, whole
from relayout.exchange.mapped import release
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, plain
from relayout.reorder.attributes import Attributes, PerAxis, numbers
from relayout.reorder.axes import asked_for, check_axes, indexed_alike
from relayout.reorder.conversion import Conversion
from relayout.tensor import Tensor

__all__ = ["Normalise", "convert_into", "slices"]

SLICE_BYTES = 1 << 26  # of source and destination together that are worked on at a time


class _Normalise(NamedTuple):
    mean: ArrayLike
    std: ArrayLike
    axis: int
    back: bool = False


class Normalise(_Normalise):
    """Mean and standard deviation along a logical axis: ``(x - mean) / std``, as for pictures, or back.

    It is what torchvision's ``Normalize`` does, at the place of ``src_shift``: behind the source's scale and
    before the destination's. The numbers are taken in f64.

    Raises
    ------
    LayoutError
        The numbers are not finite, not in one list, or not as many of the one as of the other; a deviation is
        0; the axis is no whole number.

    Examples
    --------
    >>> imagenet = Normalise([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], axis=1)
    >>> imagenet.attributes(MemoryDesc((1, 3, 4, 4), "u8", "nhwc"), Attributes.make((1, 3, 4, 4)))
    Attributes(src_scale=None, dst_scale=PerAxis(values=array([0.229, 0.224, 0.225]), axis=1), ...
    """

    __slots__ = ()

    def __new__(cls, mean: ArrayLike, std: ArrayLike, axis: int, back: bool = False) -> Normalise:
        """Check the numbers, and keep them as f64."""
        means, deviations = (cls._listed(word, given) for word, given in (("mean", mean), ("std", std)))
        if means.ndim and deviations.ndim and means.size != deviations.size:
            raise LayoutError(
                f"normalise: mean has {counted(means.size, 'value')}, and std {deviations.size}"
            )
        if not deviations.all():
            raise LayoutError("normalise: std has a 0 in it; values are divided by it")
        return super().__new__(cls, means, deviations, whole(axis, "normalise: the axis"), back)

    @staticmethod
    def _listed(word: str, given: ArrayLike) -> NDArray[np.float64]:
        values = numbers(f"normalise: {word}", given)
        if values.ndim > 1 or not values.size:
            raise LayoutError(f"normalise: {word} must be a number or one list of them, got {given!r:.60}")
        return values.astype(np.float64)

    def attributes(self, desc: MemoryDesc, given: Attributes) -> Attributes:
        """The attributes that do both: those given, with mean and deviation among them.

        Raises
        ------
        LayoutError
            The numbers are not one for each index of the axis, there is a shift already, or scales on both
            sides lie along another axis than the deviation.
        """
        if given.src_shift is not None:
            raise LayoutError("src_shift and normalise both shift the source; give one of them")
        if not -desc.rank <= self.axis < desc.rank:
            raise LayoutError(f"normalise: there is no axis {self.axis!r} in {desc}")
        mean, std = self._numbers("mean", self.mean, desc), self._numbers("std", self.std, desc)
        # (x - mean) / std divides with the destination's scale; back, x * std - (-mean) multiplies with the
        # source's. Where that scale lies along another axis, std goes to the other side, dividing the shift.
        shift = -mean.values if self.back else mean.values
        mine, other = ("src_scale", "dst_scale") if self.back else ("dst_scale", "src_scale")
        scale = _scaled(getattr(given, mine), std.values, std.axis)
        if scale is not None:
            changed: dict[str, Any] = {mine: scale, "src_shift": PerAxis(shift, mean.axis)}
            return given.changed(**changed)
        scale = _scaled(getattr(given, other), 1 / std.values, std.axis)
        if scale is not None:
            axis = mean.axis if std.axis is None else std.axis
            changed = {other: scale, "src_shift": PerAxis(shift / std.values, axis)}
            return given.changed(**changed)
        raise LayoutError(
            f"normalise: std lies along axis {std.axis}, and both scales along others; give one of the "
            "scales as a single number, or convert in two steps"
        )

    def _numbers(self, word: str, given: ArrayLike, desc: MemoryDesc) -> PerAxis:
        """One number, or as many as the axis has indices."""
        axis = self.axis % desc.rank
        values = np.asarray(given)
        if values.size not in (1, desc.dims[axis]):
            raise LayoutError(
                f"{word} has {counted(values.size, 'value')}, but axis {axis} of {desc} has size "
                f"{desc.dims[axis]}"
            )
        return PerAxis(values.reshape(()), None) if values.size == 1 else PerAxis(values, axis)


def _scaled(scale: PerAxis | None, factor: NDArray[np.float64], axis: int | None) -> PerAxis | None:
    """A scale times a factor along an axis (None: one number); None if they lie along different axes."""
    if scale is None:
        return PerAxis(factor, axis)
    if None not in (scale.axis, axis) and scale.axis != axis:
        return None
    return PerAxis(scale.values.astype(np.float64) * factor, scale.axis if axis is None else axis)


Cut = tuple[tuple[int, int], ...]


def slices(src: MemoryDesc, dst: MemoryDesc, most_bytes: int) -> Iterator[Cut]:
    """Cut two descriptors of the same dims into slices, each the ``(start, stop)`` of every axis.

    Examples
    --------
    >>> import relayout as rl
    >>> src, dst = rl.MemoryDesc((1, 64, 4, 4), "u8", "nhwc"), rl.MemoryDesc((1, 64, 4, 4), "f32", "nChw16c")
    >>> [cut[2] for cut in slices(src, dst, 1500)]  # along h
    [(0, 1), (1, 2), (2, 3), (3, 4)]
    """
    units = [_unit(src.layout, dst.layout, axis) for axis in range(src.rank)]  # 0: can't be cut
    bits = src.dtype.bits + dst.dtype.bits
    pending: list[Cut] = [tuple((0, size) for size in src.dims)]
    while pending:
        cut = pending.pop()
        lengths = [stop - start for start, stop in cut]
        axis = (
            None
            if prod(lengths) * bits <= most_bytes * 8
            else _outermost(src.layout, dst.layout, lengths, units)
        )
        if axis is None:
            yield cut
            continue
        start, stop = cut[axis]
        unit = units[axis]
        middle = start + -(-(stop - start) // (2 * unit)) * unit
        pending.append((*cut[:axis], (middle, stop), *cut[axis + 1 :]))
        pending.append((*cut[:axis], (start, middle), *cut[axis + 1 :]))


def convert_into(
    src: Tensor,
    dst: Tensor,
    *,
    normalise: Normalise | None = None,
    axes: str = "meaning",
    threads: int | None = None,
    slice_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **attributes: Any,
) -> None:
    """Convert one tensor into another, in slices.

    Parameters
    ----------
    src, dst : Tensor
        Of the same dims, axis by axis; usually memory maps.
    normalise : Normalise, optional
        What happens between the source's scale and the destination's, in the same pass and in f64.
    axes : str
        How axes are matched, by "meaning" or by "position", as :func:`relayout.reorder` takes it.
    threads : int, optional
        How many threads may work.
    slice_bytes : int, optional
        Bytes of both tensors that are worked on at a time.
    progress : callable, optional
        Called with the elements done and the elements to do, after every slice.
    **attributes
        Scales, zero points and a shift, as :func:`relayout.reorder` takes them. Which of them do nothing is
        decided for the whole tensor, so that the result does not depend on where it is cut.
    """
    check_axes(axes)
    dst = Tensor(indexed_alike(src.desc, dst.desc, axes), dst.buffer)
    made = Attributes.make(src.dims, **attributes)
    if normalise is not None:
        made = normalise.attributes(src.desc, made)
    made.check_range(src.dtype, dst.dtype)
    made = made.taking_part(src.dtype, dst.dtype)
    total, done = prod(src.dims), 0
    for cut in slices(src.desc, dst.desc, slice_bytes or SLICE_BYTES):
        one, two = (_part(side, cut) for side in (src, dst))
        Conversion.settled(one.desc, two.desc, made.part(cut), threads)(one.buffer, two.buffer)
        done += prod(one.dims)
        if done < total:  # more slices are to come, and need the memory
            release(src.buffer)
            release(dst.buffer)
        if progress is not None:
            progress(done, total)


def destination(
    src: MemoryDesc, format: str | Format | None, dtype: DTypeLike | None, axes: str = "meaning"
) -> MemoryDesc:
    """The descriptor to convert to: another format, another data type, or both; indexed as the source is."""
    check_axes(axes)
    kind = None if dtype is None else as_dtype(dtype)
    if format is None:
        kept = src.format or plain(src.rank).with_roles(src.layout.roles)
        return MemoryDesc(src.dims, kind or src.dtype, kept)
    if isinstance(format, str) and format in ("any", "undef"):
        raise LayoutError(f"nothing can be converted to the format {format}; name one that has a layout")
    return asked_for(src, Format(format), kind, axes)


# -- workings -------------------------------------------------------------------------------------------


def _unit(src: Layout, dst: Layout, axis: int) -> int:
    """At multiples of what an axis can be cut in both layouts; 0: not at all."""
    unit = 1
    for layout in (src, dst):
        if (axis,) not in layout.terms:
            return 0
        unit = lcm(unit, layout.ladders[layout.terms.index((axis,))][0].weight)
    return unit


def _outermost(src: Layout, dst: Layout, lengths: list[int], units: list[int]) -> int | None:
    """The axis to cut next: of those that still can be cut, that whose smaller stride is largest."""
    best = None
    for axis, (length, unit) in enumerate(zip(lengths, units, strict=True)):
        if unit and length > unit:
            strides = [layout.ladders[layout.terms.index((axis,))][0].stride for layout in (src, dst)]
            found = (min(map(abs, strides)), max(map(abs, strides)), -axis)
            best = max(best, found) if best is not None else found
    return None if best is None else -best[2]


def _part(tensor: Tensor, cut: Cut) -> Tensor:
    """The slice of a tensor, as a tensor whose buffer begins (almost) where the slice does."""
    layout = tensor.layout
    for axis, (start, stop) in enumerate(cut):
        if (start, stop) != (0, layout.dims[axis]):
            layout = views.slice_axis(layout, axis, start, stop)
    low, high = layout.bounds()
    bits = tensor.dtype.bits
    first = low * bits // 8  # in bytes; a half byte in front of an odd place is kept
    layout = layout.moved(layout.offset0 - first * 8 // bits)
    last = -(-(high + 1) * bits // 8)
    return Tensor(MemoryDesc._make(layout.dims, tensor.dtype, layout), tensor.buffer[first:last])
