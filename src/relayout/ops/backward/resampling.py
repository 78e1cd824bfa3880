"""Gradients of resampling: the product with the transposed matrix of each axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.ops.resampling import matrix, product_along

__all__ = ["ResamplingBackward"]


@dataclass(frozen=True, kw_only=True)
class ResamplingBackward(Operation):
    """Each element of the source gets from those that it was read for, with the weights that it had there."""

    kind = "resampling backward"
    algorithm: str

    def compute(self, *, diff_dst: Reals) -> Reals:
        """Axis by axis."""
        dims = self.outputs[0].dims
        matrices = {k: matrix(self.algorithm, dims[k], diff_dst.shape[k]).T for k in range(2, len(dims))}
        return reduce(lambda x, k: product_along(x, k, matrices[k]), matrices, diff_dst)

    @property
    def flops(self) -> int:
        """A product and a sum for each neighbour."""
        dims = self.inputs[0].dims
        return 2 * prod(dims) * (2 ** len(dims[2:]) if self.algorithm == "linear" else 1)
