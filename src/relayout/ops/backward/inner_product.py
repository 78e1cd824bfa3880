"""Gradients of inner products: products of matrices, one of them transposed."""

from __future__ import annotations

from math import prod

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["InnerProductBackwardData", "InnerProductBackwardWeights"]


@dataclass(frozen=True, kw_only=True)
class InnerProductBackwardData(Operation):
    """``diff_src[n, c, y, x] = sum over o of diff_dst[n, o] * weights[o, c, y, x]``."""

    kind = "inner product backward data"

    def compute(self, *, weights: Reals, diff_dst: Reals) -> Reals:
        """The product of two matrices."""
        rows = weights.reshape(len(weights), prod(weights.shape[1:]))
        return (diff_dst @ rows).reshape(self.outputs[0].dims)

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.inputs[1].dims[0] * prod(self.inputs[0].dims)


@dataclass(frozen=True, kw_only=True)
class InnerProductBackwardWeights(Operation):
    """The gradients of an inner product's weights and bias.

    ::

        diff_weights[o, c, y, x] = sum over n of diff_dst[n, o] * src[n, c, y, x]
        diff_bias[o] = sum over n of diff_dst[n, o]
    """

    kind = "inner product backward weights"

    def compute(self, *, src: Reals, diff_dst: Reals) -> dict[str, Reals]:
        """The product of two matrices."""
        rows = src.reshape(len(src), prod(src.shape[1:]))
        found = (diff_dst.T @ rows).reshape(self.outputs[0].dims)
        return {"diff_weights": found, "diff_bias": diff_dst.sum(axis=0)}

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.inputs[0].dims[0] * prod(self.outputs[0].dims)
