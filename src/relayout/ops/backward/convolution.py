"""Gradients of convolutions."""

from __future__ import annotations

from math import prod

from relayout.ops.functions import Reals
from relayout.ops.products import Filtering, transposed
from relayout.records import dataclass

__all__ = ["ConvolutionBackwardData"]


@dataclass(frozen=True, kw_only=True)
class ConvolutionBackwardData(Filtering):
    """The gradient of a convolution's source: the transposed convolution of that of its destination.

    ::

        diff_src[n, g i, y * stride + r * dilation - padding, x ...] +=
            weights[g, o, i, r, s] * diff_dst[n, g o, y, x]
    """

    kind = "convolution backward data"

    def compute(self, *, weights: Reals, diff_dst: Reals) -> Reals:
        """Tap by tap."""
        turned = weights.swapaxes(self.grouped, self.grouped + 1)
        sizes = self.outputs[0].dims[2:]
        return transposed(diff_dst, turned, self.strides, self.dilation, self.padding, sizes, self.grouped)

    @property
    def flops(self) -> int:
        """Two for each product, those that fall into the padding among them: as of the forward pass."""
        return 2 * prod(self.inputs[1].dims) * prod(self.inputs[0].dims[self.leading :])
