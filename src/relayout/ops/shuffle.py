"""Shuffle: the elements along an axis in another order, a matrix of them transposed."""

from __future__ import annotations

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["Shuffle"]


@dataclass(frozen=True, kw_only=True)
class Shuffle(Operation):
    """An axis as rows of ``group_size`` elements, transposed.

    >>> import numpy as np
    >>> from relayout.dtypes import dtype
    >>> from relayout.ops.operation import Spec
    >>> x = Spec("src", (6,), dtype("f32"))
    >>> Shuffle((x,), (x.named("dst"),), axis=0, group_size=3).compute(src=np.arange(6))
    array([0, 3, 1, 4, 2, 5])
    """

    kind = "shuffle"
    axis: int
    group_size: int

    def compute(self, *, src: Reals) -> Reals:
        """Reshaped, transposed, and reshaped back."""
        before, size, after = src.shape[: self.axis], src.shape[self.axis], src.shape[self.axis + 1 :]
        rows = src.reshape(*before, size // self.group_size, self.group_size, *after)
        return np.asarray(rows.swapaxes(self.axis, self.axis + 1).reshape(src.shape))

    @property
    def flops(self) -> int:
        """Nothing is computed."""
        return 0
