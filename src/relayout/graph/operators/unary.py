"""Functions of one number, other than activations: result and argument have the same data type.

f16 and bf16 are computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from relayout.graph.operators.registry import Array, Fact, operator, same
from relayout.graph.operators.types import narrow, wide

__all__ = ["erf", "erfc", "truth"]


def truth(x: Fact, *_: Fact | None, **__: Any) -> Fact:
    """A truth value for each element of the first input."""
    return Fact(x.dims, np.dtype(bool))


def erf(x: Array) -> Array:
    """The error function, element by element."""
    return narrow(np.asarray(_ERF(x)), x.dtype)


def erfc(x: Array) -> Array:
    """1 - erf(x), exact where that is small."""
    return narrow(np.asarray(_ERFC(x)), x.dtype)


_ERF: Final = np.frompyfunc(math.erf, 1, 1)
_ERFC: Final = np.frompyfunc(math.erfc, 1, 1)

FUNCTIONS: Final[dict[str, Callable[[Array], Any]]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x,
    "Round": np.rint,  # halves to the even neighbour
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Tan": np.tan,
}


def _unary(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    def define(x: Array, /) -> Array:
        return narrow(function(wide(x)), x.dtype)

    return define


for _name, _function in FUNCTIONS.items():
    operator(_name, infer=same)(_unary(_function))


@operator("Not", infer=same)
def negation(x: Array, /) -> Array:
    """Whether x is false."""
    return np.logical_not(x)


@operator("BitwiseNot", infer=same)
def bitwise_not(x: Array, /) -> Array:
    """Each bit turned over."""
    return np.invert(x)


@operator("IsNaN", infer=truth)
def is_nan(x: Array, /) -> Any:
    """Whether x is no number."""
    return np.isnan(wide(x))


@operator("IsInf", infer=truth)
def is_inf(x: Array, /, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Whether x is infinite, in one direction or both."""
    x = wide(x)
    return np.isinf(x) & ((x < 0) & bool(detect_negative) | (x > 0) & bool(detect_positive))
