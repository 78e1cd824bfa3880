"""Normalisations: elements less a mean, by a deviation or a norm, over axes that tell the operators apart.

Statistics of f16 and bf16 are taken in f32. Where an operator has a ``stash_type``, that is the data type of
its first stage; scale and bias are then applied in the data type of the tensor, as its definition says.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.convolution import channelwise
from relayout.graph.operators.registry import Array, Fact, operator, same
from relayout.graph.operators.types import narrow, numpy_type, wide

__all__ = ["average", "broadcasts"]


def _infer_batch(
    x: Fact, scale: Fact, b: Fact, mean: Fact, variance: Fact, /, *, training_mode: int = 0, **_: object
) -> Fact | tuple[Fact, Fact, Fact]:
    y = Fact(x.dims, x.dtype)
    return (y, Fact(mean.dims, mean.dtype), Fact(variance.dims, variance.dtype)) if training_mode else y


def _fits_batch(x: Array, *vectors: Array, **_: object) -> None:
    if x.ndim < 1:
        raise LayoutError("a scalar has no channels")
    channels = x.shape[1] if x.ndim > 1 else 1
    for what, vector in zip(("scale", "B", "mean", "variance"), vectors, strict=True):
        if vector.shape != (channels,):
            raise LayoutError(f"{what} of {vector.shape} for {channels} channels")


@operator("BatchNormalization", infer=_infer_batch, fits=_fits_batch)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    input_mean: Array,
    input_var: Array,
    /,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Array | tuple[Array, Array, Array]:
    """Each channel normalised by given statistics, or in training by its own."""
    data, channels = wide(x), len(scale)
    mean, variance = wide(input_mean), wide(input_var)
    if training_mode:
        axes = (0, *range(2, x.ndim))
        centre = average(data, axes)
        mean, variance = centre.reshape(channels), average(np.square(data - centre), axes).reshape(channels)
    rank = max(x.ndim, 2)  # a vector is a batch of one channel
    factor = wide(scale) / np.sqrt(variance + np.asarray(epsilon, variance.dtype))
    shift = wide(b) - mean * factor
    made = data.reshape(-1, 1) if x.ndim == 1 else data
    made = made * channelwise(factor.astype(data.dtype), rank)
    made += channelwise(shift.astype(data.dtype), rank)
    y = narrow(made, x.dtype).reshape(x.shape)
    if not training_mode:
        return y
    kept = [
        narrow(wide(old) * momentum + new * (1 - momentum), old.dtype)
        for old, new in ((input_mean, mean), (input_var, variance))
    ]
    return y, kept[0], kept[1]


def _fits_instance(x: Array, scale: Array, b: Array, /, **_: object) -> None:
    if x.ndim < 3 or scale.shape != x.shape[1:2] or b.shape != x.shape[1:2]:
        raise LayoutError("data must be batch x channels x spatial axes, scale and B one number a channel")


@operator("InstanceNormalization", infer=same, fits=_fits_instance)
def instance_normalization(x: Array, scale: Array, b: Array, /, *, epsilon: float = 1e-5) -> Array:
    """Each channel of each image normalised by its own mean and variance."""
    made = _standard(wide(x), tuple(range(2, x.ndim)), epsilon)[0]
    made = made * channelwise(wide(scale), x.ndim) + channelwise(wide(b), x.ndim)
    return narrow(made, x.dtype)


def average(x: Array, axes: tuple[int, ...]) -> Array:
    """The mean over axes, which stay with size 1; NaN, without a warning, where there are no elements."""
    count = prod(x.shape[axis] for axis in axes)
    return np.asarray(x.sum(axis=axes, keepdims=True) / x.dtype.type(count))


def _standard(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """Elements with mean 0 and variance 1 over axes, the mean, and one by the deviation."""
    mean = average(x, axes)
    centred = x - mean
    variance = average(np.square(centred), axes)
    inverse = 1 / np.sqrt(variance + np.asarray(epsilon, x.dtype))
    centred *= inverse
    return centred, mean, inverse


def _from(axis: int, rank: int) -> tuple[int, ...]:
    """An axis and all behind it."""
    if not -rank <= axis < rank:
        raise LayoutError(f"axis {axis} is outside of {-rank} to {rank - 1}")
    return tuple(range(axis % rank, rank))


def _stash(stash_type: int) -> np.dtype[np.generic]:
    if stash_type not in (1, 10, 11, 16):
        raise LayoutError(f"stash_type {stash_type} is no floating point: 1 (f32), 10, 11 or 16 (bf16)")
    return numpy_type(stash_type)


def _infer_layer(
    x: Fact, *_: Fact | None, axis: int = -1, stash_type: int = 1, **__: object
) -> tuple[Fact, Fact, Fact]:
    kept = None
    if x.dims is not None:
        axes = _from(axis, len(x.dims))
        kept = tuple(1 if i in axes else n for i, n in enumerate(x.dims))
    statistic = Fact(kept, _stash(stash_type))
    return Fact(x.dims, x.dtype), statistic, statistic


def _fits_scaled(x: Array, scale: Array, b: Array | None = None, /, **_: object) -> None:
    for what, one in (("scale", scale), ("bias", b)):
        if one is not None and not broadcasts(one.shape, x.shape):
            raise LayoutError(f"{what} of {one.shape} can't be broadcast to {x.shape}")


@operator("LayerNormalization", infer=_infer_layer, fits=_fits_scaled)
def layer_normalization(
    x: Array,
    scale: Array,
    b: Array | None = None,
    /,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Array, Array, Array]:
    """All from an axis on normalised; also the mean and one by the deviation."""
    kind = _stash(stash_type)
    made, mean, inverse = _standard(wide(x.astype(kind, copy=False)), _from(axis, x.ndim), epsilon)
    y = _scaled(narrow(made, x.dtype), scale, b)
    return y, narrow(mean, kind), narrow(inverse, kind)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor can be broadcast to dims without making them larger."""
    return len(shape) <= len(to) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(to), strict=False)
    )


def _scaled(x: Array, scale: Array, b: Array | None = None) -> Array:
    """Scale and bias, which are broadcast to the data and never the other way."""
    made = wide(x) * wide(scale)
    return narrow(made if b is None else made + wide(b), x.dtype)


def _infer_rms(x: Fact, scale: Fact, /, **_: object) -> Fact:
    return Fact(x.dims, scale.dtype)


@operator("RMSNormalization", infer=_infer_rms, fits=_fits_scaled)
def rms_normalization(
    x: Array, scale: Array, /, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """All from an axis on by the root of the mean of its squares."""
    kind = _stash(stash_type)
    data = wide(x.astype(kind, copy=False))
    mean = average(np.square(data), _from(axis, x.ndim))
    made = data / np.sqrt(mean + np.asarray(epsilon, data.dtype))
    return _scaled(narrow(made, x.dtype).astype(scale.dtype, copy=False), scale)


def _fits_groups(x: Array, scale: Array, bias: Array, /, *, num_groups: int, **_: object) -> None:
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise LayoutError(f"channels of {x.shape} can't be parted into {num_groups} groups")
    if scale.shape != x.shape[1:2] or bias.shape != x.shape[1:2]:
        raise LayoutError(f"scale of {scale.shape} and bias of {bias.shape} for {x.shape[1]} channels")


@operator("GroupNormalization", infer=same, fits=_fits_groups)
def group_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    /,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
) -> Array:
    """Groups of channels of each image normalised; scale and bias are of each channel."""
    grouped = x.astype(_stash(stash_type), copy=False)
    grouped = grouped.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, *x.shape[2:])
    made = _standard(wide(grouped), tuple(range(2, grouped.ndim)), epsilon)[0]
    y = narrow(made.reshape(x.shape), x.dtype)
    return _scaled(y, channelwise(scale, x.ndim), channelwise(bias, x.ndim))


@operator("LpNormalization", infer=same)
def lp_normalization(x: Array, /, *, axis: int = -1, p: int = 2) -> Array:
    """Elements by the norm along an axis; where that is 0, zeros."""
    if p not in (1, 2):
        raise LayoutError(f"p is {p}; it must be 1 or 2")
    _from(axis, x.ndim)
    data = wide(x)
    norm = np.abs(data).sum(axis=axis, keepdims=True)
    if p == 2:
        norm = np.sqrt(np.square(data).sum(axis=axis, keepdims=True))
    return narrow(np.where(norm == 0, 0, data / np.where(norm == 0, 1, norm)), x.dtype)


@operator("MeanVarianceNormalization", infer=same)
def mean_variance_normalization(x: Array, /, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    """Elements with mean 0 and variance 1 over axes."""
    data = wide(x)
    if any(not -x.ndim <= axis < x.ndim for axis in axes):
        raise LayoutError(f"axes {tuple(axes)} must be {-x.ndim} to {x.ndim - 1}")
    centred = data - average(data, tuple(axes))
    deviation = np.sqrt(average(np.square(centred), tuple(axes)))
    return narrow(centred / (deviation + np.asarray(1e-9, data.dtype)), x.dtype)


@operator("LRN", infer=same)
def lrn(x: Array, /, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Array:
    """Elements by a power of the mean square of the channels around them."""
    if x.ndim < 2 or size < 1:
        raise LayoutError(
            f"size is {size} for data of {x.shape}: it must be 1 or more, and the data have channels"
        )
    data = wide(x)
    before, channels = (size - 1) // 2, x.shape[1]
    widths = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(np.square(data), widths)
    sums = np.zeros_like(data)
    for first in range(size):
        sums += squares[:, first : first + channels]
    return narrow(data / (bias + alpha / size * sums) ** beta, x.dtype)
