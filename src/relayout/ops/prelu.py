"""PReLU: a ReLU whose slope below 0 is a tensor, and is learned."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["PReLU"]


@dataclass(frozen=True, kw_only=True)
class PReLU(Operation):
    """``dst[i] = src[i]`` where that is more than 0, else ``src[i] weights[i]``; weights broadcast."""

    kind = "prelu"
    numbers: ClassVar[tuple[float, ...]] = ()

    def compute(self, *, src: Reals, weights: Reals) -> Reals:
        """Element by element."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(src > 0, src, src * weights))

    @property
    def expression(self) -> Expression:
        """A selection."""
        w = Writing("f32", "f32")
        positive = w.apply("gt", 0, w.number("f32", 0.0))
        w.put("select", "f32", positive, 0, w.apply("mul", 0, 1))
        return w.written()

    @property
    def overwritable(self) -> tuple[str, ...]:
        """The source."""
        return ("src",)
