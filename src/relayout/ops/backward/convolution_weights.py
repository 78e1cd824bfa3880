"""The gradients of a convolution's weights and bias."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.products import Filtering
from relayout.ops.windows import taps_of
from relayout.records import dataclass

__all__ = ["ConvolutionBackwardWeights", "gradient"]


@dataclass(frozen=True, kw_only=True)
class ConvolutionBackwardWeights(Filtering):
    """The gradients of a convolution's weights and bias: each tap is a product of matrices over all pixels.

    ::

        diff_weights[g, o, i, r, s] = sum over n, y, x of diff_dst[n, g o, y, x] *
                                          src[n, g i, y * stride + r * dilation - padding, x ...]
        diff_bias[g o] = sum over n, y, x of diff_dst[n, g o, y, x]
    """

    kind = "convolution backward weights"

    def compute(self, *, src: Reals, diff_dst: Reals) -> dict[str, Reals]:
        """Tap by tap."""
        windows = self.strides, self.dilation, self.padding
        found = gradient(src, diff_dst, self.outputs[0].dims, *windows, self.grouped)
        return {"diff_weights": found, "diff_bias": diff_dst.sum(axis=(0, *range(2, diff_dst.ndim)))}

    @property
    def flops(self) -> int:
        """Two for each product, those that fall into the padding among them: as of the forward pass."""
        return 2 * prod(self.inputs[1].dims) * prod(self.outputs[0].dims[self.leading :])


def gradient(
    src: Reals,
    diff_dst: Reals,
    dims: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
    grouped: bool = False,
) -> Reals:
    """The gradient of weights of these dims, tap by tap, from logical arrays."""
    groups, outputs, inputs, *kernel = dims if grouped else (1, *dims)
    sizes = diff_dst.shape[2:]
    padded = np.pad(src, [(0, 0), (0, 0), *padding])
    padded = padded.reshape(len(src), groups, inputs, *padded.shape[2:])
    each = diff_dst.reshape(len(src), groups, outputs, *sizes)
    found = np.zeros((groups, outputs, inputs, *kernel))
    for tap, met in taps_of(kernel, sizes, strides, dilation) if diff_dst.size else ():
        found[tap] = np.einsum("ngo...,ngi...->goi", each, padded[met], optimize=True)
    return found.reshape(tuple(dims))
