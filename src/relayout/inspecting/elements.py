"""What can be read of a buffer: of which data type its elements are, in which byte order, from which byte on.

A *reading* puts the two sides into one form: the logical values converted to the data type in question, and
the buffer, both as unsigned integers with the bits of an element. Elements are equal if their bits are; all
NaNs are one. Readings come in the order in which they are worth trying: the data type that is said or that
the values have, then narrower and wider ones that the buffer has room for, then swapped bytes, then buffers
whose elements begin at an odd byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.convert import convert, rescale
from relayout.dtypes import DTYPES, DType, DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.inspecting.scales import scale_of
from relayout.inspecting.whereabouts import Tokens
from relayout.tensor import Tensor, as_array, as_bytes

__all__ = ["Reading", "bits_of", "elements_of", "logical_array", "raw_bytes", "readings", "swapped"]


class Reading(NamedTuple):
    """One way to read a buffer beside the values that it is said to hold."""

    dtype: DType
    swapped: bool
    """Whether the bytes of each element are in the other order than this machine's."""
    start: int
    """The first byte of the first whole element."""
    values: Tokens
    """The logical values in this data type, as bits, in their shape."""
    memory: Tokens
    """The elements of the buffer from ``start`` on, as bits."""
    scale: float = 1.0
    """What the values were divided by before they were rounded."""


def raw_bytes(buffer: Any) -> NDArray[np.uint8]:
    """The bytes of a buffer, without a copy: bytes, memory maps, arrays, tensors."""
    return as_bytes(buffer)


def logical_array(logical: Any) -> tuple[NDArray[Any], DType]:
    """The logical values and their data type.

    Raises
    ------
    LayoutError
        It is no array of numbers, or of a data type that has no counterpart here.
    """
    if isinstance(logical, Tensor):
        return logical.numpy(copy=True), logical.dtype
    array = as_array(logical)
    return array, as_dtype(array.dtype.newbyteorder("="))


def bits_of(array: NDArray[Any], dtype: DType) -> Tokens:
    """Values of a data type as unsigned integers; all NaNs as one, and 4-bit integers one a byte.

    >>> bits_of(np.array([1.0, -2.0], np.float32), as_dtype("f32"))
    array([1065353216, 3221225472], dtype=uint32)
    """
    plain = np.ascontiguousarray(array)
    if plain.dtype.byteorder not in ("=", "|"):
        plain = plain.astype(plain.dtype.newbyteorder("="))
    shape = array.shape
    bits: Tokens = plain.reshape(-1).view(f"u{plain.dtype.itemsize}").reshape(shape)
    if dtype.bits < 8:
        low: Tokens = bits & np.uint8(15)
        return low
    if dtype.is_float:
        with np.errstate(invalid="ignore"):
            nan = np.isnan(plain).reshape(shape)
        if nan.any():
            bits = np.where(nan, _one_nan(dtype), bits)
    return bits


def elements_of(data: NDArray[np.uint8], dtype: DType, start: int = 0, other_order: bool = False) -> Tokens:
    """The whole elements of some bytes from ``start`` on, as :func:`bits_of` has them."""
    if dtype.bits < 8:
        nibbles = np.empty(2 * (data.size - start), np.uint8)
        nibbles[0::2] = data[start:] & 15
        nibbles[1::2] = data[start:] >> 4
        return nibbles
    width = dtype.bits // 8
    count = (data.size - start) // width
    bits: Tokens = data[start : start + count * width].view(f"u{width}")
    if other_order:
        bits = bits.byteswap()
    if dtype.is_float:
        with np.errstate(invalid="ignore"):  # of bits that mean nothing in this type
            nan = np.isnan(bits.view(dtype.numpy))
        if nan.any():
            bits = np.where(nan, _one_nan(dtype), bits)
    return bits


def swapped(dtype: DType) -> bool:
    """Whether elements have bytes to be swapped."""
    return dtype.bits > 8


def readings(
    data: NDArray[np.uint8], array: NDArray[Any], kind: DType, dtype: DTypeLike | None = None
) -> Iterator[Reading]:
    """The ways to read a buffer that may hold some values, likely ones first.

    Parameters
    ----------
    data : array of bytes
        The buffer.
    array, kind : array and DType
        The values, and their data type.
    dtype : optional
        The data type of the buffer's elements, if it is known.
    """
    types = [as_dtype(dtype)] if dtype is not None else _plausible(data.size, array, kind)
    converted = {one.name: bits_of(array if one == kind else convert(array, one), one) for one in types[:1]}
    for one in types:
        if one.name not in converted:
            converted[one.name] = bits_of(convert(array, one), one)
        yield Reading(one, False, 0, converted[one.name], elements_of(data, one))
    if kind.is_float:
        for one in _quantised(dtype):
            yield from _scaled(data, array, kind, one)
    for one in types:
        if swapped(one):
            yield Reading(one, True, 0, converted[one.name], elements_of(data, one, 0, True))
    for one in types:
        for start in range(1, one.bits // 8):
            if one.nbytes(array.size) + start > data.size and dtype is None:
                break
            for other in (False, True):
                yield Reading(one, other, start, converted[one.name], elements_of(data, one, start, other))


def _plausible(size: int, array: NDArray[Any], kind: DType) -> list[DType]:
    """The data types that values may have been converted to, that of the values first."""
    whole = not kind.is_float or bool((array == np.rint(array.astype(np.float64))).all())
    others = [one for one in DTYPES if one != kind and one.nbytes(array.size) <= size]
    # Fractions that are kept as integers are scaled, or nothing is left of them.
    return [
        kind,
        *(one for one in others if one.is_float),
        *(one for one in others if whole and not one.is_float),
    ]


def _quantised(dtype: DTypeLike | None) -> list[DType]:
    """The types to which real numbers are quantised, of those that can be meant."""
    return [one for one in map(as_dtype, ("s8", "u8")) if dtype is None or one == as_dtype(dtype)]


def _scaled(data: NDArray[np.uint8], array: NDArray[Any], kind: DType, one: DType) -> Iterator[Reading]:
    """The reading of values that were divided by a scale, where one explains the integers."""
    stored = data.view(one.numpy)
    scale = scale_of(array, kind, stored, one)
    if scale is not None:
        made = rescale(array, kind, one, dst_scale=np.float32(scale))
        yield Reading(one, False, 0, bits_of(made, one), elements_of(data, one), scale)


def _one_nan(dtype: DType) -> np.unsignedinteger[Any]:
    bits = np.array(np.nan, dtype.numpy).reshape(1).view(f"u{dtype.bits // 8}")
    one: np.unsignedinteger[Any] = bits[0]
    return one
