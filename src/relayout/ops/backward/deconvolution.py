"""Gradients of transposed convolutions: convolutions of the gradient of the result."""

from __future__ import annotations

from math import prod
from typing import Any

from relayout.ops.backward.convolution_weights import gradient
from relayout.ops.functions import Reals
from relayout.ops.products import Filtering, convolved
from relayout.records import dataclass

__all__ = ["DeconvolutionBackwardData", "DeconvolutionBackwardWeights"]


@dataclass(frozen=True, kw_only=True)
class DeconvolutionBackwardData(Filtering):
    """The gradient of a deconvolution's source: the convolution of that of its destination.

    ::

        diff_src[n, g i, y, x] = sum over o, r, s of weights[g, o, i, r, s] *
                                     diff_dst[n, g o, y * stride + r * dilation - padding, x ...]
    """

    kind = "deconvolution backward data"

    def compute(self, *, weights: Reals, diff_dst: Reals) -> Reals:
        """Tap by tap; elements that output padding alone has made have no part in it."""
        turned = weights.swapaxes(self.grouped, self.grouped + 1)
        out = convolved(diff_dst, turned, self.strides, self.dilation, self.padding, self.grouped)
        inside: Any = (..., *(slice(size) for size in self.outputs[0].dims[2:]))
        found: Reals = out[inside]
        return found

    @property
    def flops(self) -> int:
        """Two for each product."""
        weights = self.inputs[0].dims[self.grouped :]
        return 2 * prod(self.outputs[0].dims) * weights[0] * prod(weights[2:])


@dataclass(frozen=True, kw_only=True)
class DeconvolutionBackwardWeights(Filtering):
    """The gradients of a deconvolution's weights and bias.

    ::

        diff_weights[g, o, i, r, s] = sum over n, y, x of src[n, g i, y, x] *
                                          diff_dst[n, g o, y * stride + r * dilation - padding, x ...]
        diff_bias[g o] = sum over n, y, x of diff_dst[n, g o, y, x]
    """

    kind = "deconvolution backward weights"

    def compute(self, *, src: Reals, diff_dst: Reals) -> dict[str, Reals]:
        """Those of the convolution that this is the transpose of, with source and destination exchanged."""
        first = int(self.grouped)
        dims = [*self.outputs[0].dims]
        dims[first : first + 2] = dims[first + 1], dims[first]
        found = gradient(diff_dst, src, dims, self.strides, self.dilation, self.padding, self.grouped)
        sums = diff_dst.sum(axis=(0, *range(2, diff_dst.ndim)))
        return {"diff_weights": found.swapaxes(first, first + 1), "diff_bias": sums}

    @property
    def flops(self) -> int:
        """Two for each product: as of the forward pass."""
        weights = self.outputs[0].dims[self.grouped :]
        return 2 * prod(self.inputs[0].dims) * weights[0] * prod(weights[2:])
