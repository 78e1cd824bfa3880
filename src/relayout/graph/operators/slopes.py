"""Gradients of elementwise functions: ``dy`` times the slope, from what the function read or what it wrote.

``relayout.FunctionGrad`` has the function as an attribute, by oneDNN's name for it:

==============  ===========================  ==============================================================
``relu``        from x                       1 where x is positive, else alpha
``elu``         from y, or x                 1 where it is positive, else y + alpha, or alpha exp(x)
``logistic``    from y                       y (1 - y)
``tanh``        from y                       1 - y^2
``sqrt``        from y                       1 / (2 y)
``gelu_erf``    from x                       F(x) + x f(x), F and f of the normal distribution
``erf``         from x                       2 exp(-x^2) / sqrt(pi)
``gelu_tanh``   from x                       the slope of that approximation
``hardsigmoid`` from x                       alpha where 0 < alpha x + beta < 1, else 0
``hardswish``   from x                       2 alpha x + beta there, 1 above
``mish``        from x                       t + x (1 - t^2) s(x), t = tanh(log(1 + exp(x)))
``soft_relu``   from x                       s(alpha x), the logistic function
``swish``       from x                       s + alpha x s (1 - s), s = s(alpha x)
==============  ===========================  ==============================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, operator, same
from relayout.graph.operators.types import narrow

__all__: list[str] = []


def _logistic(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _gelu_erf(x: Any, a: float, b: float) -> Any:
    below = np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)) / 2
    return below + np.where(np.isinf(x), 0, x) * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Any, a: float, b: float) -> Any:
    x = np.clip(x, -50, 50)
    root = math.sqrt(2 / math.pi)
    gate = np.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * (1 + gate + x * root * (1 + 3 * 0.044715 * x * x) * (1 - gate) * (1 + gate))


def _hardsigmoid(x: Any, a: float, b: float) -> Any:
    at = a * x + b
    return np.where((at <= 0) | (at >= 1), 0, a)


def _hardswish(x: Any, a: float, b: float) -> Any:
    at = a * x + b
    return np.where(at <= 0, 0, np.where(at >= 1, 1, at + a * x))


def _mish(x: Any, a: float, b: float) -> Any:
    x = np.clip(x, -700, 700)
    gate = np.tanh(np.logaddexp(0, x))
    return gate + x * (1 - gate * gate) * _logistic(x)


def _swish(x: Any, a: float, b: float) -> Any:
    at = np.clip(a * x, -700, 700)
    gate = _logistic(at)
    return gate + at * gate * (1 - gate)


FROM_SOURCE: Final[dict[str, Callable[[Any, float, float], Any]]] = {
    "relu": lambda x, a, b: np.where(x > 0, 1, a),
    "elu": lambda x, a, b: np.where(x > 0, 1, a * np.exp(np.minimum(x, 0))),
    "erf": lambda x, a, b: np.exp(-x * x) * 2 / math.sqrt(math.pi),
    "gelu_erf": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "mish": _mish,
    "soft_relu": lambda x, a, b: _logistic(a * x),
    "swish": _swish,
}
FROM_RESULT: Final[dict[str, Callable[[Any, float, float], Any]]] = {
    "elu": lambda y, a, b: np.where(y > 0, 1, y + a),
    "logistic": lambda y, a, b: y * (1 - y),
    "sqrt": lambda y, a, b: 0.5 / y,
    "tanh": lambda y, a, b: (1 - y) * (1 + y),
}


@operator("relayout.FunctionGrad", infer=same)
def function_grad(
    dy: Array, x: Array, /, *, algorithm: str, alpha: float = 0.0, beta: float = 0.0, by_result: int = 0
) -> Array:
    """``dy`` times a slope; nothing passes where that is 0."""
    if dy.shape != x.shape:
        raise LayoutError(f"a gradient of {dy.shape} for a result of {x.shape}")
    table = FROM_RESULT if by_result else FROM_SOURCE
    if algorithm not in table:
        raise LayoutError(f"{algorithm!r} has no slope here; {', '.join(table)} have one")
    with np.errstate(all="ignore"):
        slope = table[algorithm](x.astype(np.float64), alpha, beta)
        return narrow(np.where(slope == 0, 0, dy.astype(np.float64) * slope), dy.dtype)
