"""Normalisations whose statistics are read, and their gradients: what training needs besides.

PyTorch keeps the mean of what it normalises, and ``r = 1 / sqrt(variance + epsilon)``. The graph's operators
return and read the variance. For a gradient that is ``1 / r^2`` with an epsilon of 0, whatever it was.

``_native_batch_norm_legit_functional`` returns the next running statistics, too::

    mean'     = (1 - momentum) mean     + momentum m
    variance' = (1 - momentum) variance + momentum v n / (n - 1)

with mean m, variance v and n elements of each channel of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, rank
from relayout.importers.torch.operators.gradients import sizes_of, summed
from relayout.importers.torch.operators.normalization import by_batch, group_norm, layer_norm, table_or
from relayout.importers.torch.operators.table import aten

__all__: list[str] = []


def _inverse(call: Call, variance: Value, epsilon: float) -> Value:
    """``1 / sqrt(variance + epsilon)``."""
    dtype = variance.dtype or np.dtype(np.float32)
    total = call.emit("Add", variance, call.constant(epsilon, dtype)) if epsilon else variance
    return call.emit("Reciprocal", call.emit("Sqrt", total), dims=variance.dims, dtype=variance.dtype)


def _variance(call: Call, inverse: Value) -> Value:
    """``1 / r^2``, the variance and the epsilon that r was made of."""
    made = call.emit("Reciprocal", call.emit("Mul", inverse, inverse))
    return Value(made.name, inverse.dims, inverse.dtype)


def _known(call: Call, several: Sequence[Value], like: Sequence[Value]) -> list[Value]:
    """Values with the dims and data types of others."""
    return [Value(one.name, given.dims, given.dtype) for one, given in zip(several, like, strict=True)]


# -- batches ------------------------------------------------------------------------------------------------


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_functional(
    call: Call, x: Value, scale: Value | None, shift: Value | None, mean: Value, variance: Value,
    training: bool, momentum: float, epsilon: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    """Normalised by the batch: result, statistics that the gradient reads, and the next running ones."""
    if not training:
        raise call.refuse("batch normalisation by running statistics that are returned")
    made, batch_mean, batch_variance, inverse = _by_batch(call, x, scale, shift, epsilon, mean.dtype)
    dims = sizes_of(call, x)
    count = prod(dims) // dims[1]

    def moved(old: Value, new: Value, factor: float) -> Value:
        kept = call.emit("Mul", old, call.constant(1 - momentum, old.dtype))
        return call.emit("Add", kept, call.emit("Mul", new, call.constant(momentum * factor, old.dtype)))

    running: list[Value | None] = [None, None]
    if call.used[3]:
        running[0] = moved(mean, batch_mean, 1)
    if call.used[4]:
        running[1] = moved(variance, batch_variance, count / (count - 1))
    return made, batch_mean, inverse, *running


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_running_statistics(
    call: Call, x: Value, scale: Value | None, shift: Value | None, _: bool, __: float, epsilon: float
) -> tuple[Value | None, ...]:
    """The same of a layer that keeps none."""
    if not any(call.used[1:]):
        return by_batch(call, x, scale, shift, epsilon), None, None
    made, mean, *_rest, inverse = _by_batch(call, x, scale, shift, epsilon, call.results[1].dtype)
    return made, mean, inverse


def _by_batch(
    call: Call, x: Value, scale: Value | None, shift: Value | None, epsilon: float, dtype: Any
) -> tuple[Value, Value, Value, Value | None]:
    """The result, mean and variance, and one by the deviation where somebody reads it."""
    channels = sizes_of(call, x)[1:2]
    tables = [table_or(call, scale, channels, 1, dtype), table_or(call, shift, channels, 0, dtype)]
    made, *several = call.several(
        "relayout.BatchNormalizationTraining", x, *tables, outputs=3, epsilon=float(epsilon)
    )
    mean, variance = _known(call, several, tables)
    return made, mean, variance, _inverse(call, variance, epsilon) if call.used[2] else None


@aten("native_batch_norm_backward.default")
def batch_norm_backward(
    call: Call, dy: Value, x: Value, scale: Value | None, mean: Value | None, variance: Value | None,
    saved_mean: Value | None, saved_inverse: Value | None, training: bool, epsilon: float,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """By data, scale and bias: the statistics of a batch depend on the data, running ones do not."""
    channels = sizes_of(call, x)[1:2]
    if not training:
        if mean is None or variance is None:
            raise call.refuse("batch normalisation without statistics")
        return _by_running_statistics(call, dy, x, scale, mean, _inverse(call, variance, epsilon), wanted)
    if saved_mean is None or saved_inverse is None:
        raise call.refuse("the gradient of batch normalisation without the statistics of the batch")
    table = table_or(call, scale, channels, 1, saved_mean.dtype)
    made = call.several(
        "relayout.BatchNormalizationGrad", dy, x, table, saved_mean, _variance(call, saved_inverse),
        outputs=3, epsilon=0.0,
    )  # fmt: skip
    return tuple(one if want else None for one, want in zip(made, wanted, strict=True))


def _by_running_statistics(
    call: Call, dy: Value, x: Value, scale: Value | None, mean: Value, inverse: Value, wanted: Sequence[bool]
) -> tuple[Value | None, ...]:
    """A factor and a summand for each channel."""
    channels = sizes_of(call, x)[1:2]
    each = (*channels, *(1,) * (rank(x) - 2))

    def wide(table: Value) -> Value:
        return call.reshape(Value(table.name, channels, table.dtype), each)

    first = second = third = None
    if wanted[0]:
        factor = inverse if scale is None else call.emit("Mul", scale, inverse, dtype=inverse.dtype)
        first = call.emit("Mul", dy, wide(factor))
    if wanted[1]:
        normal = call.emit("Mul", call.emit("Sub", x, wide(mean)), wide(inverse))
        second = summed(call, Value(call.emit("Mul", dy, normal).name, x.dims, x.dtype))
    if wanted[2]:
        third = summed(call, dy)
    return first, second, third


# -- layers and groups --------------------------------------------------------------------------------------


@aten("native_layer_norm.default")
def native_layer_norm(
    call: Call, x: Value, sizes: Sequence[int], scale: Value | None, shift: Value | None, epsilon: float
) -> tuple[Value | None, ...]:
    """The result; mean and one by the deviation with axes of one element for those of a row."""
    if not any(call.used[1:]):
        return layer_norm(call, x, sizes, scale, shift, epsilon), None, None
    table = table_or(call, scale, sizes, 1, x.dtype)
    axis = rank(x) - len(sizes)
    made, mean, variance = call.several(
        "relayout.LayerNormalizationTraining", x, table, shift, outputs=3, axis=axis, epsilon=float(epsilon)
    )
    return made, *_returned(call, mean, variance, sizes_of(call, x)[:axis] or (1,), epsilon)


@aten("native_group_norm.default")
def native_group_norm(
    call: Call, x: Value, scale: Value | None, shift: Value | None, _: Any, __: Any, ___: Any,
    groups: int, epsilon: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    """The result; mean and one by the deviation of each group of each image."""
    if not any(call.used[1:]):
        return group_norm(call, x, groups, scale, shift, epsilon), None, None
    dims = sizes_of(call, x)
    tables = [table_or(call, one, dims[1:2], number, x.dtype) for one, number in ((scale, 1), (shift, 0))]
    made, mean, variance = call.several(
        "relayout.GroupNormalizationTraining",
        x,
        *tables,
        outputs=3,
        num_groups=groups,
        epsilon=float(epsilon),
    )
    return made, *_returned(call, mean, variance, (dims[0], groups), epsilon)


def _returned(
    call: Call, mean: Value, variance: Value, dims: tuple[int, ...], epsilon: float
) -> tuple[Value, Value]:
    """Statistics as PyTorch returns them."""
    dtype = call.results[1].dtype
    mean, variance = (Value(one.name, dims, dtype) for one in (mean, variance))
    inverse = _inverse(call, variance, epsilon)
    mean, inverse = (
        call.reshape(one, sizes_of(call, like))
        for one, like in zip((mean, inverse), call.results[1:], strict=True)
    )
    return mean, inverse


@aten("native_layer_norm_backward.default")
def layer_norm_backward(
    call: Call, dy: Value, x: Value, sizes: Sequence[int], mean: Value, inverse: Value, scale: Value | None,
    shift: Value | None, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """By data, scale and bias."""
    axis = rank(x) - len(sizes)
    table = table_or(call, scale, sizes, 1, x.dtype)
    left = sizes_of(call, x)[:axis] or (1,)
    several = [call.reshape(one, left) for one in (mean, _variance(call, inverse))]
    made = call.several(
        "relayout.LayerNormalizationGrad", dy, x, table, *several, outputs=3, axis=axis, epsilon=0.0
    )
    return tuple(one if want else None for one, want in zip(made, wanted, strict=True))


@aten("native_group_norm_backward.default")
def group_norm_backward(
    call: Call, dy: Value, x: Value, mean: Value, inverse: Value, scale: Value | None, _: Any, __: Any,
    ___: Any, groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """By data, scale and bias."""
    dims = sizes_of(call, x)
    table = table_or(call, scale, dims[1:2], 1, x.dtype)
    several = [call.reshape(one, (dims[0], groups)) for one in (mean, _variance(call, inverse))]
    made = call.several(
        "relayout.GroupNormalizationGrad", dy, x, table, *several, outputs=3, num_groups=groups, epsilon=0.0
    )
    return tuple(one if want else None for one, want in zip(made, wanted, strict=True))
