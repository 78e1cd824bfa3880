"""Activation functions: the gradient of the result times their slope."""

from __future__ import annotations

import math
from collections.abc import Sequence

from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []


@gradient("Relu")
def relu(r: Reverse) -> str:
    """``dy`` where the result is positive."""
    return str(r("relayout.ReluGrad", r.dy, r.y))


@gradient("LeakyRelu")
def leaky_relu(r: Reverse) -> str:
    """``alpha dy`` below 0."""
    return _below(r, r.times(r.dy, r.attributes["alpha"]))


@gradient("ThresholdedRelu")
def thresholded_relu(r: Reverse) -> str:
    """``dy`` above alpha."""
    return str(r("Where", r("Greater", r.x, r.number(r.attributes["alpha"])), r.dy, r.number(0)))


@gradient("PRelu")
def prelu(r: Reverse) -> Sequence[str | None]:
    """The slope is an input, which is multiplied by what is below 0."""
    x, slope = r.inputs
    return (
        _below(r, r("Mul", r.dy, slope)) if r.wants(0) else None,
        r.summed(r("Mul", r.dy, r("Min", x, r.number(0))), slope) if r.wants(1) else None,
    )


@gradient("Elu")
def elu(r: Reverse) -> str:
    """``dy alpha exp(x)`` below 0, where that is the result and alpha."""
    return _below(r, r("Mul", r.dy, r("Add", r.y, r.number(r.attributes["alpha"]))))


@gradient("Selu")
def selu(r: Reverse) -> str:
    """As Elu, all of it gamma times."""
    alpha, gamma = r.attributes["alpha"], r.attributes["gamma"]
    below = r("Mul", r.dy, r("Add", r.y, r.number(alpha * gamma)))
    return _below(r, below, r.times(r.dy, gamma))


@gradient("Celu")
def celu(r: Reverse) -> str:
    """``dy exp(x / alpha)`` below 0."""
    alpha = r.attributes["alpha"]
    return _below(r, r("Mul", r.dy, r("Exp", r.times(r("Min", r.x, r.number(0)), 1 / alpha))))


@gradient("Softplus")
def softplus(r: Reverse) -> str:
    """``dy sigmoid(x)``."""
    return str(r("Mul", r.dy, r("Sigmoid", r.x)))


@gradient("Softsign")
def softsign(r: Reverse) -> str:
    """``dy / (1 + abs(x))^2``."""
    size = r("Add", r("Abs", r.x), r.number(1))
    return str(r("Div", r.dy, r("Mul", size, size)))


@gradient("HardSigmoid")
def hard_sigmoid(r: Reverse) -> str:
    """``alpha dy`` where nothing was cut off."""
    return _within(r, r.y, 0, 1, r.times(r.dy, r.attributes["alpha"]))


@gradient("HardSwish")
def hard_swish(r: Reverse) -> str:
    """``dy (x / 3 + 0.5)`` between -3 and 3, ``dy`` above."""
    slope = r("Add", r.times(r.x, 1 / 3), r.number(0.5))
    inside = r("Where", r("Less", r.x, r.number(3)), r("Mul", r.dy, slope), r.dy)
    return str(r("Where", r("Greater", r.x, r.number(-3)), inside, r.number(0)))


@gradient("Swish")
def swish(r: Reverse) -> str:
    """With s = sigmoid(alpha x): ``dy (s + alpha y (1 - s))``."""
    alpha = r.attributes["alpha"]
    gate = r("Sigmoid", r.times(r.x, alpha))
    more = r.times(r("Mul", r.y, r("Sub", r.number(1), gate)), alpha)
    return str(r("Mul", r.dy, r("Add", gate, more)))


@gradient("Mish")
def mish(r: Reverse) -> str:
    """With t = tanh(softplus(x)): ``dy (t + x sigmoid(x) (1 - t^2))``."""
    gate = r("Tanh", r("Softplus", r.x))
    slope = r("Mul", r("Swish", r.x), r("Sub", r.number(1), r("Mul", gate, gate)))
    return str(r("Mul", r.dy, r("Add", gate, slope)))


@gradient("Gelu")
def gelu(r: Reverse) -> str:
    """The share below x, and x times its density; or the slope of the approximation by tanh."""
    x = r.x
    square = r("Mul", x, x)
    if r.attributes["approximate"] == "tanh":
        root = math.sqrt(2 / math.pi)
        inner = r.times(r("Mul", x, r("Add", r.times(square, 0.044715), r.number(1))), root)
        gate = r("Tanh", inner)
        slope = r.times(r("Add", r.times(square, 3 * 0.044715), r.number(1)), root)
        rest = r("Mul", r("Mul", x, slope), r("Sub", r.number(1), r("Mul", gate, gate)))
        return str(r("Mul", r.dy, r.times(r("Add", r("Add", gate, r.number(1)), rest), 0.5)))
    share = r.times(r("Add", r("Erf", r.times(x, math.sqrt(0.5))), r.number(1)), 0.5)
    density = r.times(r("Exp", r.times(square, -0.5)), 1 / math.sqrt(2 * math.pi))
    return str(r("Mul", r.dy, r("Add", share, r("Mul", x, density))))


def _below(r: Reverse, below: str, above: str | None = None) -> str:
    """One gradient below 0, another one from there on."""
    return str(r("Where", r("Less", r.x, r.number(0)), below, above or r.dy))


def _within(r: Reverse, x: str, low: float, high: float, dy: str) -> str:
    """A gradient between two bounds of a value, 0 elsewhere."""
    inside = r("And", r("Greater", x, r.number(low)), r("Less", x, r.number(high)))
    return str(r("Where", inside, dy, r.number(0)))
