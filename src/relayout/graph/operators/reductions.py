"""Reductions along axes.

Axes are an input. Without any, all are reduced, or none where ``noop_with_empty_axes`` says so: then
ReduceSumSquare still squares. Sums of f16 and bf16 are made in f32. Over nothing, a maximum is the least
value of the data type, a sum 0 and a mean NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.axes import Dims, axes_in, axis_in, numbers
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import is_float, is_integer, narrow, wide

__all__ = ["reduced_dims"]

Axes: TypeAlias = "tuple[int, ...]"


def reduced_dims(dims: Dims, axes: Axes, keepdims: int) -> Dims:
    """What a reduction leaves of dims."""
    if keepdims:
        return tuple(1 if axis in axes else n for axis, n in enumerate(dims))
    return tuple(n for axis, n in enumerate(dims) if axis not in axes)


def _total(x: Array, axes: Axes) -> Array:
    return np.asarray(x.sum(axes, keepdims=True, dtype=x.dtype))


def _extreme(function: Callable[..., Any], sign: int) -> Callable[[Array, Axes], Array]:
    def extreme(x: Array, axes: Axes) -> Array:
        if is_float(x.dtype):
            initial: Any = -sign * np.inf
        elif x.dtype == bool:
            initial = sign < 0
        else:
            info = np.iinfo(x.dtype)
            initial = info.min if sign > 0 else info.max
        return np.asarray(function(x, axis=axes, keepdims=True, initial=initial))

    return extreme


def _mean(x: Array, axes: Axes) -> Any:
    count = prod(x.shape[axis] for axis in axes)
    if not is_integer(x.dtype):
        return _total(x, axes) / x.dtype.type(count)
    total = x.sum(axes, keepdims=True)
    return np.sign(total) * (np.abs(total) // count)


def _log_sum_exp(x: Array, axes: Axes) -> Any:
    largest = x.max(axes, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0).astype(x.dtype)
    return np.log(_total(np.exp(x - largest), axes)) + largest


def _log_sum(x: Array, axes: Axes) -> Array:
    return np.log(_total(x, axes))


REDUCTIONS: Final[dict[str, Callable[[Array, Axes], Array]]] = {
    "ReduceL1": lambda x, axes: _total(np.abs(x), axes),
    "ReduceL2": lambda x, axes: np.sqrt(_total(x * x, axes)),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme(np.max, 1),
    "ReduceMean": _mean,
    "ReduceMin": _extreme(np.min, -1),
    "ReduceProd": lambda x, axes: np.asarray(x.prod(axes, keepdims=True, dtype=x.dtype)),
    "ReduceSum": _total,
    "ReduceSumSquare": lambda x, axes: _total(x * x, axes),
}


def _chosen(axes: tuple[int, ...], rank: int, noop: int) -> Axes:
    return axes_in(axes, rank) if axes or noop else tuple(range(rank))


def reduction(
    data: Fact, axes: Fact | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Fact:
    """Dims of a reduction: only their number where the axes are not known, and that only if they are kept."""
    if data.dims is None:
        return Fact(None, data.dtype)
    given = numbers(axes)
    if given is None:
        return Fact((None,) * len(data.dims) if keepdims else None, data.dtype)
    chosen = _chosen(given, len(data.dims), noop_with_empty_axes)
    return Fact(reduced_dims(data.dims, chosen, keepdims), data.dtype)


def _reduction(function: Callable[[Array, Axes], Array]) -> Callable[..., Array]:
    def define(
        data: Array, axes: Array | None = None, /, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        given = () if axes is None else tuple(axes.reshape(-1).tolist())
        chosen = _chosen(given, data.ndim, noop_with_empty_axes)
        made = function(wide(data), chosen)
        return narrow(made, data.dtype).reshape(reduced_dims(data.shape, chosen, keepdims))

    return define


for _name, _function in REDUCTIONS.items():
    operator(_name, infer=reduction)(_reduction(_function))


def position(data: Fact, *, axis: int = 0, keepdims: int = 1, **_: Any) -> Fact:
    """An index for each line along an axis."""
    dims = data.dims
    if dims is not None:
        dims = reduced_dims(dims, (axis_in(axis, len(dims)),), keepdims)
    return Fact(dims, np.dtype(np.int64))


def _position(name: str, function: Callable[..., Any]) -> None:
    @operator(name, infer=position)
    def define(data: Array, /, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        axis = axis_in(axis, data.ndim)
        if not data.shape[axis]:
            raise LayoutError(f"axis {axis} is empty")
        data = wide(data)
        if not select_last_index:
            return np.asarray(function(data, axis, keepdims=bool(keepdims)), np.int64)
        found = function(np.flip(data, axis), axis, keepdims=bool(keepdims))
        return np.asarray(data.shape[axis] - 1 - found, np.int64)


_position("ArgMax", np.argmax)
_position("ArgMin", np.argmin)
