"""The gradient of local response normalisation.

With ``w = k + alpha mean of src^2`` over the window around each element, an element takes part in the sums of
all those whose windows it lies in, which is the window turned round::

    diff_src = diff_dst w^-beta - 2 alpha beta src mean over the turned window of (diff_dst src w^(-beta - 1))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relayout.ops import lrn as forward
from relayout.ops.functions import Reals

__all__ = ["LRNBackward"]


@dataclass(frozen=True, kw_only=True)
class LRNBackward(forward.LRN):
    """The gradient of a local response normalisation."""

    kind = "lrn_backward"

    @property
    def flops(self) -> int:
        """Two windows, two powers."""
        return 2 * super().flops

    def compute(self, *, src: Reals, diff_dst: Reals) -> Reals:  # type: ignore[override]
        """Window by window."""
        with np.errstate(all="ignore"):
            w = self.k + self.alpha * forward.mean_around(src * src, self.axes, self.size)
            part = diff_dst * src * w ** (-self.beta - 1)
            around = forward.mean_around(part, self.axes, self.size, turned=True)
            return diff_dst * w**-self.beta - 2 * self.alpha * self.beta * src * around
