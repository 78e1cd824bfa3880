"""Gradients of resampling: the product with the transposed matrix of each axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.ops.resampling import combined_along, places, transposed

__all__ = ["ResamplingBackward"]


@dataclass(frozen=True, kw_only=True)
class ResamplingBackward(Operation):
    """Each element of the source gets from those that it was read for, with the weights that it had there."""

    kind = "resampling backward"
    algorithm: str

    def compute(self, *, diff_dst: Reals) -> Reals:
        """Axis by axis."""
        dims = self.outputs[0].dims
        forward = {k: places(self.algorithm, dims[k], diff_dst.shape[k]) for k in range(2, len(dims))}
        rows = {k: transposed(several, dims[k]) for k, several in forward.items()}
        return reduce(lambda x, k: combined_along(x, k, rows[k]), rows, diff_dst)

    @property
    def flops(self) -> int:
        """A product and a sum for each neighbour."""
        dims = self.inputs[0].dims
        return 2 * prod(dims) * (2 ** len(dims[2:]) if self.algorithm == "linear" else 1)
