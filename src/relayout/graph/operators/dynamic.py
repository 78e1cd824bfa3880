"""DynamicQuantizeLinear in three steps, one kernel each, once smallest and largest number are known.

::

    x -> ReduceMin, ReduceMax -> relayout.RangeScale -> relayout.RangeZero -> relayout.RangeBytes
"""

from __future__ import annotations

import numpy as np

from relayout.graph.operators.registry import Array, Fact, operator

__all__ = ["BYTES", "SCALE", "ZERO"]

SCALE, ZERO, BYTES = "relayout.RangeScale", "relayout.RangeZero", "relayout.RangeBytes"
LEVELS = np.float32(255)


def _infer_scale(low: Fact, high: Fact, /) -> Fact:
    return Fact(low.dims, np.dtype(np.float32))


@operator(SCALE, infer=_infer_scale)
def range_scale(low: Array, high: Array, /) -> Array:
    """The length of a step such that 255 of them span all numbers, and 0."""
    span = np.maximum(high, np.float32(0)) - np.minimum(low, np.float32(0))
    return np.asarray(np.where(span > 0, span, np.float32(1)) / LEVELS)


def _infer_bytes(x: Fact, *_: Fact) -> Fact:
    return Fact(x.dims, np.dtype(np.uint8))


@operator(ZERO, infer=_infer_bytes)
def range_zero(low: Array, scale: Array, /) -> Array:
    """The byte that stands for 0."""
    places = np.clip(-np.minimum(low, np.float32(0)) / scale, 0, LEVELS)
    return np.asarray(np.rint(places).astype(np.uint8))


@operator(BYTES, infer=_infer_bytes)
def range_bytes(x: Array, scale: Array, zero: Array, /) -> Array:
    """Numbers as bytes."""
    whole = np.rint(x / scale) + zero.astype(np.float32)
    return np.asarray(np.clip(whole, 0, LEVELS).astype(np.uint8))
