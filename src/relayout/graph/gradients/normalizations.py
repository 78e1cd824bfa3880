"""Normalisations over batches, layers and groups, and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []


@gradient("relayout.BatchNormalizationTraining")
def batch_normalization_training(r: Reverse) -> Sequence[str | None]:
    """By data, scale and bias, all in one; running statistics have no part in the loss."""
    if any(r.gradients[1:]):
        raise LayoutError("there is no gradient by the statistics of a batch")
    kept = r.node.outputs[1:]  # statistics, and what a ReLU let pass
    epsilon = r.attributes["epsilon"]
    made: tuple[str, str, str] = r(
        "relayout.BatchNormalizationGrad", r.dy, r.x, r.inputs[1], *kept, outputs=3, epsilon=epsilon
    )
    return [one if r.wants(k) else None for k, one in enumerate(made)]


@gradient("BatchNormalization")
def batch_normalization(r: Reverse) -> Sequence[str | None]:
    """With given statistics it is a factor and a summand for each channel."""
    if r.attributes["training_mode"]:
        raise LayoutError("a BatchNormalization in training mode has a gradient in training form")
    x, scale, _, mean, variance = r.inputs
    rank = len(r.dims(x))
    each = (-1, *(1,) * (rank - 2))
    axes = [k for k in range(rank) if k != 1]
    if any(r.wanted[3:]):
        raise LayoutError("there is no gradient by given statistics")

    def channels(name: str) -> str:
        return r.reshaped(name, (prod(r.dims(name)), *each[1:]))

    shifted = r("Add", variance, r.writing.number(r.attributes["epsilon"], variance))
    inverse = r("Reciprocal", r("Sqrt", shifted))
    first = second = third = None
    if r.wants(0):
        first = r("Mul", r.dy, channels(r("Mul", scale, inverse)))
    if r.wants(1):
        normal = r("Mul", r("Sub", x, channels(mean)), channels(inverse))
        second = r.sum(r("Mul", r.dy, normal), axes)
    if r.wants(2):
        third = r.sum(r.dy, axes)
    return first, second, third, None, None


@gradient("relayout.LayerNormalizationTraining", "relayout.GroupNormalizationTraining")
def normalization_training(r: Reverse) -> Sequence[str | None]:
    """By data, scale and bias, all in one, from the statistics that the forward pass kept."""
    if any(r.gradients[1:]):
        raise LayoutError("there is no gradient by the statistics of a normalisation")
    _, mean, variance = r.node.outputs
    operator = r.node.operator.replace("Training", "Grad")
    made: tuple[str, ...] = r(
        operator, r.dy, r.x, r.inputs[1], mean, variance, outputs=len(r.inputs), **r.attributes
    )
    return [one if r.wants(k) else None for k, one in enumerate(made)]


@gradient("Softmax", "LogSoftmax")
def softmax(r: Reverse) -> str:
    """From the result."""
    log = int(r.node.operator == "LogSoftmax")
    return str(r("relayout.SoftmaxGrad", r.dy, r.y, axis=r.attributes["axis"], log=log))


@gradient("LRN")
def lrn(r: Reverse) -> str:
    """By windows of channels, both ways."""
    return str(r("relayout.LRNGrad", r.dy, r.x, **r.attributes))


@gradient("LpNormalization")
def lp_normalization(r: Reverse) -> str:
    """``(dy - s sum(dy y)) / norm``, where s is the slope of the norm: y, or the sign of x."""
    axis, p = r.integers(int(r.attributes["axis"])), r.attributes["p"]
    norm = r("ReduceL2" if p == 2 else "ReduceL1", r.x, axis, keepdims=1)
    slope = r.y if p == 2 else r("Sign", r.x)
    share = r("ReduceSum", r("Mul", r.dy, r.y), axis, keepdims=1)
    made = r("Div", r("Sub", r.dy, r("Mul", slope, share)), norm)
    return str(r("Where", r("Equal", norm, r.number(0)), r.number(0), made))


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(r: Reverse) -> str:
    """``(dy - mean(dy) - y mean(dy y)) / deviation``."""
    axes = r.integers(*r.attributes["axes"])
    centred = r("Sub", r.x, r("ReduceMean", r.x, axes, keepdims=1))
    deviation = r("Sqrt", r("ReduceMean", r("Mul", centred, centred), axes, keepdims=1))
    whole = r("Sub", r.dy, r("ReduceMean", r.dy, axes, keepdims=1))
    share = r("ReduceMean", r("Mul", r.dy, r.y), axes, keepdims=1)
    return str(r("Div", r("Sub", whole, r("Mul", r.y, share)), deviation))
