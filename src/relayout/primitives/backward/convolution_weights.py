"""The gradients of a convolution's weights and bias, in any format.

::

    diff_weights[g, o, i, r, s] = sum over n, y, x of diff_dst[n, g o, y, x] *
                                      src[n, g i, y * stride + r * dilation - padding, x ...]
    diff_bias[g o] = sum over n, y, x of diff_dst[n, g o, y, x]

Each tap is a product of two matrices over all pixels of all images. Partial sums are those of fixed shares of
the images, added up in a fixed order: the bits are the same for all numbers of threads.
"""

from __future__ import annotations

from collections.abc import Mapping

from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import convolution_weights as ops
from relayout.primitives.backward.weights import Gradient, WeightsBackward
from relayout.primitives.convolution import Convolution

__all__ = ["ConvolutionBackwardWeights"]


class ConvolutionBackwardWeights(WeightsBackward):
    """The gradients of a convolution's weights and bias, made from the forward primitive.

    Parameters
    ----------
    forward : Convolution
        Without scales and post-ops.
    src, diff_dst, diff_weights, diff_bias : MemoryDesc or rl.any, optional
        Without them the formats and data types of the forward pass: f32, bf16 or f16. ``rl.any`` is, for the
        inputs, what the kernels read fastest, and for ``diff_weights`` what forward convolutions read
        fastest. There is a ``diff_bias`` where the forward pass has a bias.

    Raises
    ------
    LayoutError
        Sizes are not those of the forward pass.
    Unsupported
        The forward pass has scales or post-ops, or a data type is none of those.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((1, 3, 8, 8), "f32", "nhwc")
    >>> forward = Convolution(src, rl.MemoryDesc((16, 3, 3, 3), "f32", "oihw"), padding=1)
    >>> made = ConvolutionBackwardWeights(forward)
    >>> made.inputs, made.diff_weights, made.flops == forward.flops
    (('src', 'diff_dst'), MemoryDesc('f32:oihw:16x3x3x3'), True)
    """

    kind = "convolution backward weights"
    hint = Convolution
    means = ops.ConvolutionBackwardWeights
    forward: Convolution

    def _as_gradient(self, descs: Mapping[str, MemoryDesc]) -> Gradient:
        src, diff_dst, diff_weights = (descs[name] for name in ("src", "diff_dst", "diff_weights"))
        return Gradient(self.forward.geometry, src, diff_dst, diff_weights, self.forward.operation.grouped)
