"""Gradients of elementwise functions: ``diff_src[i] = diff_dst[i] f'(src[i])``."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function, Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["EltwiseBackward"]


@dataclass(frozen=True, kw_only=True)
class EltwiseBackward(Operation):
    """What reaches the source of a function, by the source or, with ``use_dst``, by the destination."""

    kind = "eltwise backward"
    numbers: ClassVar[tuple[float, ...]] = ()
    function: Function
    use_dst: bool = False

    def compute(self, *, diff_dst: Reals, src: Reals | None = None, dst: Reals | None = None) -> Reals:
        """The gradient times the derivative; nothing where that is 0 by a condition."""
        function, derivative = self.function, self.function.derivative(self.use_dst)
        given = dst if self.use_dst else src, function.alpha, function.beta
        with np.errstate(all="ignore"):
            found = diff_dst * derivative.define(*given)
            return np.asarray(
                found if derivative.flat is None else np.where(derivative.flat(*given), 0.0, found)
            )

    @property
    def expression(self) -> Expression:
        """Of the source or destination, and the gradient."""
        w, function = Writing("f32", "f32"), self.function
        derivative = function.derivative(self.use_dst)
        last = derivative.write(w, 0, 1, function.alpha, function.beta)
        if last != len(w.operands) + len(w.terms) - 1:  # the gradient as it is
            w.put("cast", "f32", last)
        return w.written()

    @property
    def overwritable(self) -> tuple[str, ...]:
        """Both inputs."""
        return tuple(one.name for one in self.inputs)
