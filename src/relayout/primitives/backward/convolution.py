"""Gradients of convolutions.

That of the source is the transposed convolution of the destination's gradient
(:mod:`relayout.primitives.transposed`): a convolution with turned filters, and with strides several smaller
ones, each of which writes its share of the pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import convolution as ops
from relayout.ops.operation import Operation
from relayout.ops.post_ops import post_ops_for
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.weights import check_floats
from relayout.primitives.convolution import Convolution, ImageProducts
from relayout.primitives.meaning import check_data, check_weights
from relayout.primitives.primitive import Primitive
from relayout.primitives.products import Products
from relayout.primitives.transposed import Transposed, exchanged

__all__ = ["ConvolutionBackwardData", "DataGradient"]

EXCHANGED = str.maketrans("oOiI", "iIoO")


class DataGradient(Backward, ImageProducts):
    """What the gradients of the sources of convolutions and deconvolutions share.

    Their weights have outputs and inputs exchanged: vectors of what the forward pass reads are computed, so
    that is what suits weights best.
    """

    means: ClassVar[type[Operation]]
    forward: Any
    _sides = ("diff_dst", "diff_src")

    def __init__(
        self,
        forward: Any,
        *,
        diff_dst: Any = None,
        weights: Any = None,
        diff_src: Any = None,
        post_ops: Any = (),
    ) -> None:
        self._made_for(forward)
        self.geometry = self.forward.geometry.exchanged
        given = {
            "weights": self._like("weights", weights, self.forward.weights),
            "diff_dst": self._like("diff_dst", diff_dst, self.forward.dst),
            "diff_src": self._like("diff_src", diff_src, self.forward.src, written=True),
        }
        check_weights(self.kind, "weights", given["weights"], len(given["diff_dst"].dims) - 2)
        for name, desc in given.items():
            if name != "weights":
                check_data(self.kind, name, desc)
        check_floats(self.kind, forward, given)
        self._given = given
        decided = self._decided(given)
        found = {"diff_src": decided.pop("diff_src")}
        post_ops = post_ops_for(self.kind, post_ops, found["diff_src"])
        self._settle(self.means, decided, found, post_ops, **forward.operation.shared)

    def _as_products(self, descs: Mapping[str, MemoryDesc]) -> Products | Transposed:
        weights, src, dst = (descs[name] for name in ("weights", *self._sides))
        grouped = len(weights.dims) > len(src.dims)
        turned = exchanged(weights, grouped)
        return self.computes(self.geometry, src, turned, dst, grouped=grouped, post_ops=self.post_ops)

    def _weights_format(self, given: Mapping[str, MemoryDesc]) -> str | None:
        text = super()._weights_format(given)
        return None if text is None else text.translate(EXCHANGED)


class ConvolutionBackwardData(DataGradient):
    """The gradient of a convolution's source.

    Parameters
    ----------
    forward : Convolution
        The forward pass.
    diff_dst, weights, diff_src : MemoryDesc or rl.any, optional
        In other formats or data types than the forward pass has them. Weights that are ``any`` have the
        vectors of input channels together that the kernels compute; where they come as the forward pass likes
        them, they are reordered in each call.
    post_ops : sequence
        What follows for the gradient, such as ``Sum()``: it is added to another one of the same source.

    Raises
    ------
    LayoutError
        A descriptor has other dims than in the forward pass.
    Unsupported
        The forward pass has post-ops, or is one of integers.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((8, 64, 56, 56), "f32", "nhwc")
    >>> forward = rl.primitives.Convolution(src, rl.MemoryDesc((128, 64, 3, 3), "f32", rl.any), padding=1)
    >>> made = ConvolutionBackwardData(forward, weights=rl.any)
    >>> made.inputs, made.diff_src
    (('weights', 'diff_dst'), MemoryDesc('f32:nhwc:8x64x56x56'))
    """

    kind = "convolution backward data"
    hint: ClassVar[type[Primitive] | tuple[type[Primitive], ...]] = Convolution
    means = ops.ConvolutionBackwardData
    computes = Transposed
    operation: ops.ConvolutionBackwardData
