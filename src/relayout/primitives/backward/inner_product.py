"""Gradients of an inner product, in any format: two products of matrices.

::

    diff_src[n, c, z, y, x] = sum over o of diff_dst[n, o] * weights[o, c, z, y, x]
    diff_weights[o, c, z, y, x] = sum over n of diff_dst[n, o] * src[n, c, z, y, x]
    diff_bias[o] = sum over n of diff_dst[n, o]
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.kernels.conv.geometry import Geometry
from relayout.layout import views
from relayout.layout.dense import CHANNELS_LAST, row_major
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import Layout
from relayout.ops.backward import inner_product as ops
from relayout.ops.formats import with_formats
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.weights import Gradient, WeightsBackward, check_floats
from relayout.primitives.drafting import Draft, if_possible
from relayout.primitives.inner_product import InnerProduct
from relayout.primitives.products import Products, weights_format
from relayout.primitives.several import assembled

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["InnerProductBackwardData", "InnerProductBackwardWeights"]


class InnerProductBackwardWeights(WeightsBackward):
    """The gradients of an inner product's weights and bias, made from the forward primitive.

    Parameters
    ----------
    forward : InnerProduct
        Without scales and post-ops.
    src, diff_dst, diff_weights, diff_bias : MemoryDesc or rl.any, optional
        As for :class:`~relayout.primitives.backward.convolution_weights.ConvolutionBackwardWeights`.

    Raises
    ------
    LayoutError
        Sizes are not those of the forward pass.
    Unsupported
        The forward pass has scales or post-ops, or a data type is not f32, bf16 or f16.

    Examples
    --------
    >>> import relayout as rl
    >>> src, weights = (rl.MemoryDesc((n, 2048), "f32", "ab") for n in (8, 1000))
    >>> forward = InnerProduct(src, weights, rl.MemoryDesc((1000,), "f32", "a"))
    >>> made = InnerProductBackwardWeights(forward)
    >>> made.outputs, made.diff_weights
    (('diff_weights', 'diff_bias'), MemoryDesc('f32:ab:1000x2048'))
    """

    kind = "inner product backward weights"
    hint = InnerProduct
    means = ops.InnerProductBackwardWeights
    forward: InnerProduct

    def _as_gradient(self, descs: Mapping[str, MemoryDesc]) -> Gradient:
        src, diff_dst, diff_weights = (descs[name] for name in ("src", "diff_dst", "diff_weights"))
        return Gradient(self.forward.geometry, src, diff_dst, diff_weights)


class InnerProductBackwardData(Backward):
    """The gradient of an inner product's source, made from the forward primitive.

    Parameters
    ----------
    forward : InnerProduct
        Without scales and post-ops.
    weights, diff_dst, diff_src : MemoryDesc or rl.any, optional
        Without them the formats and data types of the forward pass: f32, bf16 or f16. ``rl.any`` is channels
        last for the gradients, and for the weights what is read fastest.

    Raises
    ------
    LayoutError
        Sizes are not those of the forward pass.
    Unsupported
        The forward pass has scales or post-ops, or a data type is none of those.

    Examples
    --------
    >>> import relayout as rl
    >>> weights = rl.MemoryDesc((1000, 512, 7, 7), "f32", "oihw")
    >>> forward = InnerProduct(rl.MemoryDesc((8, 512, 7, 7), "f32", "nchw"), weights)
    >>> made = InnerProductBackwardData(forward)
    >>> made.inputs, made.diff_src
    (('weights', 'diff_dst'), MemoryDesc('f32:nchw:8x512x7x7'))
    """

    kind = "inner product backward data"
    hint = InnerProduct
    forward: InnerProduct

    def __init__(
        self, forward: InnerProduct, *, weights: Any = None, diff_dst: Any = None, diff_src: Any = None
    ) -> None:
        self._made_for(forward)
        given = {
            "weights": self._like("weights", weights, forward.weights),
            "diff_dst": self._like("diff_dst", diff_dst, forward.dst),
            "diff_src": self._like("diff_src", diff_src, forward.src, written=True),
        }
        check_floats(self.kind, forward, given)
        formats = {"diff_dst": "nc", "diff_src": CHANNELS_LAST[len(forward.src.dims)]}
        given = with_formats(given, formats)
        if given["weights"].layout is None:
            given["weights"] = _favourite(given["weights"], given["diff_dst"], given["diff_src"])
        diff_src = given.pop("diff_src")
        self._settle(ops.InnerProductBackwardData, given, {"diff_src": diff_src})

    @if_possible
    def _lower(self) -> Program | None:
        """The product, between reorders of what is no matrix."""
        weights, diff_src, order, draft = self.weights, self.diff_src, _order(self.diff_src), Draft()
        names = {"src": "diff_dst", "weights": "weights", "dst": "diff_src"}
        target, filters = _as_rows(diff_src, order), _as_rows(weights, order)
        if filters is None:
            moved = weights.with_layout(_in_order(weights.dims, order))
            filters = _as_rows(moved, order)
            names["weights"] = draft.read(weights, moved, "weights", "filters")
        if target is None:
            between = diff_src.with_layout(_in_order(diff_src.dims, order))
            target = _as_rows(between, order)
            names["dst"] = draft.write(diff_src, between, "diff_src", "rows")
        assert target is not None
        assert filters is not None
        draft.part(_products(self.diff_dst, filters, target), names)
        return self._assembled(assembled(draft))


def _products(diff_dst: MemoryDesc, weights: MemoryDesc, diff_src: MemoryDesc) -> Products:
    """The product of the gradient and the weights, whose output channels are the elements of an image."""
    turned = weights.permute_axes((1, 0))
    n, outputs = diff_dst.dims
    return Products(Geometry.of_matrices(n, outputs, weights.dims[1]), diff_dst, turned, diff_src)


def _order(desc: MemoryDesc) -> tuple[int, ...]:
    """The axes of an image, in the order in which they lie in memory."""
    axes = range(1, len(desc.dims))
    if not desc.layout.is_plain:
        return tuple(axes)
    return tuple(sorted(axes, key=lambda axis: (-abs(desc.strides[axis]), axis)))


def _in_order(dims: tuple[int, ...], order: tuple[int, ...]) -> Layout:
    """A dense layout with the axes of an image in some order."""
    whole = (0, *order)
    layout = row_major([dims[axis] for axis in whole])
    return views.permute(layout, [whole.index(axis) for axis in range(len(dims))])


def _as_rows(desc: MemoryDesc, order: tuple[int, ...]) -> MemoryDesc | None:
    """A tensor as a matrix, all axes of an image as one; None where they don't lie as one.

    Neither do they where the padding of one is lost: an axis of one element in blocks is merged without its
    block, but what is written there must be zero.
    """
    layout = views.permute(desc.layout.with_roles(None), (0, *order))
    if len(order) > 1:
        try:
            layout = views.merge_axes(layout, 1, len(order))
        except LayoutError:
            return None
        if prod(layout.padded_dims) != prod(desc.padded_dims):
            return None
    if any(len(term) != 1 for term in layout.terms):
        return None
    return desc.with_layout(layout)


def _favourite(weights: MemoryDesc, diff_dst: MemoryDesc, diff_src: MemoryDesc) -> MemoryDesc:
    """Weights in the format that is read fastest; images of several pixels lie as those of the source."""
    if len(weights.dims) > 2:
        return weights.with_layout(_in_order(weights.dims, _order(diff_src)))
    n, outputs = diff_dst.dims
    inputs = prod(weights.dims[1:])
    free = MemoryDesc((inputs, outputs), weights.dtype, any_format)
    text = weights_format(Products(Geometry.of_matrices(n, outputs, inputs), diff_dst, free, diff_src))
    if text is None:
        return MemoryDesc(weights.dims, weights.dtype, "oi")
    return MemoryDesc(free.dims, free.dtype, text).permute_axes((1, 0))
