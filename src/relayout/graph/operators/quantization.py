"""Quantisation: integers and small floating point with a scale and a zero point.

A scale is of the whole tensor, or one for each index of an axis, or one for each block along an axis; the
zero point has its dims. ``y = saturate(round(x / scale) + zero point)``, rounded to the nearest even,
and back ``x = (y - zero point) * scale``.

Small floating point has its own rounding, which is a conversion's, and saturates at its largest number unless
the attribute ``saturate`` is 0.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.convolution import channelwise, infer_conv, integer_convolution
from relayout.graph.operators.registry import Array, Fact, broadcast, operator
from relayout.graph.operators.types import is_float, is_integer, narrow, numpy_type, wide

__all__ = ["saturated"]


def saturated(x: Array, dtype: np.dtype[Any], saturate: bool = True) -> Array:
    """Floating point, integers among it already rounded, in a quantised data type.

    >>> saturated(np.float32([-1, 0.4, 300]), np.dtype(np.uint8))
    array([  0,   0, 255], dtype=uint8)
    """
    if is_integer(dtype):
        limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        kept = np.nan_to_num(np.clip(x, limits.min, limits.max), nan=0.0)
        return np.asarray(kept).astype(np.int64).astype(dtype)
    if saturate:
        largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        x = np.clip(x, -largest, largest)
    return x.astype(dtype)


def granular(scale: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """A scale or zero point as it is broadcast to a tensor."""
    if scale.size == 1 and not block_size:
        return scale.reshape(())
    rank = len(shape)
    if not -rank <= axis < rank:
        raise LayoutError(f"axis {axis} is outside of {-rank} to {rank - 1}")
    axis %= rank
    if not block_size:
        if scale.ndim != 1 or scale.size != shape[axis]:
            raise LayoutError(f"a scale of {scale.shape} for {shape[axis]} indices of axis {axis}")
        return scale.reshape(-1, *(1,) * (rank - axis - 1))
    blocks = -(-shape[axis] // block_size)
    if block_size < 0 or scale.shape != (*shape[:axis], blocks, *shape[axis + 1 :]):
        raise LayoutError(f"a scale of {scale.shape} for blocks of {block_size} along axis {axis} of {shape}")
    return np.repeat(scale, block_size, axis=axis)[(slice(None),) * axis + (slice(shape[axis]),)]


def _quantised(zero: Any, output_dtype: int) -> np.dtype[Any]:
    """The data type of a quantised result."""
    if zero is not None and zero.dtype is not None:
        if output_dtype and numpy_type(output_dtype) != zero.dtype:
            raise LayoutError(f"output_dtype {numpy_type(output_dtype)}, but a zero point of {zero.dtype}")
        found: np.dtype[Any] = zero.dtype
        return found
    return numpy_type(output_dtype) if output_dtype else np.dtype(np.uint8)


def _infer_quantize(
    x: Fact, scale: Fact, zero: Fact | None = None, /, *, output_dtype: int = 0, **_: object
) -> Fact:
    unknown = zero is not None and zero.dtype is None and not output_dtype
    return Fact(x.dims, None if unknown else _quantised(zero, output_dtype))


@operator("QuantizeLinear", infer=_infer_quantize)
def quantize_linear(
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    /,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    """Numbers by their scale, rounded, plus the zero point."""
    dtype = _quantised(y_zero_point, output_dtype)
    if precision:
        kind = numpy_type(precision)
    else:  # a scale that is a mere exponent has no precision of its own
        kind = y_scale.dtype if y_scale.dtype.itemsize > 1 else wide(x).dtype
    if not is_float(kind):
        kind = np.dtype(np.float64)
    scale = granular(y_scale, x.shape, axis, block_size)
    made = wide(narrow(wide(x.astype(kind)) / wide(scale.astype(kind)), kind))
    if is_integer(dtype):
        made = np.rint(made)
    if y_zero_point is not None:
        made = made + wide(granular(y_zero_point, x.shape, axis, block_size)).astype(made.dtype)
    return saturated(made, dtype, bool(saturate))


def _infer_dequantize(
    x: Fact, scale: Fact, zero: Fact | None = None, /, *, output_dtype: int = 0, **_: object
) -> Fact:
    return Fact(x.dims, numpy_type(output_dtype) if output_dtype else scale.dtype)


@operator("DequantizeLinear", infer=_infer_dequantize)
def dequantize_linear(
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    /,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    """Quantised numbers less the zero point, times their scale."""
    dtype = numpy_type(output_dtype) if output_dtype else x_scale.dtype
    kind = np.float64 if dtype == np.float64 else np.float32
    shifted = x.astype(np.int64) if is_integer(x.dtype) else x.astype(kind)
    if x_zero_point is not None:
        shifted = shifted - granular(x_zero_point, x.shape, axis, block_size).astype(shifted.dtype)
    scale = granular(x_scale, x.shape, axis, block_size).astype(kind)
    return narrow(shifted.astype(kind) * scale, dtype)


def _infer_dynamic(x: Fact, /) -> tuple[Fact, Fact, Fact]:
    byte = np.dtype(np.uint8)
    return Fact(x.dims, byte), Fact((), np.dtype(np.float32)), Fact((), byte)


@operator("DynamicQuantizeLinear", infer=_infer_dynamic)
def dynamic_quantize_linear(x: Array, /) -> tuple[Array, Array, Array]:
    """Bytes whose scale and zero point span the numbers that there are, and 0."""
    least = np.minimum(np.min(x, initial=0), 0).astype(np.float32)
    most = np.maximum(np.max(x, initial=0), 0).astype(np.float32)
    scale = (most - least) / np.float32(255) if most > least else np.float32(1 / 255)
    zero = np.rint(np.clip(-least / scale, 0, 255))
    made = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return made, np.asarray(scale, np.float32), np.asarray(zero, np.uint8)


def _requantised(sums: Array, factor: Array, zero: Array) -> Array:
    """Exact sums in the scale of the result."""
    made = sums * factor
    if is_integer(zero.dtype):
        made = np.rint(made)
    return saturated(made + wide(zero).astype(np.float64), zero.dtype)


def _infer_qlinear_conv(*facts: Fact, **attributes: Any) -> Fact:
    return Fact(infer_conv(facts[0], facts[3], **attributes).dims, facts[7].dtype)


@operator("QLinearConv", infer=_infer_qlinear_conv, like="Conv")
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
    /,
    **windows: Any,
) -> Array:
    """Convolution of quantised numbers into quantised numbers; weights may have a scale for each channel."""
    sums = integer_convolution(x, w, x_zero_point, w_zero_point, **windows)
    if b is not None:
        sums += channelwise(b, sums.ndim)
    scale = w_scale.astype(np.float64)
    if scale.size > 1:
        if scale.shape != w.shape[:1]:
            raise LayoutError(f"scales of {scale.shape} for {w.shape[0]} output channels")
        scale = channelwise(scale, sums.ndim)
    return _requantised(sums, _one(x_scale) * scale / _one(y_scale), y_zero_point)


def _one(x: Array) -> Array:
    """A number given as a scalar or as a vector of one, as a double."""
    return x.astype(np.float64).reshape(()) if x.size == 1 else x.astype(np.float64)


def _infer_qlinear_matmul(*facts: Fact) -> Fact:
    a, b = facts[0].dims, facts[3].dims
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return Fact(None, facts[7].dtype)
    lead = broadcast(Fact(a[:-2]), Fact(b[:-2])) or ()
    return Fact((*lead, a[-2], b[-1]), facts[7].dtype)


@operator("QLinearMatMul", infer=_infer_qlinear_matmul)
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    /,
) -> Array:
    """Matrix product of quantised numbers; rows of the left and columns of the right may have scales."""
    left = a.astype(np.float64) - _rows(a_zero_point)
    right = b.astype(np.float64) - _one(b_zero_point)
    return _requantised(left @ right, _rows(a_scale) * _one(b_scale) / _rows(y_scale), y_zero_point)


def _rows(x: Array) -> Array:
    """Numbers of rows: a vector as a column."""
    x = _one(x)
    return x[:, None] if x.ndim == 1 else x
