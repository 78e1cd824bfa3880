"""Pooling."""

from __future__ import annotations

from math import prod

from relayout.graph.gradients.reverse import Reverse, gradient

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
