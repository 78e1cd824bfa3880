"""Activation functions: the gradient of the result times their slope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from relayout.graph.gradients.reverse import Reverse, gradient
from relayout.ops.functions import Function, of_onnx

__all__: list[str] = []

FROM_SOURCE: Final = ("Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Softplus", "Swish")
FROM_RESULT: Final = ("Elu", "Sigmoid", "Sqrt", "Tanh")
"""Functions by what their slope is computed from."""


@gradient("Relu")
def relu(r: Reverse) -> str:
    """``dy`` where the result is positive."""
    return str(r("relayout.ReluGrad", r.dy, r.y))


@gradient(*FROM_SOURCE, *FROM_RESULT)
def function(r: Reverse) -> str:
    """``dy`` times the slope that the function has in :mod:`relayout.ops.derivatives`."""
    operator, a = r.node.operator, r.attributes
    match operator:
        case "LeakyRelu":
            found = Function("relu", a["alpha"])
        case "Swish":
            found = Function("swish", a["alpha"])
        case "Gelu" if a["approximate"] == "tanh":
            found = Function("gelu_tanh")
        case _:
            found = of_onnx(operator, a)
    by_result = operator in FROM_RESULT and not (operator == "Elu" and found.alpha < 0)
    kept = r.y if by_result else r.x
    numbers: dict[str, Any] = {"alpha": found.alpha, "beta": found.beta, "by_result": int(by_result)}
    return str(r("relayout.FunctionGrad", r.dy, kept, algorithm=found.algorithm, **numbers))


@gradient("SwiGLU")
def swiglu(r: Reverse) -> Sequence[str | None]:
    """As a Swish times the other one."""
    a, b = r.inputs
    alpha: Any = r.attributes["alpha"]
    first = second = None
    if r.wants(0):
        dy = r("Mul", r.dy, b)
        first = r("relayout.FunctionGrad", dy, a, algorithm="swish", alpha=alpha, beta=0.0, by_result=0)
    if r.wants(1):
        second = r("Mul", r.dy, r("Swish", a, alpha=alpha))
    return first, second


@gradient("ThresholdedRelu")
def thresholded_relu(r: Reverse) -> str:
    """``dy`` above alpha."""
    return str(r("Where", r("Greater", r.x, r.number(r.attributes["alpha"])), r.dy, r.number(0)))


@gradient("Shrink")
def shrink(r: Reverse) -> str:
    """``dy`` where something is left."""
    far = r("Greater", r("Abs", r.x), r.number(r.attributes["lambd"]))
    return str(r("Where", far, r.dy, r.number(0)))


@gradient("PRelu")
def prelu(r: Reverse) -> Sequence[str | None]:
    """The slope is an input, which is multiplied by what is below 0."""
    x, slope = r.inputs
    return (
        _below(r, r("Mul", r.dy, slope)) if r.wants(0) else None,
        r.summed(r("Mul", r.dy, r("Min", x, r.number(0))), slope) if r.wants(1) else None,
    )


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


@gradient("Softsign")
def softsign(r: Reverse) -> str:
    """``dy / (1 + abs(x))^2``."""
    size = r("Add", r("Abs", r.x), r.number(1))
    return str(r("Div", r.dy, r("Mul", size, size)))


def _below(r: Reverse, below: str, above: str | None = None) -> str:
    """One gradient below 0, another one from there on."""
    return str(r("Where", r("Less", r.x, r.number(0)), below, above or r.dy))
