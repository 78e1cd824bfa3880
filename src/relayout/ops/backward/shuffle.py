"""The gradient of a shuffle: the shuffle that puts everything back."""

from __future__ import annotations

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.ops.shuffle import Shuffle
from relayout.records import dataclass

__all__ = ["ShuffleBackward"]


@dataclass(frozen=True, kw_only=True)
class ShuffleBackward(Operation):
    """The matrix of ``group_size`` columns is there again."""

    kind = "shuffle backward"
    axis: int
    group_size: int

    @property
    def inverse(self) -> Shuffle:
        """The same as a shuffle: rows and columns have changed places."""
        ((_, dims, dtype),) = self.outputs
        gradient = self.inputs[0]
        rows = dims[self.axis] // self.group_size
        return Shuffle((gradient.named("src"),), (gradient._replace(name="dst", dtype=dtype),),
                       axis=self.axis, group_size=max(1, rows))  # fmt: skip

    def compute(self, *, diff_dst: Reals) -> Reals:
        """The inverse."""
        return self.inverse.compute(src=diff_dst)

    @property
    def flops(self) -> int:
        """Nothing is computed."""
        return 0
