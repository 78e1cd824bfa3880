"""Values made from numbers: constants where the sizes are known, nodes where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import INT64, Call, Number, Operand, Size, dims_of, rank
from relayout.importers.torch.operators.table import aten


def filled(call: Call, sizes: Sequence[Size], value: Operand) -> Value:
    """A value of the call's data type, with one number everywhere."""
    if not isinstance(value, Value) and not any(isinstance(n, Value) for n in sizes):
        return call.constant(np.full(tuple(sizes), value), call.dtype)
    return call.expand(call.cast(value, call.dtype), sizes, call.result.dims)


def _like(call: Call, x: Value, value: Operand) -> Value:
    return filled(call, [call.size(x, axis) for axis in range(rank(x))], value)


@aten("full.default")
def full(call: Call, sizes: Sequence[Size], value: Operand, *_: Any) -> Value:
    return filled(call, sizes, value)


@aten("zeros.default", "empty.memory_format", "empty_permuted.default", "empty_strided.default")
def zeros(call: Call, sizes: Sequence[Size], *_: Any) -> Value:
    return filled(call, sizes, 0)


@aten("ones.default")
def ones(call: Call, sizes: Sequence[Size], *_: Any) -> Value:
    return filled(call, sizes, 1)


@aten("full_like.default")
def full_like(call: Call, x: Value, value: Operand, *_: Any) -> Value:
    return _like(call, x, value)


@aten("zeros_like.default", "empty_like.default")
def zeros_like(call: Call, x: Value, *_: Any) -> Value:
    return _like(call, x, 0)


@aten("ones_like.default")
def ones_like(call: Call, x: Value, *_: Any) -> Value:
    return _like(call, x, 1)


@aten("new_full.default")
def new_full(call: Call, _: Value, sizes: Sequence[Size], value: Operand, *__: Any) -> Value:
    return filled(call, sizes, value)


@aten("new_zeros.default", "new_empty.default", "new_empty_strided.default")
def new_zeros(call: Call, _: Value, sizes: Sequence[Size], *__: Any) -> Value:
    return filled(call, sizes, 0)


@aten("new_ones.default")
def new_ones(call: Call, _: Value, sizes: Sequence[Size], *__: Any) -> Value:
    return filled(call, sizes, 1)


@aten("fill.Scalar", "fill.Tensor")
def fill(call: Call, x: Value, value: Operand) -> Value:
    return _like(call, x, value)


@aten("scalar_tensor.default")
def scalar_tensor(call: Call, value: Operand, *_: Any) -> Value:
    return call.cast(value, call.dtype)


@aten("arange.start_step")
def arange(call: Call, start: Operand, end: Operand, step: Operand = 1, *_: Any) -> Value:
    numbers = [one for one in (start, end, step) if not isinstance(one, Value)]
    (length,) = dims_of(call.result)
    if len(numbers) == 3 and isinstance(length, int):
        first, _end, by = numbers
        return call.constant(np.arange(length) * by + first, call.dtype, "range")
    whole = INT64 if all(isinstance(n, int) for n in numbers) else call.dtype
    made = call.emit(
        "Range", *(call.cast(one, whole) for one in (start, end, step)), dims=(length,), dtype=whole
    )
    return call.cast(made, call.dtype)


@aten("arange.start")
def arange_from(call: Call, start: Operand, end: Operand, *_: Any) -> Value:
    return arange(call, start, end)


@aten("arange.default")
def arange_to(call: Call, end: Operand, *_: Any) -> Value:
    return arange(call, 0, end)


@aten("linspace.default")
def linspace(call: Call, start: Number, end: Number, steps: int, *_: Any) -> Value:
    return call.constant(np.linspace(start, end, steps), call.dtype, "range")


@aten("eye.default", "eye.m")
def eye(call: Call, *_: Any) -> Value:
    rows, columns = dims_of(call.result)
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise call.refuse("an identity matrix of unknown size")
    return call.constant(np.eye(rows, columns), call.dtype, "eye")


@aten("tril.default", "triu.default")
def triangle(call: Call, x: Value, diagonal: int) -> Value:
    return call.emit("Trilu", x, call.constant(diagonal, INT64), upper=int("triu" in call.operator))
