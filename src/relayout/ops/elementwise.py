"""Operations that work element by element: functions, binary operations, sums.

The definition of each is in double precision. Its ``expression`` is what a kernel computes of the inputs,
before post-ops.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np

from relayout.ops.binary import defined
from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function, Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["Binary", "Eltwise", "Sum"]


class _Elementwise(Operation):
    """An operation whose output may be written over any of its inputs."""

    numbers: ClassVar[tuple[float, ...]] = ()
    """What the expression reads behind its inputs."""

    @property
    def overwritable(self) -> tuple[str, ...]:
        """All inputs; none where the old output is read, too."""
        return tuple(one.name for one in self.inputs)


@dataclass(frozen=True, kw_only=True)
class Eltwise(_Elementwise):
    """``dst[i] = f(src[i])``."""

    kind = "eltwise"
    function: Function

    def compute(self, *, src: Reals) -> Reals:
        """The function, on all elements."""
        return self.function.definition(src)

    @property
    def expression(self) -> Expression:
        """The function."""
        return Expression.of(("f32",), [(self.function, "f32", (0,))])


@dataclass(frozen=True, kw_only=True)
class Binary(_Elementwise):
    """``dst[i] = op(scales[0] src0[i], scales[1] src1[i])``, with broadcasting."""

    kind = "binary"
    algorithm: str
    scales: tuple[float, float] = (1.0, 1.0)

    def compute(self, *, src0: Reals, src1: Reals) -> Reals:
        """NumPy's operation, on products."""
        return defined(self.algorithm, src0 * self.scales[0], src1 * self.scales[1])

    @property
    def expression(self) -> Expression:
        """The operation, in which NaN stays NaN in ``max`` and ``min``.

        With scales everything is in double, where a product of two f32 is exact and never beyond the range:
        to divide by ``4 * 1e38`` in f32 would be to divide by infinity.
        """
        w, x, y = Writing("f32", "f32"), 0, 1
        if self.scales == (1, 1):
            w.binary(self.algorithm, x, y)
        else:
            wide = [w.put("cast", "f64", k) for k in (x, y)]
            scaled = [w.apply("mul", k, w.number("f64", n)) for k, n in zip(wide, self.scales, strict=True)]
            w.put("cast", "f32", w.binary(self.algorithm, *scaled))
        return w.written()


@dataclass(frozen=True, kw_only=True)
class Sum(_Elementwise):
    """``dst[i] = scales[0] src0[i] + scales[1] src1[i] + ...``; without scales all are 1."""

    kind = "sum"
    scales: tuple[float, ...] = ()

    def compute(self, **srcs: Reals) -> Any:
        """One after the other, in order."""
        scales = self.scales or (1.0,) * len(srcs)
        return np.asarray(sum(scale * src for scale, src in zip(scales, srcs.values(), strict=True)))

    @property
    def expression(self) -> Expression:
        """A weighted sum begins with +0.0, so that zeros times negative numbers do not end as -0.0."""
        count = len(self.inputs)
        w = Writing(*["f32"] * (count + len(self.scales)))
        if not self.scales:
            reduce(partial(w.apply, "add"), range(count))
            return w.written()
        total = w.number("f32", 0.0)
        for k in range(count):
            total = w.apply("fma", k, count + k, total)
        return w.written()

    @property
    def numbers(self) -> tuple[float, ...]:  # type: ignore[override]
        """The scales."""
        return self.scales

    @property
    def flops(self) -> int:
        """An addition for each source but the first, and multiplications where there are scales."""
        return (len(self.inputs) - 1 + len(self.scales)) * super().flops
