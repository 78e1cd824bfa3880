"""Casts: values in another data type, or the same bits under another.

From integer to integer the high bits are dropped. What is out of range becomes infinite in floating point,
but for f8, which saturates where that is asked for. Floating point that is out of range of an integer gives
the nearest that there is, and NaN gives 0: ONNX leaves it open, and processors differ.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import BITS, NUMBERS, TEXT, is_float, is_integer, numpy_type, wide

__all__ = ["cast_to"]

SATURATED: Final = frozenset(NUMBERS[number] for number in (17, 18, 19, 20))
E8M0: Final = NUMBERS[24]


def cast_to(x: Array, dtype: np.dtype[Any], saturate: int = 1, round_mode: str = "up") -> Array:
    """Values in another data type.

    >>> cast_to(np.float32([-1.5, 1e6]), np.dtype(ml_dtypes.float8_e4m3fn)).tolist()
    [-1.5, 448.0]
    >>> cast_to(np.float32([-1.5, 1e6, np.nan]), np.dtype("int8")).tolist()
    [-1, 127, 0]
    """
    if x.dtype == dtype:
        return x
    if x.dtype == TEXT:
        return _read(x, dtype)
    x = wide(x)
    if dtype == TEXT:
        return x.astype(np.str_).astype(object)
    if dtype == E8M0:
        return _exponents(x, saturate, round_mode)
    if dtype in SATURATED and saturate:
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        x = x if is_float(x.dtype) else x.astype(np.float64)
        return np.clip(x, float(info.min), float(info.max)).astype(dtype)
    if dtype in BITS and is_integer(x.dtype) and is_integer(dtype):
        return _from_bits(x.astype(np.uint8) & (2 ** BITS[dtype] - 1), dtype)
    if dtype.kind in "iu" and x.dtype.kind == "f":
        return _whole_part(x, dtype)
    return x.astype(dtype)


def _whole_part(x: Array, dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    over, under = x >= 2.0 ** (info.bits - (info.min < 0)), x <= float(info.min)
    inside = np.where(over | under | np.isnan(x), 0, x).astype(dtype)
    return np.where(over, dtype.type(info.max), np.where(under, dtype.type(info.min), inside))


def _as_to_says(x: Fact, *, to: int, **_: Any) -> Fact:
    return Fact(x.dims, numpy_type(to))


def _as_the_other(x: Fact, other: Fact, **_: Any) -> Fact:
    return Fact(x.dims, other.dtype)


@operator("Cast", infer=_as_to_says)
def cast(x: Array, /, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """Values in the type of a number of ONNX."""
    return cast_to(x, numpy_type(to), saturate, round_mode)


@operator("CastLike", infer=_as_the_other)
def cast_like(x: Array, target_type: Array, /, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """Values in the type of another tensor."""
    return cast_to(x, target_type.dtype, saturate, round_mode)


@operator("BitCast", infer=_as_to_says)
def bit_cast(x: Array, /, *, to: int) -> Array:
    """The same bits under a type of the same width."""
    dtype = numpy_type(to)
    if TEXT in (x.dtype, dtype):
        raise LayoutError("texts can't be cast bit by bit")
    bits, wanted = (BITS.get(one, one.itemsize * 8) for one in (x.dtype, dtype))
    if bits != wanted:
        raise LayoutError(f"both types must have as many bits: {x.dtype} has {bits}, {dtype} has {wanted}")
    if bits % 8 == 0:
        return x.view(dtype)
    pattern = x.astype(np.int8).view(np.uint8) if is_integer(x.dtype) else x.view(np.uint8)
    return _from_bits(pattern & (2**bits - 1), dtype)


def _from_bits(pattern: Array, dtype: np.dtype[Any]) -> Array:
    """Elements of fewer than 8 bits from the bits of each."""
    if not is_integer(dtype):
        return pattern.view(dtype)
    value = pattern.astype(np.int16)
    if dtype.name.startswith("int"):
        value -= (value >> (BITS[dtype] - 1)) << BITS[dtype]
    return value.astype(dtype)


def _read(x: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers from text."""
    texts = [str(one) for one in x.reshape(-1)]
    made: list[Any] = [_whole(text) if is_integer(dtype) else float(text) for text in texts]
    kind = np.float64 if not is_integer(dtype) else np.uint64 if dtype == np.uint64 else np.int64
    return cast_to(np.array(made, kind).reshape(x.shape), dtype, saturate=0)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _exponents(x: Array, saturate: int, round_mode: str) -> Array:
    """Powers of two, 2**-127 to 2**127, as the byte exponent + 127; 255 is NaN."""
    part, exponent = np.frexp(np.abs(np.asarray(x, np.float64)))  # x = part 2**exponent, part from 0.5
    if round_mode not in ("up", "down", "nearest"):
        raise LayoutError(f"round_mode is 'up', 'down' or 'nearest', got {round_mode!r}")
    least = {"up": part > 0.5, "down": np.False_, "nearest": part >= 0.75}[round_mode]
    code = exponent - 1 + least + 127
    invalid = np.isnan(part)
    if not saturate:
        invalid = invalid | np.isinf(part) | (part == 0) | (code > 254)
    code = np.where(np.isinf(part), 254, np.where(part == 0, 0, np.clip(code, 0, 254)))
    return np.where(invalid, 255, code).astype(np.uint8).view(E8M0)
