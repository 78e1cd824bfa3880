"""Gradients of transposed convolutions: convolutions of the gradient of the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.ops.products import definition

__all__ = ["DeconvolutionBackwardData"]


@dataclass(frozen=True, kw_only=True)
class DeconvolutionBackwardData(Operation):
    """The gradient of a deconvolution's source: the convolution of that of its destination.

    ::

        diff_src[n, g i, y, x] = sum over o, r, s of weights[g, o, i, r, s] *
                                     diff_dst[n, g o, y * stride + r * dilation - padding, x ...]
    """

    kind = "deconvolution backward data"
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """Elements that the destination lacks in front of and behind each spatial axis."""
    grouped: bool = False
    """Whether the first axis of the weights counts groups."""

    def compute(self, *, weights: Reals, diff_dst: Reals) -> Reals:
        """Tap by tap; elements that output padding alone has made have no part in it."""
        turned = weights.swapaxes(self.grouped, self.grouped + 1)
        windows = self.strides, self.dilation, self.padding
        out = definition(diff_dst, turned, None, *windows, self.grouped)
        inside: Any = (..., *(slice(size) for size in self.outputs[0].dims[2:]))
        found: Reals = out[inside]
        return found

    @property
    def flops(self) -> int:
        """Two for each product."""
        weights = self.inputs[0].dims[1:] if self.grouped else self.inputs[0].dims
        return 2 * prod(self.outputs[0].dims) * weights[0] * prod(weights[2:])
