"""Convolutions: the gradient by the data goes the other way, that by the weights is a product over pixels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from relayout.graph.gradients.reverse import Reverse, gradient
from relayout.graph.operators.convolution import transposed_windows

__all__ = ["transposed"]

SHARED = ("auto_pad", "dilations", "group", "pads", "strides")
"""Attributes that a convolution and its gradients have."""


@gradient("Conv")
def conv(r: Reverse) -> Sequence[str | None]:
    """By data, weights and bias."""
    x, w = r.inputs[:2]
    same = {name: r.attributes[name] for name in SHARED}
    first = second = None
    if r.wants(0):
        first = r("relayout.ConvGradInput", r.dy, w, dims=r.dims(x), **same)
    if r.wants(1):
        second = r("relayout.ConvGradWeights", r.dy, x, dims=r.dims(w), **same)
    return (first, second, _bias(r))[: len(r.inputs)]


@gradient("ConvTranspose")
def conv_transpose(r: Reverse) -> Sequence[str | None]:
    """A transposed convolution is the gradient of one, whose gradients are convolutions of ``dy``."""
    x, w = r.inputs[:2]
    same = transposed(r, r.dims(x), r.dims(w))
    first = second = None
    if r.wants(0):
        first = r("Conv", r.dy, w, **same)
    if r.wants(1):
        second = r("relayout.ConvGradWeights", x, r.dy, dims=r.dims(w), **same)
    return (first, second, _bias(r))[: len(r.inputs)]


def _bias(r: Reverse) -> str | None:
    """The sums over all but the channels."""
    return r.sum(r.dy, [k for k in range(len(r.dims(r.dy))) if k != 1]) if r.wants(2) else None


@gradient("Col2Im")
def columns_to_image(r: Reverse) -> Sequence[str | None]:
    """The columns of the gradient: what each tap of each window stood on, zeros in the padding."""
    a, sizes, kernel = r.attributes, r.dims(r.y)[2:], [int(n) for n in r.data(2).reshape(-1)]
    rank = len(sizes)
    strides, dilations = (tuple(a[name] or (1,) * rank) for name in ("strides", "dilations"))
    pads = tuple(a["pads"] or (0,) * (2 * rank))
    padded = [n + pads[k] + pads[k + rank] for k, n in enumerate(sizes)]
    along = [
        np.arange(k) * d + (np.arange((n - (k - 1) * d - 1) // s + 1) * s)[:, None]
        for n, k, d, s in zip(padded, kernel, dilations, strides, strict=True)
    ]
    at: Any = 0
    for axis, places in enumerate(along):  # taps of all axes in front, windows of all behind
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = places.shape[1], places.shape[0]
        at = at * padded[axis] + places.T.reshape(shape)
    images, channels = r.dims(r.y)[:2]
    dy = r.dy
    if any(pads):
        dy = r("Pad", dy, r.integers(0, 0, *pads[:rank], 0, 0, *pads[rank:]))
    flat = r.reshaped(dy, (images, channels, prod(padded)))
    index = r.writing.constant(np.ascontiguousarray(at, np.int64).reshape(-1))
    return [r.reshaped(str(r("Gather", flat, index, axis=2)), r.dims(r.x)), None, None]


def transposed(r: Reverse, x: tuple[int, ...], w: tuple[int, ...]) -> dict[str, Any]:
    """The attributes of the convolution that a transposed one is the gradient of, by its data."""
    a, spatial = r.attributes, len(x) - 2
    strides, dilations = (tuple(a[name] or (1,) * spatial) for name in ("strides", "dilations"))
    out = r.dims(r.y)[2:]
    whole = [
        (n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x[2:], strides, w[2:], dilations, strict=True)
    ]
    windows = transposed_windows(
        x[2:],
        w[2:],
        strides,
        dilations,
        a["pads"],
        a["auto_pad"] or "NOTSET",
        a["output_padding"],
        a["output_shape"],
    )
    begin = windows.begin
    end = [max(0, n - m - b) for n, m, b in zip(whole, out, begin, strict=True)]
    return {
        "strides": strides,
        "dilations": dilations,
        "group": a["group"],
        "pads": (*begin, *end),
        "auto_pad": "NOTSET",
    }
