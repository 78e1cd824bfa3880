"""Losses."""

from __future__ import annotations

from math import prod

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []

S32 = 6  # of ONNX


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(r: Reverse) -> str:
    """Probabilities less 1 for the class that it is, from the logarithms that the loss keeps."""
    if len(r.node.outputs) > 1 and r.gradients[1] is not None:
        raise LayoutError("there is no gradient by the logarithms that a loss returns")
    kept = r.node.outputs[1] if len(r.node.outputs) > 1 and r.node.outputs[1] else ""
    return _by_scores(r, kept or r("LogSoftmax", r.x, axis=1), 1)


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood(r: Reverse) -> str:
    """Less 1 for the class that it is, weighed."""
    return _by_scores(r, r.x, 0)


def _by_scores(r: Reverse, logarithms: str, softmax: int) -> str:
    labels = r("Cast", r.inputs[1], to=S32)
    return str(r("relayout.SoftmaxCrossEntropyGrad", _factors(r), logarithms, labels, softmax=softmax))


def _factors(r: Reverse) -> str:
    """The gradient by the loss of each label, or one for all: what it weighs in the result."""
    labels, weights = r.inputs[1], r.input(2)
    ignored, reduction = r.attributes["ignore_index"], r.attributes["reduction"]
    if not weights and ignored is None:
        return r.times(r.dy, 1 / max(1, prod(r.dims(labels)))) if reduction == "mean" else r.dy
    one, zero = r.number(1), r.number(0)
    each = one
    if ignored is not None:
        counted = r("Not", r("Equal", labels, r.writing.number(ignored, labels)))
        labels = r("Where", counted, labels, r.writing.number(0, labels))
    if weights:
        each = r("Gather", weights, labels)
    if ignored is not None:
        each = r("Where", counted, each, zero)
    if reduction == "mean":
        return str(r("Mul", each, r("Div", r.dy, r("ReduceSum", each, keepdims=0))))
    return str(r("Mul", each, r.dy))
