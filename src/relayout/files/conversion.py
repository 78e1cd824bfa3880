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
from numpy.typing import NDArray

from relayout.dtypes import DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.files.mapped import release
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, plain
from relayout.reorder import Reorder
from relayout.reorder.attributes import Attributes
from relayout.tensor import Tensor

__all__ = ["Normalise", "convert_into", "slices"]

SLICE_BYTES = 1 << 26  # of source and destination together that are worked on at a time


class Normalise(NamedTuple):
    """Mean and standard deviation along a logical axis: ``(x - mean) / std``, as for pictures, or back."""

    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    axis: int
    back: bool = False

    def apply(self, values: NDArray[np.float32], start: int) -> None:
        """Change a logical array in place that begins at index ``start`` of the axis."""
        part = slice(start, start + values.shape[self.axis])
        shape = [-1 if axis == self.axis else 1 for axis in range(values.ndim)]
        mean, std = (v.reshape(()) if v.size == 1 else v[part].reshape(shape) for v in (self.mean, self.std))
        if self.back:
            values *= std
            values += mean
        else:
            values -= mean
            values /= std


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
    threads: int | None = None,
    slice_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **attributes: Any,
) -> None:
    """Convert one tensor into another, in slices.

    Parameters
    ----------
    src, dst : Tensor
        Of the same dims; usually memory maps.
    normalise : Normalise, optional
        What happens between the source's scale and the destination's, in f32.
    threads : int, optional
        How many threads may work.
    slice_bytes : int, optional
        Bytes of both tensors that are worked on at a time.
    progress : callable, optional
        Called with the elements done and the elements to do, after every slice.
    **attributes
        Scales and zero points, as :func:`relayout.reorder` takes them.
    """
    made = Attributes.make(src.dims, **attributes)
    if src.dims != dst.dims:
        raise LayoutError(f"source {src.desc} and destination {dst.desc} must have the same dims")
    if normalise is not None:
        for word, values in (("mean", normalise.mean), ("std", normalise.std)):
            if values.size not in (1, src.dims[normalise.axis]):
                raise LayoutError(
                    f"{word} has {values.size} values, but axis {normalise.axis} of {src.desc} has size "
                    f"{src.dims[normalise.axis]}"
                )
    total, done = prod(src.dims), 0
    for cut in slices(src.desc, dst.desc, slice_bytes or SLICE_BYTES):
        one, two = (_part(side, cut) for side in (src, dst))
        parts = _attributes_of(made, cut)
        if normalise is None:
            Reorder(one.desc, two.desc, threads=threads, **parts)(one.buffer, two.buffer)
        else:
            _normalised(one, two, normalise, cut[normalise.axis][0], threads, parts)
        done += prod(one.dims)
        if done < total:  # more slices are to come, and need the memory
            release(src.buffer)
            release(dst.buffer)
        if progress is not None:
            progress(done, total)


def destination(src: MemoryDesc, format: str | Format | None, dtype: DTypeLike | None) -> MemoryDesc:
    """The descriptor to convert to: another format, another data type, or both."""
    kind = src.dtype if dtype is None else as_dtype(dtype)
    if format is not None:
        desc = MemoryDesc(src.dims, kind, format)
        if desc.layout is None:
            raise LayoutError(f"nothing can be converted to the format {format}; name one that has a layout")
        return desc
    kept = src.format
    return MemoryDesc(src.dims, kind, kept if kept is not None else Layout(src.dims, plain(src.rank)))


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


def _attributes_of(made: Attributes, cut: Cut) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name in ("src_scale", "dst_scale", "src_zero_point", "dst_zero_point"):
        given = getattr(made, name)
        if given is not None:
            parts[name] = (
                given.values if given.axis is None else (given.values[slice(*cut[given.axis])], given.axis)
            )
    return parts


def _normalised(
    src: Tensor,
    dst: Tensor,
    normalise: Normalise,
    start: int,
    threads: int | None,
    attributes: dict[str, Any],
) -> None:
    """By way of a row-major f32 array, in which mean and deviation are applied."""
    before = {name: value for name, value in attributes.items() if name.startswith("src")}
    after = {name: value for name, value in attributes.items() if name.startswith("dst")}
    between = MemoryDesc(src.dims, "f32", Layout(src.dims, plain(len(src.dims))))
    values = np.zeros(src.dims, np.float32)
    Reorder(src.desc, between, threads=threads, **before)(src.buffer, values)
    normalise.apply(values, start)
    Reorder(between, dst.desc, threads=threads, **after)(values, dst.buffer)
