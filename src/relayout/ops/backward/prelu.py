"""Gradients of PReLU: of the source, and of the slopes, summed where those were repeated."""

from __future__ import annotations

import numpy as np

from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["PReLUBackward"]


@dataclass(frozen=True, kw_only=True)
class PReLUBackward(Operation):
    """``diff_src`` passes the slope; ``diff_weights`` sums ``src diff_dst`` where src is at most 0."""

    kind = "prelu backward"

    @property
    def summed(self) -> tuple[int, ...]:
        """The axes along which weights were repeated."""
        src, weights = (one.dims for one in self.inputs[:2])
        return tuple(k for k, (n, m) in enumerate(zip(src, weights, strict=True)) if n != m)

    def compute(self, *, src: Reals, weights: Reals, diff_dst: Reals) -> dict[str, Reals]:
        """Element by element, then the sums."""
        with np.errstate(invalid="ignore"):
            below = np.where(src > 0, 0.0, src * diff_dst)
            return {
                "diff_src": np.where(src > 0, diff_dst, diff_dst * weights),
                "diff_weights": below.sum(self.summed, keepdims=True),
            }

    @property
    def of_src(self) -> Expression:
        """The gradient of the source, from all three."""
        w = Writing("f32", "f32", "f32")
        positive = w.apply("gt", 0, w.number("f32", 0.0))
        w.put("select", "f32", positive, 2, w.apply("mul", 2, 1))
        return w.written()

    @property
    def of_weights(self) -> Expression:
        """What is summed, from the source and the gradient."""
        w = Writing("f32", "f32")
        positive = w.apply("gt", 0, w.number("f32", 0.0))
        w.put("select", "f32", positive, w.number("f32", 0.0), w.apply("mul", 0, 1))
        return w.written()

    @property
    def flops(self) -> int:
        """Two products and a sum for each element."""
        return 3 * super().flops
