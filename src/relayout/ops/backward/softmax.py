"""The gradient of softmax and of its logarithm, from what the forward pass wrote.

The result is all it takes, and the source is none of it::

    softmax    diff_src = dst (diff_dst - sum over the axis of diff_dst dst)
    log        diff_src = diff_dst - exp(dst) sum over the axis of diff_dst
"""

from __future__ import annotations

from math import prod

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["SoftmaxBackward"]

FLOPS = 4  # of an element: product, sum, difference, product


@dataclass(frozen=True, kw_only=True)
class SoftmaxBackward(Operation):
    """The gradient along the axis of a softmax."""

    kind = "softmax_backward"
    axis: int
    log: bool = False

    @property
    def flops(self) -> int:
        """Products, sums and differences."""
        return FLOPS * prod(self.outputs[0].dims)

    def compute(self, *, dst: Reals, diff_dst: Reals) -> Reals:
        """Row by row."""
        with np.errstate(all="ignore"):
            if self.log:
                return np.asarray(diff_dst - np.exp(dst) * diff_dst.sum(self.axis, keepdims=True))
            return np.asarray(dst * (diff_dst - (diff_dst * dst).sum(self.axis, keepdims=True)))
