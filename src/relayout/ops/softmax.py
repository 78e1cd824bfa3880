"""Softmax and its logarithm along one axis.

The largest element is taken off first, as in all systems: then no exponential overflows, and the sum is at
least 1. A row of only -inf is NaN, as in PyTorch; ``guarded`` makes it 0, as attention has it where nothing
may be looked at.
"""

from __future__ import annotations

from math import prod

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["Softmax", "definition"]

FLOPS = 4  # of an element: comparison, difference, exponential, product


@dataclass(frozen=True, kw_only=True)
class Softmax(Operation):
    """``exp(src) / sum over the axis of exp(src)``, or the logarithm of it."""

    kind = "softmax"
    axis: int
    log: bool = False
    guarded: bool = False
    """Whether what would be NaN is 0."""

    @property
    def overwritable(self) -> tuple[str, ...]:
        """The source."""
        return ("src",)

    @property
    def flops(self) -> int:
        """Comparisons, differences, exponentials and products."""
        return FLOPS * prod(self.outputs[0].dims)

    def compute(self, *, src: Reals) -> Reals:
        """With the maximum subtracted."""
        found = definition(src, self.axis, self.log)
        return np.where(np.isnan(found), 0.0, found) if self.guarded else found


def definition(x: Reals, axis: int, log: bool = False) -> Reals:
    """The softmax of a logical array, or its logarithm.

    >>> definition(np.log([[1.0, 2.0, 5.0]]), 1)
    array([[0.125, 0.25 , 0.625]])
    """
    if x.size == 0:
        return x
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis, keepdims=True)
        e = np.exp(shifted)
        if not log:
            return np.asarray(e / e.sum(axis, keepdims=True))
        # The largest element is 1; adding what there is besides keeps the digits of small sums.
        first = e.argmax(axis)
        rest = e.copy()
        np.put_along_axis(rest, np.expand_dims(first, axis), 0, axis)
        y = shifted - np.log1p(rest.sum(axis, keepdims=True))
        return np.asarray(np.where(np.isnan(e.sum(axis, keepdims=True)), np.nan, y))
