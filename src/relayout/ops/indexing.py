"""Elements by index: which element of a tensor an index names, for gathers and scatters of all kinds.

A gather writes, and a scatter reads, a tensor that this module calls the *other* one. Each of its axes goes
along an axis of the data, along one of the indices, or along both, and what is left of the axes of the data
is named by indices: the *coordinates*. Three operators of ONNX are this one thing::

    data 5x4, indices 2x3                          other    axes of other: data, indices     coordinates
    taken(2, 2, axis=0)     Gather                 2x3x4    (-, 0) (-, 1) (1, -)             axis 0
    elements(2, axis=0)     GatherElements         2x3      (-, 0) (1, 1)                    axis 0
    points(2, 2, 1)         GatherND, of 3 there   2x...    (-, 0)                           axes 0, 1, 2

>>> rows = taken(2, 1, 0)
>>> rows.gathered(np.arange(6).reshape(3, 2), np.array([2, -3])).tolist()
[[4, 5], [0, 1]]
>>> rows.gathered(np.arange(6).reshape(3, 2), np.array([3, 0]))
Traceback (most recent call last):
relayout.errors.LayoutError: index 3 of axis 0, which has 3 elements

Indices below 0 count from the end, as in NumPy and ONNX, or name nothing, as in most operators of PyTorch.

>>> taken(2, 1, 0, from_end=False).gathered(np.arange(6).reshape(3, 2), np.array([2, -3]))
Traceback (most recent call last):
relayout.errors.LayoutError: index -3 of axis 0, which has 3 elements
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.ops.native import Native
from relayout.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Gather", "Indexing", "Scatter", "elements", "outside", "points", "taken"]


@dataclass(frozen=True)
class Indexing:
    """Which axis goes where.

    Attributes
    ----------
    axes : tuple of (int, int)
        For each axis of the other tensor that of the data and that of the indices; -1: none.
    coordinates : tuple of int
        The axes of the data that indices name.
    listed : bool
        Whether the last axis of the indices lists coordinates; else there is one.
    from_end : bool
        Whether indices below 0 count from the end; else they name nothing.
    """

    axes: tuple[tuple[int, int], ...]
    coordinates: tuple[int, ...]
    listed: bool = False
    from_end: bool = True

    def __post_init__(self) -> None:
        numbers = [*self.coordinates, *(n for pair in self.axes for n in pair)]
        if any(type(n) is not int or n < -1 for n in numbers):
            raise LayoutError(f"axes are numbers, and {numbers} are not")
        if type(self.listed) is not bool or type(self.from_end) is not bool:
            raise LayoutError(f"listed and from_end are True or False, not {self.listed} and {self.from_end}")
        if any(pair == (-1, -1) for pair in self.axes) or not self.coordinates or -1 in self.coordinates:
            raise LayoutError(
                "each axis is one of the data or of the indices, and some of the data are named"
            )
        if not self.listed and len(self.coordinates) > 1:
            raise LayoutError("several coordinates must be listed")

    def dims(self, data: Sequence[int], indices: Sequence[int]) -> tuple[int, ...]:
        """Those of the other tensor."""
        return tuple(indices[i] if i >= 0 else data[d] for d, i in self.axes)

    def fits(self, data: Sequence[int], indices: Sequence[int]) -> bool:
        """Whether data and indices of these dims go together."""
        named = sorted([d for d, _ in self.axes if d >= 0] + list(self.coordinates))
        several = sorted(i for _, i in self.axes if i >= 0)
        if named != [*range(len(data))] or several != [*range(len(indices) - self.listed)]:
            return False
        if self.listed and indices[-1] != len(self.coordinates):
            return False
        return all(indices[i] <= data[d] for d, i in self.axes if d >= 0 and i >= 0)

    def gathered(self, data: NDArray[Any], indices: NDArray[Any]) -> NDArray[Any]:
        """The definition: the elements that indices name."""
        return np.asarray(data[self._places(data.shape, indices)])

    def scattered(
        self, data: NDArray[Any], indices: NDArray[Any], other: NDArray[Any], adds: bool = False
    ) -> NDArray[Any]:
        """The definition: the data, with those elements replaced, or added to."""
        made: NDArray[Any] = np.array(data)
        at = self._places(data.shape, indices)
        if adds:
            np.add.at(made, at, other)
        else:
            made[at] = other
        return made

    def _places(self, dims: Sequence[int], indices: NDArray[Any]) -> tuple[Any, ...]:
        """An index into the data, as NumPy takes it."""
        shape = self.dims(dims, indices.shape)
        grid = np.indices(shape, sparse=True)
        found: list[Any] = [None] * len(dims)
        along: list[Any] = [None] * (indices.ndim - self.listed)
        for k, (d, i) in enumerate(self.axes):
            if d >= 0:
                found[d] = grid[k]
            if i >= 0:
                along[i] = grid[k]
        for k, axis in enumerate(self.coordinates):
            at = (*along, k) if self.listed else tuple(along)
            each = indices[at]
            wrong = (each < (-dims[axis] if self.from_end else 0)) | (each >= dims[axis])
            if wrong.any():
                raise LayoutError(outside(int(each[wrong][0]), axis, dims[axis]))
            found[axis] = each
        return tuple(np.broadcast_arrays(*found)) if found else ()


@dataclass(frozen=True, kw_only=True)
class _Indexed(Native):
    how: Indexing

    @property
    def flops(self) -> int:
        """None: elements are moved."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Gather(_Indexed):
    """``dst`` is what indices name of the data."""

    kind = "gather"

    def natively(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """The elements."""
        data, indices = arrays
        return _named(self.kind, lambda: self.how.gathered(data, indices))


@dataclass(frozen=True, kw_only=True)
class Scatter(_Indexed):
    """``dst`` is the data, with elements replaced by updates, or with updates added."""

    kind = "scatter"
    adds: bool = False

    def natively(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """The data, with what is new."""
        data, indices, updates = arrays
        return _named(self.kind, lambda: self.how.scattered(data, indices, updates, self.adds))


def _named(kind: str, made: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """The result; errors begin with the kind."""
    try:
        return made()
    except LayoutError as error:
        raise LayoutError(f"{kind}: {error}") from None


def outside(index: int, axis: int, size: int) -> str:
    """What is said of an index that names nothing."""
    return f"index {index} of axis {axis}, which has {counted(size, 'element')}"


def taken(data: int, indices: int, axis: int, from_end: bool = True) -> Indexing:
    """Slices along an axis, the axes of the indices in its place; ``data`` and ``indices`` are ranks."""
    before = [(k, -1) for k in range(axis)]
    behind = [(k, -1) for k in range(axis + 1, data)]
    return Indexing((*before, *((-1, k) for k in range(indices)), *behind), (axis,), from_end=from_end)


def elements(rank: int, axis: int, from_end: bool = True) -> Indexing:
    """An element for each index: that of the same place but for one axis."""
    return Indexing(tuple((-1 if k == axis else k, k) for k in range(rank)), (axis,), from_end=from_end)


def points(data: int, indices: int, count: int, batch: int = 0, from_end: bool = True) -> Indexing:
    """Slices at points of so many coordinates, which the last axis of the indices lists, in each batch."""
    both = [(k, k) for k in range(batch)]
    several = [(-1, k) for k in range(batch, indices - 1)]
    behind = [(k, -1) for k in range(batch + count, data)]
    return Indexing((*both, *several, *behind), tuple(range(batch, batch + count)), True, from_end)
