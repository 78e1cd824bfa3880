"""Gradients of resampling: the product with the transposed matrix of each axis."""

from __future__ import annotations

from functools import reduce
from math import prod

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.ops.resampling import Matrices, combined_along, matrices, transposed
from relayout.records import dataclass

__all__ = ["ResamplingBackward"]


@dataclass(frozen=True, kw_only=True)
class ResamplingBackward(Operation):
    """Each element of the source gets from those that it was read for, with the weights that it had there."""

    kind = "resampling backward"
    algorithm: str | Matrices

    def compute(self, *, diff_dst: Reals) -> Reals:
        """Axis by axis."""
        dims = self.outputs[0].dims
        forward = matrices(self.algorithm, dims[2:], diff_dst.shape[2:])
        rows = {k: transposed(several, dims[k]) for k, several in enumerate(forward, 2)}
        return reduce(lambda x, k: combined_along(x, k, rows[k]), rows, diff_dst)

    @property
    def flops(self) -> int:
        """A product and a sum for each neighbour."""
        dims = self.inputs[0].dims
        if isinstance(self.algorithm, Matrices):
            return 2 * prod(dims[:2]) * prod(sum(map(len, rows)) for rows in self.algorithm.axes)
        return 2 * prod(dims) * (2 ** len(dims[2:]) if self.algorithm == "linear" else 1)
