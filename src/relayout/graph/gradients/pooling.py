"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from relayout.graph.gradients.reverse import Reverse, gradient
from relayout.graph.operators import OPERATORS

__all__: list[str] = []


@gradient("MaxPool")
def max_pool(r: Reverse) -> str:
    """To the first largest element of each window."""
    return str(r("relayout.MaxPoolGrad", r.dy, r.x, **r.attributes))


@gradient("AveragePool")
def average_pool(r: Reverse) -> str:
    """In equal shares over each window."""
    return str(r("relayout.AveragePoolGrad", r.dy, dims=r.dims(r.x), **r.attributes))


@gradient("GlobalAveragePool")
def global_average_pool(r: Reverse) -> str:
    """In equal shares over each plane."""
    dims = r.dims(r.x)
    return r.broadcast(r.times(r.dy, 1 / max(1, prod(dims[2:]))), r.x)


@gradient("GlobalMaxPool")
def global_max_pool(r: Reverse) -> str:
    """To the first largest element of each plane."""
    return str(r("relayout.MaxPoolGrad", r.dy, r.x, kernel_shape=r.dims(r.x)[2:]))


@gradient("GlobalLpPool")
def global_norm(r: Reverse) -> str:
    """``dy sign(x) (abs(x) / y)^(p - 1)``; 0 where the norm is."""
    zero, p = r.number(0), r.attributes["p"]
    share = r("Where", r("Equal", r.y, zero), zero, r("Div", r("Abs", r.x), r.y))
    power = r("Pow", share, r.number(p - 1)) if p > 1 else r.broadcast(r.number(1), r.x)
    return str(r("Mul", r("Mul", r("Sign", r.x), power), r.dy))


@gradient("LpPool")
def norm_pool(r: Reverse) -> str:
    """``sign(x) abs(x)^(p - 1)`` times the sum of ``dy y^(1 - p)`` over the windows; 0 where a norm is.

    An average hands its gradient out in equal shares: those of as many times the gradient are the sums.
    """
    a = dict(r.attributes)
    p = a.pop("p")
    zero, dims = r.number(0), r.dims(r.x)
    inside = OPERATORS["LpPool"](np.ones((1, 1, *dims[2:]), r.writing.dtype(r.x)), **a, p=1)
    counts = r.writing.constant(inside[0] if isinstance(inside, tuple) else inside)
    power = r("Pow", r("Where", r("Equal", r.y, zero), r.number(1), r.y), r.number(1 - p))
    come = r("Where", r("Equal", r.y, zero), zero, r("Mul", r.dy, power))
    shares = r("relayout.AveragePoolGrad", r("Mul", come, counts), dims=dims, **a)
    near = r("Pow", r("Abs", r.x), r.number(p - 1)) if p > 1 else r.broadcast(r.number(1), r.x)
    return str(r("Mul", r("Mul", r("Sign", r.x), near), shares))


@gradient("MaxUnpool")
def max_unpool(r: Reverse) -> Sequence[str | None]:
    """What stands where maxima were put; a larger result is cut to what indices count in first."""
    x, places = r.inputs[:2]
    a = r.attributes
    define = OPERATORS["MaxUnpool"]
    size = np.zeros((1, 1, *r.dims(x)[2:]), np.float32)
    found = define(size, np.zeros(size.shape, np.int64), **a)
    inner = (found[0] if isinstance(found, tuple) else found).shape[2:]
    dy, dims = r.dy, r.dims(r.dy)
    if inner != dims[2:]:
        axes = range(2, len(dims))
        dy = r("Slice", dy, r.integers(*(0 for _ in axes)), r.integers(*inner), r.integers(*axes))
    flat = r.reshaped(dy, (prod((*dims[:2], *inner)),))
    return [str(r("Gather", flat, places)), None]
