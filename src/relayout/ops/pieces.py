"""Concatenation and split: tensors that are parts of another one along an axis."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["Concat", "Split"]


@dataclass(frozen=True, kw_only=True)
class Concat(Operation):
    """The sources, one behind the other along an axis."""

    kind = "concat"
    axis: int

    @property
    def flops(self) -> int:
        """None: elements are moved."""
        return 0

    def compute(self, **srcs: Reals) -> Reals:
        """NumPy's ``concatenate``."""
        return np.concatenate(list(srcs.values()), self.axis)


@dataclass(frozen=True, kw_only=True)
class Split(Operation):
    """The parts of the source, which is cut along an axis."""

    kind = "split"
    axis: int

    @property
    def flops(self) -> int:
        """None: elements are moved."""
        return 0

    def compute(self, *, src: Reals) -> dict[str, Reals]:
        """NumPy's ``split``."""
        ends = list(accumulate(one.dims[self.axis] for one in self.outputs))[:-1]
        parts = np.split(src, ends, self.axis)
        return {one.name: part for one, part in zip(self.outputs, parts, strict=True)}
