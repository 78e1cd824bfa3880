"""Normalisations that keep their statistics, and gradients: of layers, of groups, of local responses.

A row is what is normalised together: all axes from ``axis`` on, or a group of channels of one image. With the
mean m and the variance v of a row, r = 1 / sqrt(v + epsilon), n elements and g = dy scale::

    y      = (x - m) r scale + bias
    dx     = r (g - sum(g) / n - (x - m) r sum(g (x - m) r) / n)       sums over the row
    dscale = sum(dy (x - m) r)     dbias = sum(dy)                     over all that they were used for

RMS normalisation has no mean, and so does its gradient; its "variance" is the mean square.

=======================================  ====================================================================
``relayout.LayerNormalizationTraining``  result, mean and variance; scale and bias have the dims of a row
``relayout.LayerNormalizationGrad``      by data, scale and bias
``relayout.GroupNormalizationTraining``  the same of groups; scale and bias are of each channel
``relayout.GroupNormalizationGrad``
``relayout.LRNGrad``                     of a local response normalisation, by data
=======================================  ====================================================================
"""

from __future__ import annotations

from math import prod

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.convolution import channelwise
from relayout.graph.operators.normalization import average
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide

__all__: list[str] = []

F64 = np.dtype("float64")


def _statistic(x: Fact, dims: tuple[int | str | None, ...] | None) -> Fact:
    return Fact(dims, x.dtype if x.dtype == F64 else np.dtype("float32"))


def _of_layer(x: Fact, *_: Fact | None, axis: int, **__: object) -> tuple[Fact, Fact, Fact]:
    dims = None if x.dims is None else x.dims[: axis % len(x.dims)] or (1,)
    return Fact(x.dims, x.dtype), _statistic(x, dims), _statistic(x, dims)


def _of_groups(x: Fact, *_: Fact | None, num_groups: int, **__: object) -> tuple[Fact, Fact, Fact]:
    dims = None if x.dims is None else (x.dims[0], num_groups)
    return Fact(x.dims, x.dtype), _statistic(x, dims), _statistic(x, dims)


def _gradients(dy: Fact, x: Fact, scale: Fact, *_: Fact | None, **__: object) -> tuple[Fact, Fact, Fact]:
    return Fact(x.dims, dy.dtype), Fact(scale.dims, scale.dtype), Fact(scale.dims, scale.dtype)


def _fits_layer(x: Array, scale: Array, bias: Array | None = None, /, *, axis: int, **_: object) -> None:
    row = x.shape[axis % x.ndim :]
    for name, one in (("scale", scale), ("bias", bias)):
        if one is not None and one.shape != row:
            raise LayoutError(f"{name} of {one.shape} for rows of {row}")


def _fits_groups(x: Array, scale: Array, bias: Array, /, *, num_groups: int, **_: object) -> None:
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise LayoutError(f"channels of {x.shape} can't be parted into {num_groups} groups")
    if scale.shape != x.shape[1:2] or bias.shape != x.shape[1:2]:
        raise LayoutError(f"scale of {scale.shape} and bias of {bias.shape} for {x.shape[1]} channels")


def _normal(rows: Array, epsilon: float, rms: int) -> tuple[Array, Array, Array]:
    """Rows of a matrix normalised, their means and variances."""
    mean = np.zeros((len(rows), 1), rows.dtype) if rms else average(rows, (1,))
    variance = average(np.square(rows - mean), (1,))
    return (rows - mean) / np.sqrt(variance + rows.dtype.type(epsilon)), mean, variance


@operator("relayout.LayerNormalizationTraining", infer=_of_layer, fits=_fits_layer)
def layer_normalization_training(
    x: Array, scale: Array, bias: Array | None = None, /, *, axis: int, epsilon: float = 1e-5, rms: int = 0
) -> tuple[Array, Array, Array]:
    """All axes from one on, with mean and variance."""
    data, left = wide(x), x.shape[: axis % x.ndim]
    made, mean, variance = _normal(data.reshape(prod(left), -1), epsilon, rms)
    made = made.reshape(x.shape) * wide(scale)
    made = made if bias is None else made + wide(bias)
    return narrow(made, x.dtype), mean.reshape(left or (1,)), variance.reshape(left or (1,))


@operator("relayout.GroupNormalizationTraining", infer=_of_groups, fits=_fits_groups)
def group_normalization_training(
    x: Array, scale: Array, bias: Array, /, *, num_groups: int, epsilon: float = 1e-5
) -> tuple[Array, Array, Array]:
    """Groups of channels of each image, with mean and variance."""
    left = x.shape[0], num_groups
    made, mean, variance = _normal(wide(x).reshape(prod(left), -1), epsilon, 0)
    made = made.reshape(x.shape) * channelwise(wide(scale), x.ndim) + channelwise(wide(bias), x.ndim)
    return narrow(made, x.dtype), mean.reshape(left), variance.reshape(left)


def _backward(g: Array, x: Array, mean: Array | None, variance: Array, epsilon: float) -> tuple[Array, Array]:
    """The gradient by rows of a matrix of what they were normalised to, and that."""
    inverse = 1 / np.sqrt(wide(variance).reshape(-1, 1) + g.dtype.type(epsilon))
    normal = (x if mean is None else x - wide(mean).reshape(-1, 1)) * inverse
    made = g - normal * average(g * normal, (1,))
    if mean is not None:
        made = made - average(g, (1,))
    return made * inverse, normal


@operator("relayout.LayerNormalizationGrad", infer=_gradients)
def layer_normalization_grad(
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array | None,
    variance: Array,
    /,
    *,
    axis: int,
    epsilon: float = 1e-5,
    rms: int = 0,
) -> tuple[Array, Array, Array]:
    """By data, scale and bias."""
    _fitting(dy, x)
    count = prod(x.shape[: axis % x.ndim])
    gradient, given = wide(dy), None if rms else mean
    g = (gradient * wide(scale)).reshape(count, -1)
    made, normal = _backward(g, wide(x).reshape(count, -1), given, variance, epsilon)
    sums = ((gradient.reshape(count, -1) * part).sum(0).reshape(scale.shape) for part in (normal, 1))
    dscale, dbias = (narrow(one, scale.dtype) for one in sums)
    return narrow(made.reshape(x.shape), dy.dtype), dscale, dbias


@operator("relayout.GroupNormalizationGrad", infer=_gradients)
def group_normalization_grad(
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    /,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """By data, scale and bias."""
    _fitting(dy, x)
    count, gradient = x.shape[0] * num_groups, wide(dy)
    g = (gradient * channelwise(wide(scale), x.ndim)).reshape(count, -1)
    made, normal = _backward(g, wide(x).reshape(count, -1), mean, variance, epsilon)
    axes = (0, *range(2, x.ndim))
    dscale, dbias = ((gradient * part).sum(axis=axes) for part in (normal.reshape(x.shape), 1))
    return narrow(made.reshape(x.shape), dy.dtype), narrow(dscale, scale.dtype), narrow(dbias, scale.dtype)


def _fitting(dy: Array, x: Array) -> None:
    if dy.shape != x.shape:
        raise LayoutError(f"a gradient of {dy.shape} for data of {x.shape}")


@operator("relayout.LRNGrad", infer=lambda dy, *_, **__: Fact(dy.dims, dy.dtype))
def lrn_grad(
    dy: Array, x: Array, /, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> Array:
    """Of a local response normalisation: of each element by itself, and by those whose windows it is in."""
    _fitting(dy, x)
    data, gradient = wide(x), wide(dy)
    kind = data.dtype.type
    share, front = kind(alpha / size), (size - 1) // 2
    base = kind(bias) + share * _around(np.square(data), front, size)
    part = _around(gradient * data * base ** kind(-beta - 1), size - 1 - front, size)
    return narrow(gradient * base ** kind(-beta) - 2 * kind(beta) * share * data * part, dy.dtype)


def _around(x: Array, front: int, size: int) -> Array:
    """The sums of windows of channels, so many of which are in front of each."""
    padded = np.pad(x, [(0, 0), (front, size - 1 - front), *[(0, 0)] * (x.ndim - 2)])
    return sum((padded[:, first : first + x.shape[1]] for first in range(size)), np.zeros_like(x))
