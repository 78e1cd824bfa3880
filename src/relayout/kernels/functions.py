"""Vector code for what operations mean: elementwise functions and binary operations, on vectors of f32.

The definitions are in :mod:`relayout.ops`; tests join the two.

>>> from relayout.ir.types import FLOAT, Value, vector
>>> b = Builder()
>>> _ = function(b, Function("linear", 2.0), Value("%x", vector(8, FLOAT)))
>>> print(b.body())
  %v1 = fmul <8 x float> %x, splat (float 0x4000000000000000)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relayout.ir import math
from relayout.ir.builder import Builder
from relayout.ir.types import Value
from relayout.ops.functions import Function

__all__ = ["binary", "function"]

FUNCTIONS: Final[dict[str, Callable[[Builder, Value, float, float], Value]]] = {
    "relu": lambda b, x, alpha, _: math.relu(b, x, alpha),
    "tanh": lambda b, x, *_: math.tanh(b, x),
    "elu": lambda b, x, alpha, _: math.elu(b, x, alpha),
    "square": lambda b, x, *_: math.square(b, x),
    "abs": lambda b, x, *_: math.absolute(b, x),
    "sqrt": lambda b, x, *_: math.sqrt(b, x),
    "linear": math.linear,
    "soft_relu": lambda b, x, alpha, _: math.softplus(b, x, alpha),
    "hardsigmoid": math.hardsigmoid,
    "hardswish": math.hardswish,
    "logistic": lambda b, x, *_: math.sigmoid(b, x),
    "exp": lambda b, x, *_: math.exp(b, x),
    "gelu_tanh": lambda b, x, *_: math.gelu_tanh(b, x),
    "gelu_erf": lambda b, x, *_: math.gelu_erf(b, x),
    "swish": lambda b, x, alpha, _: math.swish(b, x, alpha),
    "log": lambda b, x, *_: math.log(b, x),
    "clip": math.clip,
    "clip_v2": math.clip,
    "pow": lambda b, x, alpha, beta: math.pow_(b, x, beta, alpha),
    "round": lambda b, x, *_: math.nearest(b, x),
    "mish": lambda b, x, *_: math.mish(b, x),
}
"""For each algorithm the code for a vector, alpha and beta."""
LARGER: Final = {"max": "ogt", "min": "olt"}
COMPARISONS: Final = {"ge": "oge", "gt": "ogt", "le": "ole", "lt": "olt", "eq": "oeq", "ne": "une"}


def function(b: Builder, f: Function, x: Value) -> Value:
    """An elementwise function of a vector of f32."""
    return FUNCTIONS[f.algorithm](b, x, f.alpha, f.beta)


def binary(b: Builder, algorithm: str, x: Value, y: Value) -> Value:
    """A binary operation on two vectors of f32, or of doubles."""
    if algorithm in LARGER:
        chosen = b.select(b.fcmp(LARGER[algorithm], x, y), x, y)  # y, if either is NaN
        return b.select(b.fcmp("uno", x, x), x, chosen)
    if algorithm in COMPARISONS:
        return b.uitofp(b.fcmp(COMPARISONS[algorithm], x, y), x.type.element)
    return {"add": b.fadd, "sub": b.fsub, "mul": b.fmul, "div": b.fdiv}[algorithm](x, y)
