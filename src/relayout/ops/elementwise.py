"""Operations that work element by element: functions, binary operations, sums, and reorders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relayout.ops.binary import defined
from relayout.ops.functions import Function, Reals
from relayout.ops.operation import Operation

__all__ = ["Binary", "Eltwise", "Sum"]


class _Elementwise(Operation):
    """An operation whose output may be written over any of its inputs."""

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


@dataclass(frozen=True, kw_only=True)
class Binary(_Elementwise):
    """``dst[i] = op(scales[0] src0[i], scales[1] src1[i])``, with broadcasting."""

    kind = "binary"
    algorithm: str
    scales: tuple[float, float] = (1.0, 1.0)

    def compute(self, *, src0: Reals, src1: Reals) -> Reals:
        """NumPy's operation, on products."""
        return defined(self.algorithm, src0 * self.scales[0], src1 * self.scales[1])


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
    def flops(self) -> int:
        """An addition for each source but the first, and multiplications where there are scales."""
        return (len(self.inputs) - 1 + len(self.scales)) * super().flops
