"""Gradients that are one primitive each, and what training computes besides.

ONNX has no gradients, so these operators are Relayout's own. Those of the loss by an output come first and
are called ``dy``; what of the forward pass is needed again follows. Attributes are those of the forward
operator, with ``dims`` where what is read does not say how large the result is.

==========================================  =================================================================
``relayout.ConvGradInput``                  of a convolution by its data, from ``dy`` and the weights
``relayout.ConvGradWeights``                by its weights, from ``dy`` and the data
``relayout.MaxPoolGrad``                    each element of ``dy`` where the first largest of its window is
``relayout.AveragePoolGrad``                each element of ``dy`` in equal shares over its window
``relayout.BatchNormalizationTraining``     normalised by the statistics of the batch, which are results, too;
                                            with ``relu=1`` behind a ReLU, and what that let pass
``relayout.BatchNormalizationGrad``         of that, by data, scale and bias
``relayout.ReluGrad``                       ``dy`` where the result is positive
``relayout.SoftmaxGrad``                    of a softmax or its logarithm, from the result
``relayout.SoftmaxCrossEntropyGrad``        of losses by the scores, from the logarithms that were kept
``relayout.Copy``                           the same elements in memory of their own, whatever is replaced
``relayout.DropoutMask``                    0 or 1 / (1 - ratio), another one in each step
==========================================  =================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.convolution import channelwise
from relayout.graph.operators.normalization import average
from relayout.graph.operators.pooling import counted, places_of_largest
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide
from relayout.graph.operators.windows import fold, slide

__all__ = ["LAST", "MIXING", "OF_PLACE", "OF_SEED", "OF_STEP", "bound"]

Sizes = Sequence[int]


def _as_said(dy: Fact, *_: Fact | None, dims: Sizes, **__: object) -> Fact:
    return Fact(tuple(dims), dy.dtype)


@operator("relayout.ConvGradInput", infer=_as_said, like="Conv")
def conv_grad_input(dy: Array, w: Array, /, *, dims: Sizes, group: int = 1, **attributes: Any) -> Array:
    """The gradient by the data, which has ``dims``: windows of products, added up where they came from."""
    windows = slide(dims[2:], **{**attributes, "kernel_shape": w.shape[2:]})
    batch, inputs = dims[:2]
    _fitting(dy, (batch, w.shape[0], *windows.counts))
    weights = wide(w).reshape(group, w.shape[0] // group, prod(w.shape[1:]))
    rows = wide(dy).reshape(batch, group, weights.shape[1], prod(windows.counts))
    columns = weights.swapaxes(1, 2) @ rows
    made = fold(columns.reshape(batch, inputs, *w.shape[2:], *windows.counts), windows)
    return narrow(made, dy.dtype)


@operator("relayout.ConvGradWeights", infer=_as_said, like="Conv")
def conv_grad_weights(dy: Array, x: Array, /, *, dims: Sizes, group: int = 1, **attributes: Any) -> Array:
    """The gradient by the weights, which have ``dims``: images are added up in their order."""
    windows = slide(x.shape[2:], **{**attributes, "kernel_shape": dims[2:]})
    batch, outputs = x.shape[0], dims[0]
    _fitting(dy, (batch, outputs, *windows.counts))
    view = windows.view(windows.padded(wide(x), 0))
    rows = wide(dy).reshape(batch, group, outputs // group, prod(windows.counts))
    made = np.zeros((group, outputs // group, prod(dims[1:])), rows.dtype)
    for image in range(batch):
        columns = view[image].reshape(group, made.shape[2], prod(windows.counts))
        made += rows[image] @ columns.swapaxes(1, 2)
    return narrow(made.reshape(dims), dy.dtype)


def _fitting(dy: Array, dims: tuple[int, ...]) -> None:
    if dy.shape != dims:
        raise LayoutError(f"a gradient of {dy.shape} for a result of {dims}")


def _like_second(dy: Fact, x: Fact, *_: Fact | None, **__: object) -> Fact:
    return Fact(x.dims, dy.dtype)


@operator("relayout.MaxPoolGrad", infer=_like_second, like="MaxPool")
def max_pool_grad(dy: Array, x: Array, /, *, storage_order: int = 0, **attributes: Any) -> Array:
    """Each element where the first largest one of its window is; what meets there is added up."""
    windows = slide(x.shape[2:], **attributes)
    _fitting(dy, (*x.shape[:2], *windows.counts))
    places = places_of_largest(wide(x), windows)
    made = np.zeros((prod(x.shape[:2]), prod(x.shape[2:])), wide(dy).dtype)
    planes = np.arange(len(made))[:, None]
    np.add.at(made, (planes, places.reshape(len(made), -1)), wide(dy).reshape(len(made), -1))
    return narrow(made.reshape(x.shape), dy.dtype)


@operator("relayout.AveragePoolGrad", infer=_as_said, like="AveragePool")
def average_pool_grad(dy: Array, /, *, dims: Sizes, count_include_pad: int = 0, **attributes: Any) -> Array:
    """Each element in equal shares over its window."""
    windows = slide(dims[2:], **attributes)
    _fitting(dy, (*dims[:2], *windows.counts))
    shares = wide(dy) / np.maximum(counted(windows, bool(count_include_pad)).astype(wide(dy).dtype), 1)
    lead, kernel = shares.shape[:2], windows.kernel
    columns = shares.reshape(*lead, *(1,) * len(kernel), *windows.counts)
    return narrow(fold(np.broadcast_to(columns, (*lead, *kernel, *windows.counts)), windows), dy.dtype)


def _infer_training(x: Fact, scale: Fact, b: Fact, /, *, relu: int = 0, **_: object) -> tuple[Fact, ...]:
    statistic = Fact(scale.dims, scale.dtype)
    passed = [Fact(x.dims, np.dtype(bool))] * bool(relu)
    return Fact(x.dims, x.dtype), statistic, statistic, *passed


def _fits_training(x: Array, scale: Array, b: Array, /, **_: object) -> None:
    if x.ndim < 2 or scale.shape != x.shape[1:2] or b.shape != x.shape[1:2]:
        raise LayoutError(f"scale of {scale.shape} and B of {b.shape} for data of {x.shape}")


def _but_channels(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank))


@operator("relayout.BatchNormalizationTraining", infer=_infer_training, fits=_fits_training)
def batch_normalization_training(
    x: Array, scale: Array, b: Array, /, *, epsilon: float = 1e-5, relu: int = 0
) -> tuple[Array, ...]:
    """Each channel normalised by its own mean and variance (that of n, not of n - 1), which are results.

    With ``relu`` what is positive of that, and as a fourth result where it is.
    """
    data, axes = wide(x), _but_channels(x.ndim)
    mean = average(data, axes)
    variance = average(np.square(data - mean), axes)
    made = (data - mean) / np.sqrt(variance + np.asarray(epsilon, data.dtype))
    made = made * channelwise(wide(scale), x.ndim) + channelwise(wide(b), x.ndim)
    passed = [made > 0] * bool(relu)
    if relu:
        made = np.maximum(made, 0)
    statistics = narrow(mean.ravel(), scale.dtype), narrow(variance.ravel(), scale.dtype)
    return narrow(made, x.dtype), *statistics, *passed


def _infer_batch_grad(
    dy: Fact, x: Fact, scale: Fact, *_: Fact | None, **__: object
) -> tuple[Fact, Fact, Fact]:
    return Fact(x.dims, dy.dtype), Fact(scale.dims, scale.dtype), Fact(scale.dims, scale.dtype)


@operator("relayout.BatchNormalizationGrad", infer=_infer_batch_grad)
def batch_normalization_grad(
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    passed: Array | None = None,
    /,
    *,
    epsilon: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """By data, scale and bias; the statistics depend on the data. Of ``dy`` counts what ``passed`` a ReLU.

    With r = (x - mean) / sqrt(variance + epsilon), sums over all but the channels, and n elements of each::

        dbias = sum(dy)     dscale = sum(dy r)     dx = scale (dy - dbias / n - r dscale / n) / sqrt(...)
    """
    _fitting(dy, x.shape)
    rank, axes = x.ndim, _but_channels(x.ndim)
    count = prod(x.shape[axis] for axis in axes)
    gradient = wide(dy) if passed is None else np.where(passed, wide(dy), 0)
    inverse = 1 / np.sqrt(channelwise(wide(variance), rank) + np.asarray(epsilon, gradient.dtype))
    normal = (wide(x) - channelwise(wide(mean), rank)) * inverse
    shift = gradient.sum(axis=axes, keepdims=True)
    factor = (gradient * normal).sum(axis=axes, keepdims=True)
    made = channelwise(wide(scale), rank) * inverse * (gradient - (shift + normal * factor) / max(count, 1))
    return narrow(made, dy.dtype), narrow(factor.ravel(), scale.dtype), narrow(shift.ravel(), scale.dtype)


def _infer_like_first(dy: Fact, *_: Fact | None, **__: object) -> Fact:
    return Fact(dy.dims, dy.dtype)


@operator("relayout.Copy", infer=_infer_like_first)
def copy(x: Array, /) -> Array:
    """The same elements in memory of their own."""
    return np.array(x)


@operator("relayout.ReluGrad", infer=_infer_like_first)
def relu_grad(dy: Array, y: Array, /) -> Array:
    """``dy`` where the result is positive, 0 where it is 0; of NaN ``dy``, as in PyTorch."""
    _fitting(dy, y.shape)
    return np.where(y <= 0, dy.dtype.type(0), dy)


@operator("relayout.SoftmaxGrad", infer=_infer_like_first)
def softmax_grad(dy: Array, y: Array, /, *, axis: int = -1, log: int = 0) -> Array:
    """Of a softmax, or of its logarithm, from the result ``y``."""
    _fitting(dy, y.shape)
    gradient, result = wide(dy), wide(y)
    if log:
        return narrow(gradient - np.exp(result) * gradient.sum(axis=axis, keepdims=True), dy.dtype)
    return narrow(result * (gradient - (gradient * result).sum(axis=axis, keepdims=True)), dy.dtype)


@operator("relayout.SoftmaxCrossEntropyGrad", infer=_like_second)
def softmax_cross_entropy_grad(
    factors: Array, logarithms: Array, labels: Array, /, *, softmax: int = 1
) -> Array:
    """By the scores, from the logarithms of probabilities; ``softmax=0``: by these logarithms.

    ``factors``, one for each label or one for all, are the gradients by the losses; where it is 0 a label
    need not be a class.
    """
    data = wide(logarithms)
    rank, classes = data.ndim, data.shape[1]
    factor = np.broadcast_to(wide(factors), labels.shape)[:, None]
    chosen = labels[:, None] == np.arange(classes).reshape(classes, *(1,) * (rank - 2))
    made = np.exp(data) - chosen if softmax else -chosen.astype(data.dtype)
    return narrow(made * factor, logarithms.dtype)


@operator(
    "relayout.DropoutMask", infer=lambda step, /, *, dims, dtype="float32", **_: Fact(dims, np.dtype(dtype))
)
def dropout_mask(
    step: Array, /, *, dims: Sizes, ratio: float, seed: int = 0, dtype: str = "float32"
) -> Array:
    """0 with the probability ``ratio``, else what keeps the mean; the same for the same seed and step.

    Each element depends on its place, the step and the seed alone, so that any part can be computed.
    """
    if not 0 <= ratio < 1:
        raise LayoutError(f"ratio {ratio} must be 0 or more, and less than 1")
    places = np.arange(prod(dims), dtype=np.uint64).reshape(dims) * np.uint64(OF_PLACE)
    key = int(step.reshape(())) * OF_STEP + seed * OF_SEED
    x = places + np.uint64(key % 2**64)
    for bits, factor in MIXING:
        x = (x ^ (x >> np.uint64(bits))) * np.uint64(factor)
    kept = (x ^ (x >> np.uint64(LAST))).view(np.int64) >= bound(ratio)
    return np.asarray(kept / (1 - ratio), dtype)


OF_PLACE, OF_STEP, OF_SEED = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95, 0xA0761D6478BD642F
"""Odd numbers that places, steps and seeds are multiplied by, modulo 2**64."""
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST = 31
"""How SplitMix64 (Steele, Lea and Flood, 2014) mixes a counter: x ^= x >> bits, then x *= factor."""


def bound(ratio: float) -> int:
    """The number that mixed bits, as s64, are below with that probability."""
    return min(int(ratio * 2**64), 2**64 - 1) - 2**63
