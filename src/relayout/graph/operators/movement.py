"""Elements at other places: joined, cut, repeated, padded, reversed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.axes import Dim, Dims, axes_in, axis_in, known_product, numbers, only
from relayout.graph.operators.binary import alike
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import TEXT

__all__ = ["joined_dims", "zero"]


def zero(dtype: np.dtype[Any]) -> Any:
    """What padding is by default: 0, False, or no text."""
    return "" if dtype == TEXT else dtype.type(0)


def joined_dims(parts: Sequence[Dims], axis: int) -> Dims:
    """Dims of tensors side by side along an axis.

    >>> joined_dims([("batch", 2, 8), (None, 3, 8)], 1)
    ('batch', 5, 8)
    """
    if len({len(one) for one in parts}) > 1:
        raise LayoutError(
            f"all inputs must have the same number of axes, got {', '.join(str(len(one)) for one in parts)}"
        )
    axis = axis_in(axis, len(parts[0]))
    made: list[Dim] = []
    for at, sizes in enumerate(zip(*parts, strict=True)):
        known = [n for n in sizes if isinstance(n, int)]
        if at == axis:
            whole = sum(known) if len(known) == len(sizes) else None
            made.append(sizes[0] if len(sizes) == 1 else whole)
            continue
        if len(set(known)) > 1:
            raise LayoutError(f"sizes of axis {at} differ: {', '.join(map(str, sizes))}")
        made.append(known[0] if known else next((n for n in sizes if n is not None), None))
    return tuple(made)


def _joined(*inputs: Fact, axis: int) -> Fact:
    dims = [one.dims for one in inputs if one.dims is not None]
    if len(dims) < len(inputs):
        return Fact((None,) * len(dims[0]) if dims else None, inputs[0].dtype)
    return Fact(joined_dims(dims, axis), inputs[0].dtype)


@operator("Concat", infer=_joined)
def concat(inputs: Array, /, *more: Array, axis: int) -> Array:
    """Tensors side by side along an axis."""
    alike(inputs, *more)
    joined_dims([x.shape for x in (inputs, *more)], axis)
    return np.concatenate((inputs, *more), axis)


def split_sizes(size: int, split: Sequence[int] | None, count: int) -> list[int]:
    """The sizes of parts: as given, or so many of one size of which the last may be smaller.

    >>> split_sizes(7, None, 3)
    [3, 3, 1]
    """
    if split is None:
        if count < 1:
            raise LayoutError(f"{size} elements can't be split into {count} parts; there must be 1 or more")
        part = -(-size // count)
        split = [part] * (count - 1) + [size - part * (count - 1)]
    if sum(split) != size or min(split, default=0) < 0:
        raise LayoutError(
            f"{size} elements can't be split into parts of {', '.join(map(str, split)) or 'nothing'}"
        )
    return list(split)


def cut(x: Array, sizes: Sequence[int], axis: int) -> list[Array]:
    """Parts of so many elements along an axis."""
    return np.split(x, list(accumulate(sizes))[:-1], axis) if sizes else []


def _split(x: Fact, split: Fact | None = None, *, axis: int = 0, num_outputs: int | None = None) -> Any:
    given = None if split is None else numbers(split)
    if given is None and not num_outputs:
        return ()
    if x.dims is None:
        return (Fact(None, x.dtype),) * (num_outputs or len(given or ()))
    axis = axis_in(axis, len(x.dims))
    size = x.dims[axis]
    sizes: Sequence[Dim]
    if isinstance(size, int):
        sizes = split_sizes(size, given, num_outputs or 0)
    else:
        sizes = given if given is not None else (None,) * (num_outputs or 0)
    return tuple(Fact((*x.dims[:axis], n, *x.dims[axis + 1 :]), x.dtype) for n in sizes)


@operator("Split", infer=_split)
def split(
    x: Array,
    split: Array | None = None,
    /,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    wanted: int = 1,
) -> tuple[Array, ...]:
    """Parts along an axis; as many as there are outputs where nothing says how many."""
    axis = axis_in(axis, x.ndim)
    given = None if split is None else split.tolist()
    return tuple(cut(x, split_sizes(x.shape[axis], given, num_outputs or wanted), axis))


def sliced(size: int, start: int, end: int, step: int) -> slice:
    """One axis of a Slice. Numbers below 0 count from the end, and what is outside is cut off.

    >>> sliced(5, -1, -(2**63), -2), sliced(5, 1, 2**63 - 1, 1)
    (slice(4, None, -2), slice(1, 5, 1))
    """
    if not step:
        raise LayoutError("a step must not be 0")
    first, last, step = slice(start, end, step).indices(size)
    if step < 0 and start < -size:
        first = 0 if size else -1  # ONNX cuts off at the first element, Python in front of it
    return slice(first, None if last < 0 else last, step) if first >= 0 else slice(0, 0, 1)


def _slices(
    rank: int,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> dict[int, tuple[int, int, int]]:
    """Start, end and step by axis."""
    along = axes_in(range(len(starts)) if axes is None else axes, rank)
    by = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(along) == len(by):
        raise LayoutError(
            f"starts, ends, axes and steps must be of one length, got {len(starts)}, {len(ends)}, "
            f"{len(along)}, {len(by)}"
        )
    return dict(zip(along, zip(starts, ends, by, strict=True), strict=True))


def _sliced_dims(
    data: Fact, starts: Fact, ends: Fact, axes: Fact | None = None, steps: Fact | None = None
) -> Fact:
    if data.dims is None:
        return Fact(None, data.dtype)
    dims: list[Dim] = list(data.dims)
    first, last, by = numbers(starts), numbers(ends), numbers(steps)
    along = _first_axes(starts) if axes is None else numbers(axes)
    if along is None:
        return Fact((None,) * len(dims), data.dtype)
    if first is None or last is None or by is None:
        chosen = axes_in(along, len(dims))
        return Fact(tuple(None if axis in chosen else n for axis, n in enumerate(dims)), data.dtype)
    for axis, (start, end, step) in _slices(len(dims), first, last, along, by or None).items():
        n = dims[axis]
        if isinstance(n, int):
            dims[axis] = len(range(n)[sliced(n, start, end, step)])
        elif not (start == 0 and end >= 2**31 - 1 and step == 1):
            dims[axis] = None
    return Fact(tuple(dims), data.dtype)


def _first_axes(starts: Fact) -> tuple[int, ...] | None:
    """The axes that are meant where none are given, if it is known how many starts there are."""
    count = starts.dims[0] if starts.dims else None
    return tuple(range(count)) if isinstance(count, int) else None


def _fits_slice(_: Array, *numbers: Array | None) -> None:
    if any(one is not None and one.ndim != 1 for one in numbers):
        raise LayoutError("starts, ends, axes and steps must be vectors")


@operator("Slice", infer=_sliced_dims, fits=_fits_slice)
def slice_(
    data: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
    /,
) -> Array:
    """Every so many-th element between two, along some axes."""
    given = [None if one is None else one.tolist() for one in (axes, steps)]
    index = [slice(None)] * data.ndim
    for axis, (start, end, step) in _slices(data.ndim, starts.tolist(), ends.tolist(), *given).items():
        index[axis] = sliced(data.shape[axis], start, end, step)
    return np.asarray(data[tuple(index)])


def _tiled(x: Fact, repeats: Fact) -> Fact:
    given = numbers(repeats)
    if x.dims is None or given is None:
        return Fact(None if x.dims is None else (None,) * len(x.dims), x.dtype)
    return Fact(tuple(known_product(one) for one in zip(x.dims, given, strict=True)), x.dtype)


def _fits_tile(x: Array, repeats: Array, /) -> None:
    if repeats.shape != (x.ndim,):
        raise LayoutError(f"there must be a repeat for each axis: {repeats.size} repeats for {x.ndim} axes")


@operator("Tile", infer=_tiled, fits=_fits_tile)
def tile(x: Array, repeats: Array, /) -> Array:
    """The whole again and again, along each axis."""
    return np.tile(x, repeats.tolist())


def _paddings(pads: Sequence[int], axes: Sequence[int] | None, rank: int) -> list[tuple[int, int]]:
    """What is added in front of and behind each axis."""
    along = axes_in(range(rank) if axes is None else axes, rank)
    if len(pads) != 2 * len(along):
        raise LayoutError(f"{len(pads)} pads for {len(along)} axes; there must be two for each")
    made = [(0, 0)] * rank
    for axis, before, after in zip(along, pads, pads[len(along) :], strict=False):
        made[axis] = (int(before), int(after))
    return made


def _padded(
    data: Fact, pads: Fact, constant_value: Fact | None = None, axes: Fact | None = None, **_: Any
) -> Fact:
    if data.dims is None:
        return Fact(None, data.dtype)
    given, along = numbers(pads), None if axes is None else numbers(axes)
    if given is None or (along is None and axes is not None):
        return Fact((None,) * len(data.dims), data.dtype)
    added = [sum(one) for one in _paddings(given, along, len(data.dims))]
    made = (
        n + more if isinstance(n, int) else n if not more else None
        for n, more in zip(data.dims, added, strict=True)
    )
    return Fact(tuple(made), data.dtype)


@operator("Pad", infer=_padded)
def pad(
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    /,
    *,
    mode: str = "constant",
) -> Array:
    """Elements added around: a constant, or the tensor's own. Negative numbers take some away, first."""
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise LayoutError(f"mode is 'constant', 'reflect', 'edge' or 'wrap', got {mode!r}")
    around = _paddings(pads.tolist(), None if axes is None else axes.reshape(-1).tolist(), data.ndim)
    gone = [(max(-before, 0), max(-after, 0)) for before, after in around]
    if any(before + after > n for n, (before, after) in zip(data.shape, gone, strict=True)):
        raise LayoutError(f"pads {pads.tolist()} take away more elements than data of {data.shape} have")
    inner = zip(data.shape, gone, strict=True)
    data = data[tuple(slice(before, n - after) for n, (before, after) in inner)]
    added = [(max(before, 0), max(after, 0)) for before, after in around]
    if mode != "constant":
        for axis, widths in enumerate(added):
            if any(widths):
                data = data.take(np.pad(np.arange(data.shape[axis]), widths, mode=mode), axis)  # type: ignore[call-overload]
        return data
    value = zero(data.dtype) if constant_value is None else only(constant_value, "the constant value")
    outer = list(zip(data.shape, added, strict=True))
    made = np.full([n + sum(widths) for n, widths in outer], value, data.dtype)
    made[tuple(slice(before, before + n) for n, (before, _) in outer)] = data
    return made
