"""Derivatives of activations within a kernel: as code beside other code, from the result.

:mod:`relayout.ops.derivatives` has those of all functions, as expressions. What a recurrent layer has in its
registers is the result of its activation, and what it needs is a product with the derivative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from relayout.ops.functions import Function, Reals

if TYPE_CHECKING:
    from relayout.ir.builder import Builder
    from relayout.ir.types import Value

__all__ = ["SLOPES", "emit_slope", "slope"]

SLOPES: Final = ("relu", "tanh", "logistic", "linear")
"""The activations whose derivative follows from their result, which is what the forward pass keeps; ``relu``
with an alpha that is not negative."""


def slope(function: Function, y: Reals) -> Reals:
    """The derivative of an activation where its result is y.

    >>> slope(Function("tanh"), np.array([0.0, 0.5]))
    array([1.  , 0.75])
    """
    if function.algorithm == "relu":
        return np.where(y > 0, 1.0, function.alpha)
    if function.algorithm == "linear":
        return np.full_like(y, function.alpha)
    return 1 - y * y if function.algorithm == "tanh" else y * (1 - y)


def emit_slope(function: Function, b: Builder, y: Value, x: Value) -> Value:
    """The code for ``x`` times the derivative where the result is y."""
    if function.algorithm == "relu":
        rest = b.fmul(x, function.alpha) if function.alpha else b.fmul(x, 0.0)
        return b.select(b.fcmp("ogt", y, 0.0), x, rest)
    if function.algorithm == "linear":
        return b.fmul(x, function.alpha)
    if function.algorithm == "tanh":
        return b.fmul(x, b.fmuladd(b.fneg(y), y, 1.0))
    return b.fmul(x, b.fmul(y, b.fsub(1.0, y)))
