"""Gradients of deconvolutions: that of the source is a convolution of the destination's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import deconvolution as ops
from relayout.primitives.backward.convolution import DataGradient
from relayout.primitives.deconvolution import Deconvolution
from relayout.primitives.primitive import Primitive
from relayout.primitives.products import Products
from relayout.primitives.transposed import exchanged

__all__ = ["DeconvolutionBackwardData"]


class DeconvolutionBackwardData(DataGradient):
    """The gradient of a deconvolution's source.

    Parameters
    ----------
    forward : Deconvolution
        The forward pass.
    diff_dst, weights, diff_src : MemoryDesc or rl.any, optional
        In other formats or data types than the forward pass has them.

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
    operation: ops.DeconvolutionBackwardData

    def __init__(
        self, forward: Deconvolution, *, diff_dst: Any = None, weights: Any = None, diff_src: Any = None
    ) -> None:
        self._made_from(ops.DeconvolutionBackwardData, forward, diff_dst, weights, diff_src)

    def _as_products(self, descs: Mapping[str, MemoryDesc]) -> Products:
        weights, src, dst = (descs[name] for name in ("weights", *self._sides))
        grouped = len(weights.dims) > len(src.dims)
        return Products(self.geometry, src, exchanged(weights, grouped), dst, grouped=grouped)
