"""The same elements under other dims, and dims as numbers.

Results are views where NumPy can make them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.axes import Dim, Dims, axes_in, known_product, numbers, unknown
from relayout.graph.operators.registry import Array, Fact, broadcast, operator

__all__ = ["reshaped_dims"]


def reshaped_dims(dims: Dims | None, shape: tuple[int, ...], allowzero: int = 0) -> Dims:
    """What a Reshape makes of dims: 0 keeps one, unless that is meant, and -1 is what is left.

    >>> reshaped_dims((2, 3, 4), (0, -1))
    (2, 12)
    >>> reshaped_dims(("batch", 12, 8), (-1, 6, 16))
    ('batch', 6, 16)
    >>> reshaped_dims((2, 3), (4, -1))
    Traceback (most recent call last):
    relayout.errors.LayoutError: 2x3 can't be arranged as 4x-1
    """
    if any(n < -1 for n in shape) or shape.count(-1) > 1 or (allowzero and 0 in shape and -1 in shape):
        raise LayoutError(f"{_spelled(shape)} is no shape: sizes are 0 or more, and one may be -1")
    if not allowzero and dims is not None and 0 in shape[len(dims) :]:
        raise LayoutError(
            f"{_spelled(shape)} has a 0, which keeps a size, behind the {len(dims)} axes that there are"
        )
    kept = () if allowzero else tuple(axis for axis, n in enumerate(shape) if n == 0)
    made: list[Dim] = [
        n if axis not in kept else None if dims is None else dims[axis] for axis, n in enumerate(shape)
    ]
    if dims is None:
        return tuple(None if n == -1 else n for n in made)
    left = [n for axis, n in enumerate(dims) if axis not in kept]
    names = [n for n in left if not isinstance(n, int)]
    whole = prod(n for n in left if isinstance(n, int))
    part = prod(n for axis, n in enumerate(shape) if n != -1 and axis not in kept)
    if not names and (whole % part if -1 in shape else whole != part):
        raise LayoutError(f"{_spelled(dims)} can't be arranged as {_spelled(shape)}")
    if -1 in shape:
        known = names[0] if len(names) == 1 and whole == part else None
        made[shape.index(-1)] = known if names else whole // part
    return tuple(made)


def _spelled(dims: Dims) -> str:
    return "x".join("?" if n is None else str(n) for n in dims) or "one number"


def _reshaped(data: Fact, shape: Fact, *, allowzero: int = 0) -> Fact:
    wanted = numbers(shape)
    if wanted is None:
        return Fact(unknown(shape), data.dtype)
    return Fact(reshaped_dims(data.dims, wanted, allowzero), data.dtype)


@operator("Reshape", infer=_reshaped)
def reshape(data: Array, shape: Array, /, *, allowzero: int = 0) -> Array:
    """The elements in their order under other dims."""
    return data.reshape(reshaped_dims(data.shape, tuple(shape.tolist()), allowzero))


def _flattened(x: Fact, *, axis: int = 1) -> Fact:
    if x.dims is None:
        return Fact((None, None), x.dtype)
    axis = _cut(axis, len(x.dims))
    return Fact((known_product(x.dims[:axis]), known_product(x.dims[axis:])), x.dtype)


def _cut(axis: int, rank: int) -> int:
    if not -rank <= axis <= rank:
        raise LayoutError(f"axis {axis} is outside of {-rank} to {rank}")
    return axis + rank if axis < 0 else axis


@operator("Flatten", infer=_flattened)
def flatten(x: Array, /, *, axis: int = 1) -> Array:
    """A matrix: rows are the axes in front of one, columns the others."""
    axis = _cut(axis, x.ndim)
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _permuted(data: Fact, *, perm: tuple[int, ...] | None = None) -> Fact:
    if data.dims is None:
        return Fact(None if perm is None else (None,) * len(perm), data.dtype)
    return Fact(tuple(data.dims[axis] for axis in _order(perm, len(data.dims))), data.dtype)


def _order(perm: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    order = tuple(reversed(range(rank))) if perm is None else axes_in(perm, rank)
    if len(order) != rank:
        raise LayoutError(f"{order} is no order of {rank} axes")
    return order


@operator("Transpose", infer=_permuted)
def transpose(data: Array, /, *, perm: tuple[int, ...] | None = None) -> Any:
    """Axes in another order; reversed where none is given."""
    return data.transpose(_order(perm, data.ndim))


def _squeezed_dims(dims: Dims, axes: tuple[int, ...] | None) -> Dims:
    if axes is None:
        return tuple(n for n in dims if n != 1)
    gone = axes_in(axes, len(dims))
    for axis in gone:
        if isinstance(dims[axis], int) and dims[axis] != 1:
            raise LayoutError(f"axis {axis} has size {dims[axis]}, not 1")
    return tuple(n for axis, n in enumerate(dims) if axis not in gone)


def _squeezed(data: Fact, axes: Fact | None = None) -> Fact:
    given = None if axes is None else numbers(axes)
    if data.dims is None or (given is None and axes is not None):
        return Fact(None, data.dtype)
    if axes is None and not all(isinstance(n, int) for n in data.dims):
        return Fact(None, data.dtype)  # who knows which of them are 1
    return Fact(_squeezed_dims(data.dims, given), data.dtype)


@operator("Squeeze", infer=_squeezed)
def squeeze(data: Array, axes: Array | None = None, /) -> Array:
    """Without axes of size 1: those that are named, or all."""
    given = None if axes is None else tuple(axes.reshape(-1).tolist())
    return data.reshape(_squeezed_dims(data.shape, given))


def _unsqueezed_dims(dims: Dims, axes: tuple[int, ...]) -> Dims:
    rank = len(dims) + len(axes)
    new, left = axes_in(axes, rank), iter(dims)
    return tuple(1 if axis in new else next(left) for axis in range(rank))


def _unsqueezed(data: Fact, axes: Fact) -> Fact:
    given = numbers(axes)
    if data.dims is None:
        return Fact(None, data.dtype)
    if given is None:
        more = unknown(axes)
        return Fact(None if more is None else (None,) * (len(data.dims) + len(more)), data.dtype)
    return Fact(_unsqueezed_dims(data.dims, given), data.dtype)


@operator("Unsqueeze", infer=_unsqueezed)
def unsqueeze(data: Array, axes: Array, /) -> Array:
    """With further axes of size 1, at places in the result."""
    return data.reshape(_unsqueezed_dims(data.shape, tuple(axes.reshape(-1).tolist())))


def _expanded(x: Fact, shape: Fact) -> Fact:
    wanted = numbers(shape)
    if wanted is not None:
        return Fact(broadcast(x, Fact(wanted)), x.dtype)
    more = unknown(shape)
    rank = None if more is None or x.dims is None else max(len(more), len(x.dims))
    return Fact(None if rank is None else (None,) * rank, x.dtype)


@operator("Expand", infer=_expanded)
def expand(x: Array, shape: Array, /) -> Any:
    """Broadcast, where either side may have the larger size."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))).copy()


def _itself(x: Fact | None) -> Fact:
    return Fact() if x is None else Fact(x.dims, x.dtype)


@operator("Identity", infer=_itself)
def identity(x: Any | None, /) -> Any:
    """What it is given, sequences too."""
    return x


def _shape_of(data: Fact, *, start: int = 0, end: int | None = None) -> Fact:
    if data.dims is None:
        return Fact((None,), np.dtype(np.int64))
    dims = data.dims[_part(len(data.dims), start, end)]
    whole = all(isinstance(n, int) for n in dims)
    return Fact((len(dims),), np.dtype(np.int64), np.array(dims, np.int64) if whole else None)


def _part(rank: int, start: int, end: int | None) -> slice:
    first, last, _ = slice(start, end).indices(rank)
    return slice(first, max(first, last))


@operator("Shape", infer=_shape_of)
def shape_of(data: Array, /, *, start: int = 0, end: int | None = None) -> Array:
    """Sizes of axes, as numbers."""
    return np.array(data.shape[_part(data.ndim, start, end)], np.int64)


def _size_of(data: Fact) -> Fact:
    size = None if data.dims is None else known_product(data.dims)
    return Fact((), np.dtype(np.int64), np.array(size, np.int64) if isinstance(size, int) else None)


@operator("Size", infer=_size_of)
def size_of(data: Array, /) -> Array:
    """The number of elements."""
    return np.array(data.size, np.int64)
