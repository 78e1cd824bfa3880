"""Values from one data type to another: exact rules, and their definition in NumPy.

A conversion must give the same bits on every machine and in every engine, or a test that compares two engines
means nothing. So every case is defined here, also the ones that C, LLVM and oneDNN leave undefined. What is
written below is the definition; a faster engine repeats it bit for bit.

The rules of :func:`convert`
============================

1. **One rounding, to nearest, ties to even**, from the exact value of the source to the destination, whatever
   the two types are. Subnormal numbers count as any others, and the sign of zero is kept between
   floating-point types.
2. **Integers saturate.** What is below the range becomes the smallest integer and what is above it the
   largest, both infinities included. NaN becomes 0.

   One exception: f32, f16, bf16 and f8 saturate to s32 at 2147483520 above, because oneDNN computes in f32
   and 2147483520 is the largest f32 below 2**31. From f64 the bound is 2147483647.
3. **Floating point overflows as the destination does**: to infinity in f64, f32, f16, bf16 and f8_e5m2.
   f8_e4m3 has no infinity: what would round beyond 448 (anything above 464), and infinity itself, becomes
   NaN.
4. **NaN stays NaN**: quiet, with the sign and the leading bits of the payload kept, as conversion
   instructions do. f8_e4m3 has one NaN of each sign and no payload. From bf16 to f32 sixteen zero bits are
   appended to *any* pattern, so there a signalling NaN stays one. A conversion to the same type copies bits.

===========  ==========  ==========  ===========  ==========  ========
value        s8          u8          s32          f8_e4m3     f16
===========  ==========  ==========  ===========  ==========  ========
2.5f         2           2           2            2.5         2.5
-0.5f        0           0           0            -0.5        -0.5
464.0f       127         255         464          448         464
1e10f        127         255         2147483520   nan         inf
-inf         -128        0           -2147483648  nan         -inf
nan          0           0           0            nan         nan
===========  ==========  ==========  ===========  ==========  ========

Where oneDNN differs
====================

The rules are those of oneDNN's reorder, but for five departures, found by calling oneDNN 3.13.2 on x86-64.
Most are matters in which kernels and versions of oneDNN differ among themselves:

* f32 to f8: oneDNN 3.13 rounds twice, first to f16 (0.00097656262 becomes 0 and not 2**-9). Here, and in the
  sources of later versions, once.
* s32 to bf16: oneDNN rounds twice, first to f32 (2**24 + 2**16 + 1 becomes 2**24). Here once.
* f32 to bf16: processors with the bf16 instruction flush subnormal numbers to zero. Here they are rounded.
* -0.0 to f16 and f8: oneDNN's reference kernel adds a zero point of 0 and loses the sign. Here it is kept.
* NaN to integers: oneDNN gives the smallest or the largest integer, depending on kernel and version. Here 0.

The arithmetic of :func:`rescale`
=================================

oneDNN's reorder attributes in its order of evaluation, and a shift, which oneDNN does not have::

    dst = saturate(round((src_scale * (src - src_zero_point) - src_shift + beta * old) / dst_scale
                         + dst_zero_point))

In full, where every line is one operation of the *arithmetic type*, rounded to nearest even by itself (no
fused multiply-add, no reciprocal in place of the division), and every operand is first converted to that
type::

    v = src                      by the rules above
    v = v - src_zero_point       where there is a source zero point
    v = src_scale * v            where there is a source scale
    v = v - src_shift            where there is a shift
    v = v + beta * old           where beta is not 0: two operations; otherwise old is not read
    v = v / dst_scale            where there is a destination scale
    v = v + dst_zero_point       where there is a destination zero point
    dst = v                      by the rules above

A step whose attribute is absent or neutral throughout (all scales 1, all zero points and shifts 0) is left
out. Hence attributes that do nothing change no bit, and with none at all :func:`rescale` is :func:`convert`,
without a detour over the arithmetic type.

========================================================  ===============  ===============
what takes part                                           scales and beta  arithmetic type
========================================================  ===============  ===============
a shift; f64 or s64, as source or destination             f64              f64
else s32 is *read*: as source, or as old (beta is not 0)  f32              f64
all others                                                f32              f32
========================================================  ===============  ===============

The third line follows oneDNN, whose kernels round each step by themselves, too; only that those which it
generates multiply by the reciprocal of the destination scale, where its reference kernel and this definition
divide. That changes the last bit of some floating-point results, and integers next to a tie.

The second line is a departure: oneDNN computes in f32 there too, which holds integers only up to 2**24, so
that subtracting a zero point from an s32, or adding into one, would change its value. In f64 every s32 enters
the arithmetic as it is. Scales stay what they are in oneDNN, f32 numbers, so that results differ by rounding
only; and an s32 result saturates at 2147483647, being computed in f64.

In the first line, s64 beyond 2**53 is rounded to f64. Neutral attributes, being left out, do not round it.

A shift is a real number, so that the mean of pictures can be subtracted as it is:
``(x / 255 - mean) / std`` is ``src_scale=1 / 255, src_shift=mean, dst_scale=std``.
In f32 what is left next to the mean would be mostly the rounding errors of the steps before: 124 / 255 -
0.485 is 0.00127, with an error of up to 2**-25, which is 256 units in its last place. So everything is done
in f64 where there is a shift, scales included, and the one rounding that counts is that to the destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relayout.dtypes import DType, DTypeLike, dtype
from relayout.errors import LayoutError

__all__ = ["arithmetic_types", "convert", "is_neutral", "rescale", "saturation_bounds"]

Array = NDArray[Any]

BLOCK: Final = (
    1 << 15
)  # elements converted at a time: temporaries stay in the cache, whatever the size of the array

F64, F32, F16, BF16, E4M3, E5M2 = map(dtype, ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"))
S64, S32 = dtype("s64"), dtype("s32")
LARGEST_F32_BELOW_2_31: Final = 2**31 - 2**7
MANTISSA_BITS: Final = {F64: 52, F32: 23, F16: 10, BF16: 7, E4M3: 3, E5M2: 2}


def convert(values: ArrayLike, to: DTypeLike, *, out: Array | None = None) -> Array:
    """Return the values in another data type: rounded once, saturated, never undefined.

    Parameters
    ----------
    values : array_like
        Values of any shape; the NumPy (or ml_dtypes) data type of the array says what they are.
    to : DTypeLike
        The data type of the result.
    out : ndarray, optional
        Where to write: an array of the same shape and of ``to.numpy``, with any strides. It may overlap
        ``values``.

    Returns
    -------
    ndarray
        ``out``, or a new array of ``to.numpy`` in row-major order.

    Raises
    ------
    LayoutError
        The array's data type is none of ours, or ``out`` does not fit.

    Notes
    -----
    The module's documentation has the rules. No warnings are given for overflow and NaN. Large arrays are
    converted in blocks, so that temporaries take kilobytes. NumPy computes in the floating-point state of the
    calling thread; reorders set the usual one, in which the rules hold (:mod:`relayout.jit.floating`).

    Examples
    --------
    >>> convert(np.array([0.5, 1.5, -1.0, 300.0, np.nan]), "u8")
    array([  0,   2,   0, 255,   0], dtype=uint8)
    >>> convert(np.array([3e9], np.float32), "s32"), convert(np.array([3e9]), "s32")
    (array([2147483520], dtype=int32), array([2147483647], dtype=int32))
    >>> convert(np.array([448, 464, 465, -np.inf]), "f8_e4m3")
    array([448, 448, nan, nan], dtype=...)
    """
    array = np.asarray(values)
    src, dst = dtype(array.dtype), dtype(to)
    result = _destination(array.shape, dst, out)
    source, target = np.atleast_1d(_apart(array, out)), np.atleast_1d(result)
    with np.errstate(all="ignore"):
        for block in _blocks(target.shape):
            target[block] = _converted(source[block], src, dst)
    return result


def rescale(
    src_values: ArrayLike,
    src_dtype: DTypeLike,
    dst_dtype: DTypeLike,
    *,
    src_scale: ArrayLike | None = None,
    dst_scale: ArrayLike | None = None,
    src_zero_point: ArrayLike | None = None,
    dst_zero_point: ArrayLike | None = None,
    src_shift: ArrayLike | None = None,
    beta: float = 0.0,
    old: Array | None = None,
    out: Array | None = None,
    keep_neutral: bool = False,
) -> Array:
    """Convert values with the arithmetic of oneDNN's reorder attributes, and a shift.

    ``(src_scale * (src - src_zero_point) - src_shift + beta * old) / dst_scale + dst_zero_point``, rounded
    and saturated. The module's documentation fixes the precision and the order of the steps.

    Parameters
    ----------
    src_values : array_like
        Source values of any shape, of data type ``src_dtype``.
    src_dtype, dst_dtype : DTypeLike
        Data types of the source and of the result.
    src_scale, dst_scale : array_like, optional
        Numbers that broadcast against the values. The source is multiplied by its scale, the result divided
        by its own.
    src_zero_point, dst_zero_point : array_like, optional
        Whole numbers that broadcast against the values: the stored value that stands for zero.
    src_shift : array_like, optional
        Real numbers that broadcast against the values, subtracted after the source's scale; with one, the
        arithmetic is in f64.
    beta : float
        How much of the old destination is added.
    old : ndarray, optional
        The old destination, of ``dst_dtype`` and of the shape of the values; needed (and read) where ``beta``
        is not 0. It may be ``out``.
    out : ndarray, optional
        Where to write, as in :func:`convert`.
    keep_neutral : bool
        Take every step whose attribute is given, neutral or not. For callers that convert a tensor in parts:
        they leave out what is neutral throughout (:func:`is_neutral`), and a part in which the rest happens
        to be neutral must not differ.

    Returns
    -------
    ndarray
        ``out``, or a new array of ``dst_dtype.numpy`` in row-major order.

    Raises
    ------
    LayoutError
        Arrays of other data types or shapes than announced, attributes that do not broadcast, zero points
        that are not whole numbers, ``beta`` without ``old``.

    Notes
    -----
    oneDNN allows zero points on the side of integers only. Here all types may have them.

    Examples
    --------
    Quantise real numbers to u8, where 128 stands for zero and one step is 0.5, and back:

    >>> q = rescale(np.array([0.25, 1.0, -3.0], np.float32), "f32", "u8", dst_scale=0.5, dst_zero_point=128)
    >>> q
    array([128, 130, 122], dtype=uint8)
    >>> rescale(q, "u8", "f32", src_scale=0.5, src_zero_point=128)
    array([ 0.,  1., -3.], dtype=float32)

    Subtract the mean of pictures and divide by their deviation, rounding once:

    >>> red = np.array([0, 124, 255], np.uint8)
    >>> rescale(red, "u8", "f32", src_scale=1 / 255, src_shift=0.485, dst_scale=0.229)
    array([-2.117904  ,  0.00556555,  2.2489083 ], dtype=float32)

    Add to what is there, saturating:

    >>> rescale(np.array([100], np.int8), "s8", "s8", beta=1, old=np.array([100], np.int8))
    array([127], dtype=int8)
    """
    src, dst = dtype(src_dtype), dtype(dst_dtype)
    array = np.asarray(src_values)
    _check_type(array, src, "the source")
    shape = array.shape
    shift = _shift(src_shift, shape, keep_neutral)
    arithmetic, scales = arithmetic_types(src, dst, accumulate=beta != 0, shifted=shift is not None)
    steps: list[Step] = [
        (np.subtract, _zero_point(src_zero_point, arithmetic, shape, "src_zero_point", keep_neutral)),
        (np.multiply, _scale(src_scale, scales, arithmetic, shape, "src_scale", keep_neutral)),
        (np.subtract, shift),
        (np.divide, _scale(dst_scale, scales, arithmetic, shape, "dst_scale", keep_neutral)),
        (np.add, _zero_point(dst_zero_point, arithmetic, shape, "dst_zero_point", keep_neutral)),
    ]
    if beta == 0 and all(operand is None for _, operand in steps):
        return convert(array, dst, out=out)
    before, after = steps[:3], steps[3:]

    result = _destination(shape, dst, out)
    source, target = np.atleast_1d(_apart(array, out)), np.atleast_1d(result)
    if beta != 0:
        earlier = np.atleast_1d(_old(old, out, dst, shape, beta))
        factor = convert(convert(np.float64(beta), scales), arithmetic)
    with np.errstate(all="ignore"):
        for block in _blocks(target.shape):
            v = _converted(source[block], src, arithmetic)
            v = _applied(v, before, block)
            if beta != 0:
                v = v + factor * _converted(earlier[block], dst, arithmetic)
            v = _applied(v, after, block)
            target[block] = _converted(v, arithmetic, dst)
    return result


def arithmetic_types(
    src: DType, dst: DType, *, accumulate: bool = False, shifted: bool = False
) -> tuple[DType, DType]:
    """Return the arithmetic type of :func:`rescale`, and the type to which scales are rounded first.

    ``accumulate`` says that ``beta``, which counts as a scale, is not 0, so that the old destination is read;
    ``shifted`` that there is a shift other than 0.

    >>> arithmetic_types(dtype("s8"), dtype("s32"))
    (DType('f32'), DType('f32'))
    >>> arithmetic_types(dtype("s8"), dtype("s32"), accumulate=True)
    (DType('f64'), DType('f32'))
    >>> arithmetic_types(dtype("u8"), dtype("f32"), shifted=True)
    (DType('f64'), DType('f64'))
    """
    if shifted or {src, dst} & {F64, S64}:
        return F64, F64
    return (F64 if src is S32 or (accumulate and dst is S32) else F32), F32


def is_neutral(
    attribute: ArrayLike,
    neutral: int,
    src: DType,
    dst: DType,
    *,
    accumulate: bool = False,
    shifted: bool = False,
) -> bool:
    """Whether a scale (``neutral`` 1) or zero point (0) does nothing, in the precision that it is kept in.

    >>> is_neutral([1, 1 + 1e-12], 1, dtype("f32"), dtype("s8"))
    True
    >>> is_neutral([0, 3], 0, dtype("f32"), dtype("s8"))
    False
    """
    arithmetic, scales = arithmetic_types(src, dst, accumulate=accumulate, shifted=shifted)
    return bool((convert(attribute, scales if neutral else arithmetic) == neutral).all())


def saturation_bounds(src: DType, dst: DType) -> tuple[int, int]:
    """Return the smallest and the largest value that conversion from ``src`` to the integer ``dst`` gives.

    >>> saturation_bounds(dtype("f64"), dtype("s32"))
    (-2147483648, 2147483647)
    >>> saturation_bounds(dtype("bf16"), dtype("s32"))
    (-2147483648, 2147483520)
    >>> saturation_bounds(dtype("u8"), dtype("s8"))
    (0, 127)
    """
    low, high = int(dst.min), int(dst.max)
    if not src.is_float:
        return max(low, int(src.min)), min(high, int(src.max))
    if dst is S32 and src is not F64:
        high = LARGEST_F32_BELOW_2_31
    return low, high


def _converted(x: Array, src: DType, dst: DType) -> Array:
    if src is dst:
        return x
    if src.is_float:
        return _float_to_float(x, src, dst) if dst.is_float else _float_to_integer(x, src, dst)
    return _integer_to_float(x, src, dst) if dst.is_float else _integer_to_integer(x, src, dst)


def _integer_to_integer(x: Array, src: DType, dst: DType) -> Array:
    low, high = saturation_bounds(src, dst)
    if src.bits == 4:
        x = x.astype(np.int8)  # ml_dtypes has no cast between its two 4-bit types
    if low > src.min or high < src.max:
        x = np.clip(x, low, high)
    result: Array = x.astype(dst.numpy)
    return result


def _float_to_integer(x: Array, src: DType, dst: DType) -> Array:
    low, high = saturation_bounds(src, dst)
    whole = np.rint(_widened(x, src))
    np.copyto(whole, 0, where=np.isnan(whole))
    if dst is S64:
        # 2**63 - 1 is no floating-point number: cast what fits, and set what does not
        above = whole >= 2.0**63
        np.copyto(whole, 0, where=above)
        result = np.maximum(whole, low).astype(np.int64)
        np.copyto(result, high, where=above)
        return result
    np.clip(whole, low, high, out=whole)
    carrier = np.dtype(np.int8) if dst.bits == 4 else dst.numpy
    return whole.astype(carrier).astype(dst.numpy, copy=False)


def _integer_to_float(x: Array, src: DType, dst: DType) -> Array:
    if src.bits <= 16:
        return _float_to_float(x.astype(np.float32), F32, dst)
    if src is S64 and dst is not F64:
        x = _shortened(x)
    return _float_to_float(x.astype(np.float64), F64, dst)


def _float_to_float(x: Array, src: DType, dst: DType) -> Array:
    if src is dst:
        return x
    if src is BF16 and dst is F32:
        return np.left_shift(_bits(x, BF16), 16, dtype=np.uint32).view(np.float32)
    wide = _widened(x, src)
    if dst is F64 or dst is F32:
        result = wide.astype(dst.numpy)
    else:
        # NumPy and ml_dtypes round f32 to the small types once; what they do with f64 differs
        result = (_f32_to_odd(wide) if src is F64 else wide).astype(dst.numpy)
    unordered = np.isnan(wide)
    if unordered.any():
        _bits(result, dst)[unordered] = _quiet_nan(_bits(x, src)[unordered], src, dst)
    return result


def _widened(x: Array, src: DType) -> Array:
    """Return a floating-point array as f64 or f32, in which its values are exact."""
    return x if src is F64 or src is F32 else x.astype(np.float32)


def _f32_to_odd(x: Array) -> Array:
    """Round f64 to f32 so that a second rounding, to a shorter type, gives what one rounding gives.

    That is rounding to odd: what is exact stays, and what is not becomes the odd one of its two neighbours in
    f32. Thus it still shows on which side of a tie the value lay, provided that the shorter type has two bits
    less (Boldo and Melquiond, "When double rounding is odd", 2005).
    """
    nearest = x.astype(np.float32)
    back = nearest.astype(np.float64)
    bits = nearest.view(np.uint32)
    bits -= np.abs(back) > np.abs(x)  # towards zero; the neighbour of infinity is the largest number
    bits |= back != x  # of the two neighbours, the odd one; a NaN stays one
    return nearest


def _shortened(x: Array) -> Array:
    """Round s64 to odd at bit 12 where it has more bits than f64 holds; see :func:`_f32_to_odd`.

    What remains fits in f64, and still has more bits than any shorter floating-point type can use.
    """
    odd = x & ~0xFFF | ((x & 0xFFF) != 0).astype(np.int64) << 12
    return np.where((x > -(2**53)) & (x < 2**53), x, odd)


def _quiet_nan(bits: Array, src: DType, dst: DType) -> Array:
    """Return the bits of the NaNs of ``dst`` that ``bits``, NaNs of ``src``, become."""
    bits = bits.astype(np.uint64)
    negative = bits >> np.uint64(src.bits - 1)
    from_bits, to_bits = MANTISSA_BITS[src], MANTISSA_BITS[dst]
    payload = np.zeros_like(bits) if src is E4M3 else bits & np.uint64((1 << from_bits) - 1)
    payload = payload << np.uint64(52 - from_bits) >> np.uint64(52 - to_bits)
    quiet = (1 << (dst.bits - 1)) - (1 << (to_bits - 1))  # exponent and the leading bit of the mantissa
    if dst is E4M3:
        quiet = 0x7F
    result: Array = negative << np.uint64(dst.bits - 1) | payload | np.uint64(quiet)
    return result.astype(f"u{dst.bits // 8}")


def _bits(x: Array, kind: DType) -> Array:
    return x.view(f"u{kind.bits // 8}")


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice | int, ...]]:
    """Cut an array into pieces of at most ``BLOCK`` elements: the indices of each, in order."""
    if prod(shape) <= BLOCK:
        yield (slice(None),)
        return
    inner = prod(shape[1:])
    if inner <= BLOCK:
        step = BLOCK // inner
        yield from ((slice(start, start + step),) for start in range(0, shape[0], step))
        return
    for i in range(shape[0]):
        yield from ((i, *rest) for rest in _blocks(shape[1:]))


Step: TypeAlias = "tuple[Callable[..., Any], Array | None]"


def _applied(v: Array, steps: list[Step], block: tuple[slice | int, ...]) -> Array:
    for operation, operand in steps:
        if operand is not None:
            v = operation(v, operand if operand.ndim == 0 else operand[block])
    return v


def _scale(
    given: ArrayLike | None, scales: DType, to: DType, shape: tuple[int, ...], what: str, keep_neutral: bool
) -> Array | None:
    if given is None:
        return None
    scale = convert(convert(given, scales), to)
    return None if (scale == 1).all() and not keep_neutral else _broadcast(scale, shape, what)


def _zero_point(
    given: ArrayLike | None, to: DType, shape: tuple[int, ...], what: str, keep_neutral: bool
) -> Array | None:
    if given is None:
        return None
    point = convert(given, F64)
    if not (np.isfinite(point) & (point == np.rint(point))).all():
        raise LayoutError(f"{what} must be a whole number, got {given}")
    point = convert(given, to)
    return None if (point == 0).all() and not keep_neutral else _broadcast(point, shape, what)


def _shift(given: ArrayLike | None, shape: tuple[int, ...], keep_neutral: bool) -> Array | None:
    if given is None:
        return None
    shift = convert(given, F64)
    return None if (shift == 0).all() and not keep_neutral else _broadcast(shift, shape, "src_shift")


def _broadcast(attribute: Array, shape: tuple[int, ...], what: str) -> Array:
    if attribute.ndim == 0:
        return attribute
    try:
        return np.atleast_1d(np.broadcast_to(attribute, shape))
    except ValueError:
        raise LayoutError(
            f"{what} of shape {attribute.shape} does not broadcast to the shape {shape} of the values"
        ) from None


def _old(old: Array | None, out: Array | None, dst: DType, shape: tuple[int, ...], beta: float) -> Array:
    if old is None:
        raise LayoutError(f"beta is {beta}, so that the old destination is needed: pass it as old")
    _check_type(old, dst, "the old destination")
    if old.shape != shape:
        raise LayoutError(f"the old destination has shape {old.shape}, the values have {shape}")
    return old if old is out else _apart(old, out)


def _check_type(array: Array, expected: DType, what: str) -> None:
    if dtype(array.dtype) is not expected:
        raise LayoutError(f"{what} was announced as {expected}, but its array is of {array.dtype}")


def _destination(shape: tuple[int, ...], dst: DType, out: Array | None) -> Array:
    if out is None:
        return np.empty(shape, dst.numpy)
    if out.shape != shape or out.dtype != dst.numpy or not out.flags.writeable:
        state = "" if out.flags.writeable else " and cannot be written"
        wanted = f"out must be a writeable array of {dst.numpy} and shape {shape}"
        raise LayoutError(f"{wanted}, but it is of {out.dtype} and shape {out.shape}{state}")
    return out


def _apart(array: Array, out: Array | None) -> Array:
    """Return the array, or a copy of it where writing ``out`` might change it."""
    return array.copy() if out is not None and np.may_share_memory(array, out) else array
