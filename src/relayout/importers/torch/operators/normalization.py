"""Normalisations, and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, dims_of, rank
from relayout.importers.torch.operators.table import aten

__all__ = ["by_batch", "group_norm", "layer_norm", "table_or"]


def _channels(call: Call, x: Value) -> int:
    found = dims_of(x)[1]
    if not isinstance(found, int):
        raise call.refuse(f"a normalisation over {found} channels, a number that is not known")
    return found


def table_or(call: Call, given: Value | None, sizes: Sequence[Any], number: int, dtype: Any) -> Value:
    """A scale or a shift, and what changes nothing where PyTorch has none."""
    if given is not None:
        return given
    if not all(isinstance(n, int) for n in sizes):
        raise call.refuse(f"a normalisation over unknown sizes {tuple(sizes)}")
    return call.constant(np.full(tuple(sizes), number), dtype, ("zeros", "ones")[number])


@aten("batch_norm.default")
def batch_norm(
    call: Call, x: Value, scale: Value | None, shift: Value | None, mean: Value | None,
    variance: Value | None, training: bool, momentum: float, epsilon: float, *_: Any,
) -> Value:  # fmt: skip
    if training or mean is None or variance is None:
        return by_batch(call, x, scale, shift, epsilon)
    return _by_statistics(call, x, scale, shift, mean, variance, epsilon, momentum)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_by_statistics(
    call: Call, x: Value, scale: Value | None, shift: Value | None, mean: Value, variance: Value,
    momentum: float, epsilon: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    return _by_statistics(call, x, scale, shift, mean, variance, epsilon, momentum), None, None


def _by_statistics(
    call: Call, x: Value, scale: Value | None, shift: Value | None, mean: Value, variance: Value,
    epsilon: float, momentum: float = 0.1,
) -> Value:  # fmt: skip
    """The momentum, of the new statistics in PyTorch, is that of the old ones here."""
    channels = (_channels(call, x),)
    scale = table_or(call, scale, channels, 1, mean.dtype)
    shift = table_or(call, shift, channels, 0, mean.dtype)
    if call.known(mean) is None:
        return _by_numbers(call, x, scale, shift, mean, variance, epsilon)
    return call.emit(
        "BatchNormalization", x, scale, shift, mean, variance, epsilon=float(epsilon), momentum=1 - momentum
    )


def _by_numbers(
    call: Call, x: Value, scale: Value, shift: Value, mean: Value, variance: Value, epsilon: float
) -> Value:
    """By statistics that are no constants: a factor and a summand for each channel."""
    assert mean.dtype is not None
    total = call.emit("Add", variance, call.constant(epsilon, mean.dtype))
    factor = call.emit("Div", scale, call.emit("Sqrt", total))
    moved = call.emit("Sub", shift, call.emit("Mul", mean, factor))
    made = x
    for operator, table in (("Mul", factor), ("Add", moved)):
        vector = Value(table.name, mean.dims, mean.dtype)
        wide = call.reshape(vector, (_channels(call, x), *(1,) * (rank(x) - 2)))
        made = call.emit(operator, made, call.cast(wide, x.dtype), dims=x.dims, dtype=x.dtype)
    return made


def by_batch(call: Call, x: Value, scale: Value | None, shift: Value | None, epsilon: float) -> Value:
    """By the mean and the variance of the input itself: that of an instance, if there is only one."""
    channels = _channels(call, x)
    if dims_of(x)[0] == 1 and rank(x) > 2:
        one, zero = (
            table_or(call, scale, (channels,), 1, x.dtype),
            table_or(call, shift, (channels,), 0, x.dtype),
        )
        return call.emit("InstanceNormalization", x, one, zero, epsilon=float(epsilon))
    axes = call.ints(0, *range(2, rank(x)))
    centred = call.emit("Sub", x, call.emit("ReduceMean", x, axes, keepdims=1))
    variance = call.emit("ReduceMean", call.emit("Mul", centred, centred), axes, keepdims=1)
    deviation = call.emit("Sqrt", call.emit("Add", variance, call.constant(epsilon, x.dtype)))
    made = call.emit("Div", centred, deviation)
    for operator, factor in (("Mul", scale), ("Add", shift)):
        if factor is not None:
            made = call.emit(operator, made, call.reshape(factor, (channels, *(1,) * (rank(x) - 2))))
    return made


@aten("instance_norm.default")
def instance_norm(
    call: Call, x: Value, scale: Value | None, shift: Value | None, mean: Value | None,
    variance: Value | None, by_input: bool, _: float, epsilon: float, *__: Any,
) -> Value:  # fmt: skip
    if not by_input and mean is not None and variance is not None:
        return _by_statistics(call, x, scale, shift, mean, variance, epsilon)
    channels = (_channels(call, x),)
    scale, shift = table_or(call, scale, channels, 1, x.dtype), table_or(call, shift, channels, 0, x.dtype)
    return call.emit("InstanceNormalization", x, scale, shift, epsilon=float(epsilon))


@aten("layer_norm.default")
def layer_norm(
    call: Call,
    x: Value,
    sizes: Sequence[int],
    scale: Value | None,
    shift: Value | None,
    epsilon: float,
    *_: Any,
) -> Value:
    scale = table_or(call, scale, sizes, 1, x.dtype)
    return call.emit("LayerNormalization", x, scale, shift, axis=-len(sizes), epsilon=float(epsilon))


@aten("rms_norm.default")
def rms_norm(call: Call, x: Value, sizes: Sequence[int], scale: Value | None, epsilon: float | None) -> Value:
    if epsilon is None:
        epsilon = np.finfo(np.float32 if x.dtype is None else x.dtype).eps
    scale = table_or(call, scale, sizes, 1, x.dtype)
    return call.emit("RMSNormalization", x, scale, axis=-len(sizes), epsilon=float(epsilon))


@aten("group_norm.default")
def group_norm(
    call: Call, x: Value, groups: int, scale: Value | None, shift: Value | None, epsilon: float, *_: Any
) -> Value:
    channels = (_channels(call, x),)
    scale, shift = table_or(call, scale, channels, 1, x.dtype), table_or(call, shift, channels, 0, x.dtype)
    return call.emit("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=float(epsilon))


@aten("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default")
def softmax(call: Call, x: Value, axis: int, *_: Any) -> Value:
    operator = "LogSoftmax" if "log" in call.operator else "Softmax"
    if rank(x) == 0:
        return call.squeeze(
            call.emit(operator, call.unsqueeze(call.cast(x, call.dtype), 0), axis=0, dims=(1,)), 0
        )
    return call.emit(operator, call.cast(x, call.dtype), axis=axis)


@aten("_safe_softmax.default")
def safe_softmax(call: Call, x: Value, axis: int, *_: Any) -> Value:
    """Zero where all is minus infinity, as in attention of which everything is masked."""
    made = call.emit("Softmax", call.cast(x, call.dtype), axis=axis)
    return call.emit("Where", call.emit("IsNaN", made), call.constant(0, call.dtype), made)
