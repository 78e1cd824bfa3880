"""Gradients of deconvolutions.

That of the source is the convolution of the destination's gradient. Those of the weights are those of this
convolution's, whose source is what is the gradient of the destination here, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import deconvolution as ops
from relayout.ops.formats import with_formats
from relayout.primitives.backward.convolution import EXCHANGED, DataGradient
from relayout.primitives.backward.weights import Gradient, WeightsBackward, weights_gradient, weights_written
from relayout.primitives.deconvolution import Deconvolution
from relayout.primitives.drafting import renamed
from relayout.primitives.primitive import Primitive
from relayout.primitives.products import Products
from relayout.primitives.program import Program
from relayout.primitives.transposed import exchanged

__all__ = ["DeconvolutionBackwardData", "DeconvolutionBackwardWeights"]


class DeconvolutionBackwardData(DataGradient):
    """The gradient of a deconvolution's source.

    Parameters
    ----------
    forward : Deconvolution
        The forward pass.
    diff_dst, weights, diff_src : MemoryDesc or rl.any, optional
        In other formats or data types than the forward pass has them.
    post_ops : sequence
        What follows for the gradient.

    Raises
    ------
    LayoutError
        A descriptor has other dims than in the forward pass.
    Unsupported
        The forward pass has post-ops, or is one of integers.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((8, 64, 14, 14), "f32", "nhwc")
    >>> forward = rl.primitives.Deconvolution(src, rl.MemoryDesc((32, 64, 2, 2), "f32", rl.any), strides=2)
    >>> made = DeconvolutionBackwardData(forward, weights=rl.any)
    >>> made.diff_dst.dims, made.diff_src
    ((8, 32, 28, 28), MemoryDesc('f32:nhwc:8x64x14x14'))
    """

    kind = "deconvolution backward data"
    hint: ClassVar[type[Primitive] | tuple[type[Primitive], ...]] = Deconvolution
    means = ops.DeconvolutionBackwardData
    computes = Products
    operation: ops.DeconvolutionBackwardData


class DeconvolutionBackwardWeights(WeightsBackward):
    """The gradients of a deconvolution's weights and bias.

    Parameters
    ----------
    forward : Deconvolution
        Without scales and post-ops.
    src, diff_dst, diff_weights, diff_bias : MemoryDesc or rl.any, optional
        As for :class:`~relayout.primitives.ConvolutionBackwardWeights`.

    Raises
    ------
    LayoutError
        Sizes are not those of the forward pass.
    Unsupported
        The forward pass has scales or post-ops, or a data type is not f32, bf16 or f16.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((1, 16, 7, 7), "f32", "nhwc")
    >>> forward = Deconvolution(src, rl.MemoryDesc((8, 16, 3, 3), "f32", "oihw"), strides=2)
    >>> made = DeconvolutionBackwardWeights(forward)
    >>> made.inputs, made.diff_weights, made.flops == forward.flops
    (('src', 'diff_dst'), MemoryDesc('f32:oihw:8x16x3x3'), True)
    """

    kind = "deconvolution backward weights"
    hint = Deconvolution
    means = ops.DeconvolutionBackwardWeights
    forward: Deconvolution

    def _as_gradient(self, descs: Mapping[str, MemoryDesc]) -> Gradient:
        grouped, geometry = self.forward.operation.grouped, self.forward.geometry.exchanged
        src, diff_dst, weights = (descs[name] for name in ("diff_dst", "src", "diff_weights"))
        return Gradient(geometry, src, diff_dst, exchanged(weights, grouped), grouped)

    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        if given["diff_weights"].layout is None:
            text = weights_written(self._as_gradient(given)).translate(EXCHANGED)
            given = with_formats(given, {"diff_weights": text})
        return super()._decided(given)

    def _program_of(self, made: Gradient, schedule: str) -> Program | None:
        program = weights_gradient(made, schedule)
        return None if program is None else renamed(program, {"src": "diff_dst", "diff_dst": "src"})
