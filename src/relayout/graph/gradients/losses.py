"""Losses."""

from __future__ import annotations

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(r: Reverse) -> str:
    """Probabilities less 1 for the class that it is, from the logarithms that the loss keeps."""
    if len(r.node.outputs) > 1 and r.gradients[1] is not None:
        raise LayoutError("there is no gradient by the logarithms that a loss returns")
    kept = r.node.outputs[1] if len(r.node.outputs) > 1 and r.node.outputs[1] else ""
    logarithms = kept or r("LogSoftmax", r.x, axis=1)
    return str(r("relayout.SoftmaxCrossEntropyGrad", r.dy, logarithms, *r.inputs[1:], **r.attributes))


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood(r: Reverse) -> str:
    """Less 1 for the class that it is, weighed."""
    return str(r("relayout.SoftmaxCrossEntropyGrad", r.dy, *r.inputs, softmax=0, **r.attributes))
