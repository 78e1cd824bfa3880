"""Tensors made from little: constants, ranges, unit matrices, one-hot codes."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.graph.operators.axes import axis_in, numbers, one_number, only, unknown
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import is_integer, narrow, numpy_type, wide


def _value(**given: Any) -> Array:
    """The tensor that one of the attributes of a Constant is."""
    several = {name: value for name, value in given.items() if value is not None}
    if len(several) != 1:
        raise LayoutError(f"one attribute must say the value, got {', '.join(several) or 'none'}")
    ((name, value),) = several.items()
    if name in ("value", "sparse_value"):
        return np.asarray(value)
    kind = np.float32 if "float" in name else np.int64 if "int" in name else object
    return np.array(list(value) if name.endswith("s") else value, kind)


def _constant(**given: Any) -> Fact:
    value = _value(**given)
    return Fact(value.shape, value.dtype, value)


@operator("Constant", infer=_constant)
def constant(
    *,
    sparse_value: Array | None = None,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Array:
    """What one of the attributes says; a sparse value comes as the dense array that it stands for."""
    return _value(
        sparse_value=sparse_value,
        value=value,
        value_float=value_float,
        value_floats=value_floats,
        value_int=value_int,
        value_ints=value_ints,
        value_string=value_string,
        value_strings=value_strings,
    )


def _filled(shape: Fact, *, value: Array | None = None) -> Fact:
    dims = numbers(shape)
    return Fact(
        unknown(shape) if dims is None else dims, np.dtype(np.float32) if value is None else value.dtype
    )


@operator("ConstantOfShape", infer=_filled)
def constant_of_shape(shape: Array, /, *, value: Array | None = None) -> Array:
    """One value everywhere: 0 in f32 by default."""
    if value is None:
        return np.zeros(shape.tolist(), np.float32)
    return np.full(shape.tolist(), only(value, "the value"), value.dtype)


def _count(start: Any, limit: Any, delta: Any) -> int:
    """How many numbers a range has."""
    if not delta:
        raise LayoutError("a step must not be 0")
    if all(isinstance(x, int) for x in (start, limit, delta)):
        return int(max(0, -((start - limit) // delta)))  # exact for any integers
    return int(max(0, ceil((limit - start) / delta)))


def _ranged(start: Fact, limit: Fact, delta: Fact, **_: Any) -> Fact:
    ends = [one.data for one in (start, limit, delta)]
    if any(one is None for one in ends):
        return Fact((None,), start.dtype)
    return Fact((_count(*(wide(one).item() for one in ends if one is not None)),), start.dtype)


@operator("Range", infer=_ranged)
def range_(start: Array, limit: Array, delta: Array, /, *, stash_type: int = 1) -> Array:
    """Numbers from one on, up to another that is not reached; f16 and bf16 are computed in the stash type."""
    dtype = start.dtype
    kind = np.dtype(np.int64) if is_integer(dtype) else dtype
    if not is_integer(dtype) and dtype.itemsize < 4:
        kind = numpy_type(stash_type)
    first, last, step = (only(wide(x), "each input") for x in (start, limit, delta))
    return narrow(
        kind.type(first) + np.arange(_count(first, last, step), dtype=kind) * kind.type(step), dtype
    )


def _unit(x: Fact, *, dtype: int | None = None, **_: Any) -> Fact:
    return Fact(x.dims, x.dtype if dtype is None else numpy_type(dtype))


@operator("EyeLike", infer=_unit)
def eye_like(x: Array, /, *, dtype: int | None = None, k: int = 0) -> Array:
    """A matrix as large as another, with ones on the k-th diagonal."""
    if x.ndim != 2:
        raise LayoutError(f"the input must be a matrix, and has {counted(x.ndim, 'axis')}")
    return np.eye(x.shape[0], x.shape[1], k).astype(x.dtype if dtype is None else numpy_type(dtype))


def _coded(indices: Fact, depth: Fact, values: Fact, *, axis: int = -1) -> Fact:
    if indices.dims is None:
        return Fact(None, values.dtype)
    axis = axis_in(axis, len(indices.dims) + 1)
    return Fact((*indices.dims[:axis], one_number(depth), *indices.dims[axis:]), values.dtype)


@operator("OneHot", infer=_coded)
def one_hot(indices: Array, depth: Array, values: Array, /, *, axis: int = -1) -> Array:
    """values[1] at each index along a new axis, values[0] elsewhere, also for indices that are outside."""
    count, axis = int(only(depth, "depth")), axis_in(axis, indices.ndim + 1)
    at = np.expand_dims(indices.astype(np.int64), axis)
    along = np.arange(count).reshape((-1,) + (1,) * (indices.ndim - axis))
    off, on = values
    return narrow(np.where(np.where(at < 0, at + count, at) == along, on, off), values.dtype)
