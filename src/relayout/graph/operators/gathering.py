"""Elements by index: read (Gather) and written (Scatter).

An index below 0 counts from the end, or is refused where ``from_end`` is 0, as most operators of PyTorch do.
What several indices name is written in no order, unless the updates are added, multiplied or compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.graph.operators.axes import axis_in
from relayout.graph.operators.registry import Array, Fact, operator, same
from relayout.graph.operators.types import narrow, wide

COMBINED: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _taken(data: Fact, indices: Fact, *, axis: int = 0, **_: Any) -> Fact:
    if data.dims is None or indices.dims is None:
        return Fact(None, data.dtype)
    axis = axis_in(axis, len(data.dims))
    return Fact((*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]), data.dtype)


@operator("Gather", infer=_taken)
def gather(
    data: Array, indices: Array, /, *, axis: int = 0, from_end: int = 1, padding_idx: int = -1
) -> Array:
    """Slices along an axis: the axes of the indices stand in its place.

    ``padding_idx`` is of training: the index whose slice has no gradient, as an embedding's in PyTorch; of -1
    all have one.
    """
    _check_signs(indices, from_end)
    return np.asarray(data.take(indices, axis_in(axis, data.ndim)), data.dtype)


def _check_signs(indices: Array, from_end: int) -> None:
    """Refuse indices below 0 where these do not count from the end."""
    if not from_end and indices.size and indices.min() < 0:
        raise LayoutError(f"index {indices.min()} is below 0; indices do not count from the end here")


def _lines(indices: Array, axis: int) -> tuple[Array, ...]:
    """Indices of all axes, where those of one are given."""
    grid: list[Any] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices
    return tuple(grid)


def _as_indices(data: Fact, indices: Fact, **_: Any) -> Fact:
    return Fact(indices.dims, data.dtype)


@operator("GatherElements", infer=_as_indices)
def gather_elements(data: Array, indices: Array, /, *, axis: int = 0, from_end: int = 1) -> Array:
    """An element for each index: that of the same place but for one axis."""
    _check_signs(indices, from_end)
    _same_rank(data, indices)
    return np.asarray(data[_lines(indices, axis_in(axis, data.ndim))])


def _same_rank(data: Array, indices: Array) -> None:
    if data.ndim != indices.ndim:
        raise LayoutError(
            f"indices have {counted(indices.ndim, 'axis')} and data {data.ndim}; there must be as many"
        )


def _pointed(data: Fact, indices: Fact, *, batch_dims: int = 0) -> Fact:
    if data.dims is None or not indices.dims or not isinstance(indices.dims[-1], int):
        return Fact(None, data.dtype)
    _check_points(len(data.dims), len(indices.dims), indices.dims[-1], batch_dims)
    return Fact((*indices.dims[:-1], *data.dims[batch_dims + indices.dims[-1] :]), data.dtype)


@operator("GatherND", infer=_pointed)
def gather_nd(data: Array, indices: Array, /, *, batch_dims: int = 0) -> Array:
    """Slices at points: the last axis of the indices has the coordinates of one."""
    count = _coordinates(data, indices, batch_dims)
    if data.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise LayoutError(f"the first {batch_dims} sizes must be equal")
    batch: tuple[Array, ...] = np.indices(indices.shape[:-1], sparse=True)[:batch_dims]
    at = (*batch, *(indices[..., i] for i in range(count)))
    return np.asarray(data[at])


def _coordinates(data: Array, indices: Array, batch_dims: int = 0) -> int:
    """How many coordinates a point has."""
    if batch_dims < 0:
        raise LayoutError(f"batch_dims {batch_dims} must be 0 or more")
    count = indices.shape[-1] if indices.ndim else 0
    _check_points(data.ndim, indices.ndim, count, batch_dims)
    return count


def _check_points(data: int, indices: int, count: int, batch_dims: int) -> None:
    """Refuse points that are not in so many axes."""
    if not 0 <= batch_dims < max(indices, 1):
        raise LayoutError(
            f"batch_dims {batch_dims} must be less than the number of axes of indices, {indices}"
        )
    if not 0 < count <= data - batch_dims:
        raise LayoutError(
            f"points of {counted(count, 'coordinate')} in data of {counted(data - batch_dims, 'axis')} "
            "behind the batches"
        )


def _written(data: Array, at: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction == "none":
        made: Array = data.copy()
        made[at] = updates
        return made
    if reduction not in COMBINED:
        raise LayoutError(f"reduction is 'none', 'add', 'mul', 'max' or 'min', got {reduction!r}")
    made = wide(data)
    made = made.copy() if made is data else made
    COMBINED[reduction](made, at, wide(updates))
    return narrow(made, data.dtype)


@operator("ScatterElements", infer=same)
def scatter_elements(
    data: Array,
    indices: Array,
    updates: Array,
    /,
    *,
    axis: int = 0,
    from_end: int = 1,
    reduction: str = "none",
) -> Array:
    """Data with an element replaced for each index: that of the same place but for one axis."""
    _check_signs(indices, from_end)
    _same_rank(data, indices)
    if updates.shape != indices.shape:
        raise LayoutError("there must be one update for each index")
    return _written(data, _lines(indices, axis_in(axis, data.ndim)), updates, reduction)


@operator("ScatterND", infer=same)
def scatter_nd(
    data: Array, indices: Array, updates: Array, /, *, from_end: int = 1, reduction: str = "none"
) -> Array:
    """Data with slices replaced: the last axis of the indices has the coordinates of one."""
    _check_signs(indices, from_end)
    count = _coordinates(data, indices)
    wanted = (*indices.shape[:-1], *data.shape[count:])
    if updates.shape != wanted:
        raise LayoutError(f"updates must be {'x'.join(map(str, wanted)) or 'one number'}")
    return _written(data, tuple(indices[..., i] for i in range(count)), updates, reduction)
