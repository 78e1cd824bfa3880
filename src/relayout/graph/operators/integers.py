"""Sums of products of 8-bit integers, and averages of them, with what becomes of them in one step.

These are no operators of ONNX: passes make them of what stands between a DequantizeLinear and a
QuantizeLinear (:mod:`relayout.graph.passes.integers`), for kernels::

    sums      of products of (x - zero_point) and (w - w_zero_point), exact
    v         sums * scale + bias                                    in f32, scale and bias in steps of y
    v         (round(v) within inner) * f0 + f1 + added) * f2        with a residual: f0, f1, f2 are factors
    v         round(v) + offset                                      with an offset, the zero point of y
    y         v within low and high, rounded half to even, saturated to the data type ``to``

Scale and bias are divided by the scale of y, where y is quantised. Its zero point is a part of the bias, or
of f1, if it is even. An odd one is an offset: ties go to the even number, which is another one once an odd
number is added.
A residual is added in its own steps, which the factors say: what was rounded before is rounded here, too.
Instead of the attribute, the zero point of x may be the last input, an s32 that is found in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from relayout.graph.operators.convolution import channelwise, infer_conv, integer_convolution
from relayout.graph.operators.pooling import average_pool, global_average_pool, infer_pool
from relayout.graph.operators.products import product_dims
from relayout.graph.operators.quantization import saturated
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import is_integer, numpy_type

__all__ = ["AVERAGE", "CONV", "MATMUL"]

CONV = "relayout.IntegerConv"
MATMUL = "relayout.IntegerMatMul"
AVERAGE = "relayout.IntegerAverage"


def _finished(
    v: Array,
    added: Array | None,
    factors: Array | None,
    to: int,
    low: float,
    high: float,
    inner: Sequence[float] | None,
    offset: int,
) -> Array:
    """Scaled sums as they are stored."""
    if added is not None and factors is not None:
        if inner is not None:
            v = np.clip(np.rint(v), inner[0], inner[1])
        v = (v * factors[0] + factors[1] + added.astype(np.float32)) * factors[2]
    if offset:
        v = np.rint(v) + np.float32(offset)
    v = np.clip(v, np.float32(low), np.float32(high))
    dtype = numpy_type(to)
    return saturated(np.rint(v), dtype) if is_integer(dtype) else v.astype(dtype)


def _infer_conv(x: Fact, w: Fact, *_: Fact | None, to: int = 1, **attributes: Any) -> Fact:
    return Fact(infer_conv(x, w, **attributes).dims, numpy_type(to))


@operator(CONV, infer=_infer_conv, like="Conv")
def integer_conv(
    x: Array,
    w: Array,
    scale: Array,
    bias: Array | None = None,
    added: Array | None = None,
    factors: Array | None = None,
    w_zero_point: Array | None = None,
    x_zero_point: Array | None = None,
    /,
    *,
    zero_point: int = 0,
    to: int = 1,
    low: float = -inf,
    high: float = inf,
    inner: Sequence[float] | None = None,
    offset: int = 0,
    **windows: Any,
) -> Array:
    """A convolution; its padding is the zero point."""
    zero = np.array(zero_point if x_zero_point is None else x_zero_point.reshape(()), x.dtype)
    sums = integer_convolution(x, w, zero, w_zero_point, **windows)
    v = sums.astype(np.float32) * _per_channel(scale, sums.ndim)
    if bias is not None:
        v = v + _per_channel(bias, sums.ndim)
    return _finished(v, added, factors, to, low, high, inner, offset)


def _per_channel(x: Array, rank: int) -> Array:
    return x.reshape(()) if x.size == 1 else channelwise(x, rank)


def _infer_matmul(x: Fact, w: Fact, *_: Fact | None, to: int = 1, **__: Any) -> Fact:
    return Fact(product_dims(x, w), numpy_type(to))


@operator(MATMUL, infer=_infer_matmul)
def integer_matmul(
    x: Array,
    w: Array,
    scale: Array,
    bias: Array | None = None,
    added: Array | None = None,
    factors: Array | None = None,
    w_zero_point: Array | None = None,
    x_zero_point: Array | None = None,
    /,
    *,
    zero_point: int = 0,
    to: int = 1,
    low: float = -inf,
    high: float = inf,
    inner: Sequence[float] | None = None,
    offset: int = 0,
) -> Array:
    """All rows by one matrix."""
    zero = zero_point if x_zero_point is None else x_zero_point.reshape(())
    filters = w.astype(np.float64) - (0 if w_zero_point is None else w_zero_point)
    sums = np.matmul(x.astype(np.float64) - zero, filters)
    v = sums.astype(np.float32) * scale
    if bias is not None:
        v = v + bias
    return _finished(v, added, factors, to, low, high, inner, offset)


def _infer_average(x: Fact, /, *, to: int, kernel_shape: Any = None, **attributes: Any) -> Fact:
    if kernel_shape is None:
        dims = None if x.dims is None else (*x.dims[:2], *(1 for _ in x.dims[2:]))
    else:
        dims = infer_pool(x, kernel_shape=kernel_shape, **attributes).dims
    return Fact(dims, numpy_type(to))


@operator(AVERAGE, infer=_infer_average, like="AveragePool")
def integer_average(
    x: Array,
    /,
    *,
    to: int,
    factor: float = 1.0,
    summand: float = 0.0,
    zero_point: int = 0,
    kernel_shape: Sequence[int] | None = None,
    **windows: Any,
) -> Array:
    """Averages over windows, or whole images without ``kernel_shape``, times a factor, plus a summand.

    They are rounded before the zero point is added: among few bytes, ties are frequent.
    """
    real = x.astype(np.float32)
    if kernel_shape is None:
        made = global_average_pool(real)
    else:
        made = average_pool(real, kernel_shape=kernel_shape, **windows)
    v = np.rint(made * np.float32(factor) + np.float32(summand)) + np.float32(zero_point)
    return _finished(v, None, None, to, -inf, inf, None, 0)
