"""Sums of products: convolution, its transpose, inner product and matrix product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation

__all__ = [
    *("Convolution", "Deconvolution", "InnerProduct", "Matmul", "Requantised"),
    "definition",
    "transposed",
]

REQUANTISES = ("dst_scale", "dst_zero_point")


@dataclass(frozen=True, kw_only=True)
class Requantised(Operation):
    """A sum of products whose results may stand for real numbers in steps of their own.

    ::

        dst = post_ops(...) / dst_scale + dst_zero_point        rounded half to even, saturated

    both optional, behind all post-ops, as in oneDNN. It is rounded once, in the end: ONNX's
    ``QuantizeLinear`` rounds before it adds the zero point, which differs for ties where that is odd.
    """

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
class Convolution(Requantised):
    """A convolution over one to three spatial axes, which what lies outside the source adds nothing to.

    ::

        dst[n, g o, y, x] = bias[g o] + scale[g o] * sum over i, r, s of weights[g, o, i, r, s] *
                                src[n, g i, y * stride + r * dilation - padding, x ...]

    Integers that stand for real numbers have *zero points*, which are taken off first: off the source, and
    off the weights of each output channel. What lies outside the source counts as real zero, stored or not,
    as in ONNX's ``QLinearConv`` and in oneDNN.
    """

    kind = "convolution"
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """Zeros in front of and behind each spatial axis."""
    grouped: bool = False
    """Whether the first axis of the weights counts groups."""

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
        """Tap by tap."""
        windows = self.strides, self.dilation, self.padding
        outputs = weights.shape[: 1 + self.grouped]
        src = centred(src, src_zero_point)
        weights = centred(weights, weights_zero_point, outputs)
        return definition(src, weights, bias, *windows, self.grouped, scale)

    @property
    def flops(self) -> int:
        """Two for each product; what falls into the padding counts."""
        weights = self.inputs[1].dims[1:] if self.grouped else self.inputs[1].dims
        return 2 * prod(self.outputs[0].dims) * prod(weights[1:])


@dataclass(frozen=True, kw_only=True)
class Deconvolution(Operation):
    """The transpose of a convolution: each element of the source adds the weights, times itself.

    ::

        dst[n, g o, y * stride + r * dilation - padding, x ...] +=
            weights[g, o, i, r, s] * src[n, g i, y, x]

    and then scale and bias, as of a convolution. The weights have its own output channels first.
    """

    kind = "deconvolution"
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """Elements that the result lacks in front of and behind each spatial axis."""
    grouped: bool = False
    """Whether the first axis of the weights counts groups."""

    def compute(
        self, *, src: Reals, weights: Reals, bias: Reals | None = None, scale: Reals | None = None
    ) -> Reals:
        """Tap by tap."""
        windows = self.strides, self.dilation, self.padding
        out = transposed(src, weights, *windows, self.outputs[0].dims[2:], self.grouped)
        over = (-1, *(1 for _ in self.strides))
        if scale is not None:
            out *= scale.reshape(over)
        return out if bias is None else out + bias.reshape(over)

    @property
    def flops(self) -> int:
        """Two for each product; what falls outside of the result counts."""
        weights = self.inputs[1].dims[1:] if self.grouped else self.inputs[1].dims
        return 2 * prod(self.inputs[0].dims) * weights[0] * prod(weights[2:])


@dataclass(frozen=True, kw_only=True)
class InnerProduct(Requantised):
    """``dst[n, o] = bias[o] + scale[o] * sum over c, y, x of src[n, c, y, x] * weights[o, c, y, x]``.

    Zero points are those of :class:`Convolution`.
    """

    kind = "inner product"

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
        """The product of two matrices."""
        src, weights = centred(src, src_zero_point), centred(weights, weights_zero_point, weights.shape[:1])
        inputs = prod(src.shape[1:])
        return _sums(src.reshape(len(src), inputs) @ weights.reshape(len(weights), inputs).T, bias, scale)

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.inputs[0].dims[0] * prod(self.inputs[1].dims)


@dataclass(frozen=True, kw_only=True)
class Matmul(Requantised):
    """``dst[b, m, n] = bias[n] + scale[n] * sum over k of src[b, m, k] * weights[b, k, n]``.

    Zero points are those of :class:`Convolution`; those of the weights belong to columns.
    """

    kind = "matrix product"

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
        """NumPy's product."""
        src, weights = centred(src, src_zero_point), centred(weights, weights_zero_point)
        return _sums(src @ weights, bias, scale)

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * prod(self.inputs[0].dims) * self.inputs[1].dims[-1]


def centred(stored: Reals, zero_point: Reals | None, outer: tuple[int, ...] | None = None) -> Reals:
    """Integers less their zero point, one for all or one for each index of the ``outer`` axes.

    Without outer axes, zero points belong to the last one.
    """
    if zero_point is None:
        return stored
    if outer is None or zero_point.size == 1:
        return stored - zero_point
    return stored - zero_point.reshape(outer + (1,) * (stored.ndim - len(outer)))


def _sums(out: Reals, bias: Reals | None, scale: Reals | None) -> Reals:
    """What becomes of sums, whose last axis is that of the output channels."""
    if scale is not None:
        out = out * scale
    return out if bias is None else out + bias


def definition(
    src: Reals,
    weights: Reals,
    bias: Reals | None,
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]],
    grouped: bool = False,
    scale: Reals | None = None,
) -> Reals:
    """The convolution of logical arrays, tap by tap."""
    if not grouped:
        weights = weights[None]
    groups, outputs, inputs, *kernel = weights.shape
    padded = np.pad(src, [(0, 0), (0, 0), *padding])
    sizes = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(padded.shape[2:], kernel, dilation, strides, strict=True)
    ]
    sizes = [max(0, size) for size in sizes]
    padded = padded.reshape(src.shape[0], groups, inputs, *padded.shape[2:])
    out = np.zeros((src.shape[0], groups, outputs, *sizes))
    for taps in product(*map(range, kernel)) if out.size else ():
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(taps, dilation, sizes, strides, strict=True)
        )
        inside: Any = (..., *window)
        tap: Any = (..., *taps)
        out += np.einsum("ngi...,goi->ngo...", padded[inside], weights[tap])
    out = out.reshape(src.shape[0], groups * outputs, *sizes)
    over = (-1, *(1 for _ in sizes))
    if scale is not None:
        out *= scale.reshape(over)
    if bias is not None:
        out += bias.reshape(over)
    return out


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
    for taps in product(*map(range, kernel)) if out.size and src.size else ():
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(taps, dilation, counts, strides, strict=True)
        )
        inside: Any = (..., *window)
        tap: Any = (..., *taps)
        out[inside] += np.einsum("ngi...,goi->ngo...", src, weights[tap])
    within: Any = (
        ...,
        *(slice(front, front + size) for size, (front, _) in zip(sizes, padding, strict=True)),
    )
    made: Reals = out[within].reshape(src.shape[0], groups * outputs, *sizes)
    return made
