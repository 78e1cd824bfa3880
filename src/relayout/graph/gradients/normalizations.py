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
    _, mean, variance = r.node.outputs
    epsilon = r.attributes["epsilon"]
    made: tuple[str, str, str] = r(
        "relayout.BatchNormalizationGrad", r.dy, r.x, r.inputs[1], mean, variance, outputs=3, epsilon=epsilon
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


@gradient("LayerNormalization")
def layer_normalization(r: Reverse) -> Sequence[str | None]:
    """Over all axes from one on."""
    if any(r.gradients[1:]):
        raise LayoutError("there is no gradient by the statistics of a layer")
    return _over_last(r, r.x, r.dims(r.x), True)


@gradient("RMSNormalization")
def rms_normalization(r: Reverse) -> Sequence[str | None]:
    """As layer normalisation, without the mean."""
    return _over_last(r, r.x, r.dims(r.x), False)


def _over_last(r: Reverse, x: str, dims: tuple[int, ...], centred: bool) -> Sequence[str | None]:
    axis = int(r.attributes["axis"]) % len(dims)
    epsilon, scale = r.attributes["epsilon"], r.inputs[1]
    first = second = third = None
    if r.wants(0):
        first = r(
            "relayout.NormalizationGrad",
            r("Mul", r.dy, scale),
            x,
            axis=axis,
            epsilon=epsilon,
            centred=int(centred),
        )
    if r.wants(1):
        normal = _normal(r, x, range(axis, len(dims)), epsilon, centred)
        second = r.summed(r("Mul", r.dy, normal), scale)
    if r.wants(2):
        third = r.summed(r.dy, r.inputs[2])
    return (first, second, third)[: len(r.inputs)]


def _normal(r: Reverse, x: str, axes: Sequence[int], epsilon: float, centred: bool) -> str:
    """Elements with mean 0, if that is wanted, and mean square 1."""
    along = r.integers(*axes)
    data = r("Sub", x, r("ReduceMean", x, along, keepdims=1)) if centred else x
    square = r("ReduceMean", r("Mul", data, data), along, keepdims=1)
    return str(r("Div", data, r("Sqrt", r("Add", square, r.writing.number(epsilon, square)))))


@gradient("InstanceNormalization")
def instance_normalization(r: Reverse) -> Sequence[str | None]:
    """Each channel is a group."""
    return _groups(r, r.dims(r.x)[1])


@gradient("GroupNormalization")
def group_normalization(r: Reverse) -> Sequence[str | None]:
    """Groups of channels are rows."""
    return _groups(r, int(r.attributes["num_groups"]))


def _groups(r: Reverse, groups: int) -> Sequence[str | None]:
    x, scale = r.inputs[:2]
    dims, epsilon = r.dims(x), r.attributes["epsilon"]
    rows = (dims[0], groups, prod(dims[1:]) // groups)
    axes = [k for k in range(len(dims)) if k != 1]
    first = second = third = None
    if r.wants(0):
        each = r.reshaped(scale, (dims[1], *(1,) * (len(dims) - 2)))
        dy = r.reshaped(r("Mul", r.dy, each), rows)
        made = r("relayout.NormalizationGrad", dy, r.reshaped(x, rows), axis=2, epsilon=epsilon)
        first = r.reshaped(made, dims)
    if r.wants(1):
        normal = r.reshaped(_normal(r, r.reshaped(x, rows), (2,), epsilon, True), dims)
        second = r.sum(r("Mul", r.dy, normal), axes)
    if r.wants(2):
        third = r.sum(r.dy, axes)
    return first, second, third


@gradient("Softmax", "LogSoftmax")
def softmax(r: Reverse) -> str:
    """From the result."""
    log = int(r.node.operator == "LogSoftmax")
    return str(r("relayout.SoftmaxGrad", r.dy, r.y, axis=r.attributes["axis"], log=log))
