"""The gradient of local response normalisation.

With ``w = k + alpha mean of src^2`` over the window around each element, an element takes part in the sums of
all those whose windows it lies in, which is the window turned round::

    diff_src = diff_dst w^-beta - 2 alpha beta src mean over the turned window of (diff_dst src w^(-beta - 1))
"""

from __future__ import annotations

import numpy as np

from relayout.ops import lrn as forward
from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function, Reals
from relayout.records import dataclass

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

    @property
    def part(self) -> Expression:
        """What is added up over turned windows: of ``diff_dst``, the source and the mean square."""
        w = Writing("f32", "f32", "f32")
        base = w.apply("fma", 2, w.number("f32", self.alpha), w.number("f32", self.k))
        w.apply("mul", w.apply("mul", 0, 1), w.apply(Function("pow", 1.0, -self.beta - 1), base))
        return w.written()

    @property
    def result(self) -> Expression:
        """What is written: of ``diff_dst``, the source, the mean square and the mean of :attr:`part`."""
        w = Writing("f32", "f32", "f32", "f32")
        base = w.apply("fma", 2, w.number("f32", self.alpha), w.number("f32", self.k))
        own = w.apply("mul", 0, w.apply(Function("pow", 1.0, -self.beta), base))
        others = w.apply("mul", w.apply("mul", 1, 3), w.number("f32", -2 * self.alpha * self.beta))
        w.apply("add", own, others)
        return w.written()
