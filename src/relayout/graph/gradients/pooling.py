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
