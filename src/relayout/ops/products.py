"""Sums of products: convolution, its transpose, inner product and matrix product.

They differ in which elements of the source meet which weights, and in nothing else::

    inner product    dst[n, o]        = sum over i           src[n, i] weights[o, i]
    matrix product   dst[..., m, o]   = sum over i           src[..., m, i] weights[..., i, o]
    convolution      dst[n, o, y]     = sum over i, taps t   src[n, i, y stride + t dilation - pad] w[o, i, t]
    its transpose    dst[n, o, y]     = sum over (x, t) with x stride + t dilation - pad = y

So zero points, scales, bias, post-ops and the one rounding in the end are said once, in
:class:`SumOfProducts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from relayout.errors import LayoutError
from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.ops.windows import counts_of, taps_of
from relayout.records import dataclass

__all__ = [
    *("ALGORITHMS", "Convolution", "Deconvolution", "Filtering", "InnerProduct", "Matmul", "SumOfProducts"),
    *("check_algorithm", "convolved", "transposed"),
]

ALGORITHMS = ("direct", "winograd", "auto")
"""Which sums a convolution adds up: those of the definition, or those of transformed tiles and filters, which
round otherwise in real numbers (:mod:`relayout.kernels.conv.winograd`); or whichever takes less time."""


def check_algorithm(given: object, what: str = "algorithm") -> str:
    """One of the algorithms.

    >>> check_algorithm("auto")
    'auto'
    >>> check_algorithm("fft")
    Traceback (most recent call last):
    relayout.errors.LayoutError: algorithm: 'fft' is no algorithm; there are direct, winograd, auto
    """
    if not isinstance(given, str) or given not in ALGORITHMS:
        raise LayoutError(f"{what}: {given!r} is no algorithm; there are {', '.join(ALGORITHMS)}")
    return given


REQUANTISES = ("dst_scale", "dst_zero_point")


@dataclass(frozen=True, kw_only=True)
class SumOfProducts(Operation):
    """What goes into sums of products, and what becomes of them.

    ::

        sums = sums over products of (src - src_zero_point) and (weights - weights_zero_point[o])
        dst = post_ops(bias[o] + scale[o] * sums) / dst_scale + dst_zero_point

    All but source and weights are optional, and ``o`` is an output channel.

    Integers that stand for real numbers have *zero points*, which are taken off first: off the source, and
    off the weights of each output channel. What lies outside the source of a convolution counts as real zero,
    stored or not, as in ONNX's ``QLinearConv`` and in oneDNN.

    The results may stand for real numbers in steps of their own, ``dst_scale``, behind all post-ops as in
    oneDNN. They are rounded once, in the end, half to even, and saturated: ONNX's ``QuantizeLinear`` rounds
    before it adds the zero point, which differs for ties where that is odd.
    """

    @property
    def leading(self) -> int:
        """The axes of the weights that count output channels, in front; 0: the last one does."""
        return 1

    @property
    def shared(self) -> dict[str, Any]:
        """The attributes that gradients have, too."""
        return self.attributes

    def sums(self, src: Reals, weights: Reals) -> Reals:
        """Of products of real numbers."""
        raise NotImplementedError

    def compute(
        self,
        *,
        src: Reals,
        weights: Reals,
        bias: Reals | None = None,
        scale: Reals | None = None,
        src_zero_point: Reals | None = None,
        weights_zero_point: Reals | None = None,
    ) -> Reals:
        """Before post-ops."""
        out = self.sums(centred(src, src_zero_point), centred(weights, weights_zero_point, self.leading))
        channels = (-1, *(1 for _ in out.shape[2:])) if self.leading else (-1,)
        if scale is not None:
            out = out * scale.reshape(channels)
        return out if bias is None else out + bias.reshape(channels)

    def definition(self, arrays: Mapping[str, Reals]) -> dict[str, Reals]:
        """The logical results by name, before they are rounded."""
        found = super().definition({name: one for name, one in arrays.items() if name not in REQUANTISES})
        first = self.outputs[0].name
        scale, zero = (arrays.get(name) for name in REQUANTISES)
        x = found[first] if scale is None else found[first] / scale.reshape(())
        return found | {first: x if zero is None else x + zero.reshape(())}

    @cached_property
    def _read(self) -> tuple[str, ...]:
        return tuple(name for name in super()._read if name not in REQUANTISES)


@dataclass(frozen=True, kw_only=True)
class Filtering(Operation):
    """Filters that move over images: convolutions, their transposes, and gradients of both."""

    usual: ClassVar = {**Operation.usual, "strides": 1}
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """In front of and behind each spatial axis: zeros around what a convolution reads, elements that the
    result of a transposed one lacks."""
    grouped: bool = False
    """Whether the first axis of the weights counts groups."""

    @property
    def leading(self) -> int:
        """The axes of the weights in front of the input channels."""
        return 1 + self.grouped


@dataclass(frozen=True, kw_only=True)
class Convolution(Filtering, SumOfProducts):
    """A convolution over one to three spatial axes, which what lies outside the source adds nothing to.

    ::

        sums[n, g o, y, x] = sum over i, r, s of weights[g, o, i, r, s] *
                                 src[n, g i, y * stride + r * dilation - padding, x ...]
    """

    kind = "convolution"
    algorithm: str = "direct"
    """One of :data:`ALGORITHMS`: how real numbers may be rounded on the way. The definition is the same."""

    @property
    def shared(self) -> dict[str, Any]:
        """How filters move."""
        return {name: value for name, value in self.attributes.items() if name != "algorithm"}

    def sums(self, src: Reals, weights: Reals) -> Reals:
        """Tap by tap."""
        return convolved(src, weights, self.strides, self.dilation, self.padding, self.grouped)

    @property
    def flops(self) -> int:
        """Two for each product; what falls into the padding counts."""
        return 2 * prod(self.outputs[0].dims) * prod(self.inputs[1].dims[self.leading :])


@dataclass(frozen=True, kw_only=True)
class Deconvolution(Filtering, SumOfProducts):
    """The transpose of a convolution: each element of the source adds the weights, times itself.

    ::

        sums[n, g o, y * stride + r * dilation - padding, x ...] +=
            weights[g, o, i, r, s] * src[n, g i, y, x]

    The weights have its own output channels first. There are no zero points here.
    """

    kind = "deconvolution"

    def sums(self, src: Reals, weights: Reals) -> Reals:
        """Tap by tap."""
        sizes = self.outputs[0].dims[2:]
        return transposed(src, weights, self.strides, self.dilation, self.padding, sizes, self.grouped)

    @property
    def flops(self) -> int:
        """Two for each product; what falls outside of the result counts."""
        weights = self.inputs[1].dims[self.grouped :]
        return 2 * prod(self.inputs[0].dims) * weights[0] * prod(weights[2:])


@dataclass(frozen=True, kw_only=True)
class InnerProduct(SumOfProducts):
    """``sums[n, o] = sum over c, y, x of src[n, c, y, x] * weights[o, c, y, x]``."""

    kind = "inner product"

    def sums(self, src: Reals, weights: Reals) -> Reals:
        """The product of two matrices."""
        inputs = prod(src.shape[1:])
        found: Reals = src.reshape(len(src), inputs) @ weights.reshape(len(weights), inputs).T
        return found

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.inputs[0].dims[0] * prod(self.inputs[1].dims)


@dataclass(frozen=True, kw_only=True)
class Matmul(SumOfProducts):
    """``sums[b, m, n] = sum over k of src[b, m, k] * weights[b, k, n]``: output channels are columns."""

    kind = "matrix product"

    @property
    def leading(self) -> int:
        """None: the last axis counts columns."""
        return 0

    def sums(self, src: Reals, weights: Reals) -> Reals:
        """NumPy's product."""
        return src @ weights

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * prod(self.inputs[0].dims) * self.inputs[1].dims[-1]


def centred(stored: Reals, zero_point: Reals | None, leading: int = 0) -> Reals:
    """Integers less their zero point, one for all or one for each index of the ``leading`` axes.

    Without leading axes, zero points belong to the last one.
    """
    if zero_point is None:
        return stored
    if not leading or zero_point.size == 1:
        return stored - zero_point
    return stored - zero_point.reshape(stored.shape[:leading] + (1,) * (stored.ndim - leading))


def convolved(
    src: Reals,
    weights: Reals,
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
    grouped: bool = False,
) -> Reals:
    """The convolution of logical arrays, tap by tap."""
    if not grouped:
        weights = weights[None]
    groups, outputs, inputs, *kernel = weights.shape
    padded = np.pad(src, [(0, 0), (0, 0), *padding])
    sizes = counts_of(padded.shape[2:], kernel, strides, dilation)
    padded = padded.reshape(src.shape[0], groups, inputs, *padded.shape[2:])
    out = np.zeros((src.shape[0], groups, outputs, *sizes))
    for tap, met in taps_of(kernel, sizes, strides, dilation) if out.size else ():
        out += np.einsum("ngi...,goi->ngo...", padded[met], weights[tap])
    return out.reshape(src.shape[0], groups * outputs, *sizes)


def transposed(
    src: Reals,
    weights: Reals,
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    grouped: bool = False,
) -> Reals:
    """What the transpose of a convolution makes of logical arrays, tap by tap.

    ``sizes`` are those of the spatial axes of the result; ``weights`` have its channels first.
    """
    if not grouped:
        weights = weights[None]
    groups, outputs, inputs, *kernel = weights.shape
    counts = src.shape[2:]
    room = [
        max(size + front + behind, (n - 1) * s + (k - 1) * d + 1)
        for size, (front, behind), n, s, k, d in zip(
            sizes, padding, counts, strides, kernel, dilation, strict=True
        )
    ]
    src = src.reshape(src.shape[0], groups, inputs, *counts)
    out = np.zeros((src.shape[0], groups, outputs, *room))
    for tap, met in taps_of(kernel, counts, strides, dilation) if out.size and src.size else ():
        out[met] += np.einsum("ngi...,goi->ngo...", src, weights[tap])
    within: Any = (
        ...,
        *(slice(front, front + size) for size, (front, _) in zip(sizes, padding, strict=True)),
    )
    made: Reals = out[within].reshape(src.shape[0], groups * outputs, *sizes)
    return made
