"""The data types of operators: ONNX's numbers for them, and the type in which arithmetic is done.

Attributes such as ``to`` of a Cast hold a number of ``TensorProto.DataType``. Types of fewer than 8 bits take
a byte each in an array. Text is an array of objects.

>>> numpy_type(1), numpy_type(16), numpy_type(8)
(dtype('float32'), dtype(bfloat16), dtype('O'))
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError

__all__ = ["NUMBERS", "is_float", "is_integer", "narrow", "numpy_type", "wide"]

NUMBERS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("float32"),
    2: np.dtype("uint8"),
    3: np.dtype("int8"),
    4: np.dtype("uint16"),
    5: np.dtype("int16"),
    6: np.dtype("int32"),
    7: np.dtype("int64"),
    8: np.dtype(object),
    9: np.dtype("bool"),
    10: np.dtype("float16"),
    11: np.dtype("float64"),
    12: np.dtype("uint32"),
    13: np.dtype("uint64"),
    14: np.dtype("complex64"),
    15: np.dtype("complex128"),
    16: np.dtype(ml_dtypes.bfloat16),
    17: np.dtype(ml_dtypes.float8_e4m3fn),
    18: np.dtype(ml_dtypes.float8_e4m3fnuz),
    19: np.dtype(ml_dtypes.float8_e5m2),
    20: np.dtype(ml_dtypes.float8_e5m2fnuz),
    21: np.dtype(ml_dtypes.uint4),
    22: np.dtype(ml_dtypes.int4),
    23: np.dtype(ml_dtypes.float4_e2m1fn),
    24: np.dtype(ml_dtypes.float8_e8m0fnu),
    25: np.dtype(ml_dtypes.uint2),
    26: np.dtype(ml_dtypes.int2),
    27: np.dtype(ml_dtypes.float6_e2m3fn),
    28: np.dtype(ml_dtypes.float6_e3m2fn),
}
"""NumPy's data type for each number of ``TensorProto.DataType``."""

TEXT: Final = NUMBERS[8]
"""Arrays of ``str``."""

BITS: Final[dict[np.dtype[Any], int]] = {
    NUMBERS[number]: bits for number, bits in ((21, 4), (22, 4), (23, 4), (25, 2), (26, 2), (27, 6), (28, 6))
}
"""Widths of the types that fill no byte."""


def numpy_type(number: int) -> np.dtype[Any]:
    """The data type that an attribute names by ONNX's number."""
    found = NUMBERS.get(number)
    if found is None:
        raise LayoutError(f"{number} is no data type of ONNX; there are 1 to {max(NUMBERS)}")
    return found


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether a type is a signed or unsigned integer of any width.

    >>> is_integer(np.dtype("uint8")), is_integer(np.dtype(ml_dtypes.int4)), is_integer(np.dtype(bool))
    (True, True, False)
    """
    return dtype.kind in "iu" or (dtype.kind == "V" and dtype.name.startswith(("int", "uint")))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is floating point of any width.

    >>> is_float(np.dtype("float16")), is_float(np.dtype(ml_dtypes.bfloat16)), is_float(np.dtype("int8"))
    (True, True, False)
    """
    return dtype.kind == "f" or (not is_integer(dtype) and dtype in _OTHERS)


def wide(x: NDArray[Any]) -> NDArray[Any]:
    """Numbers as arithmetic takes them: floating point of fewer than 32 bits as f32, small integers as s32.

    >>> wide(np.zeros(1, ml_dtypes.bfloat16)).dtype, wide(np.zeros(1, "float64")).dtype
    (dtype('float32'), dtype('float64'))
    """
    if is_float(x.dtype) and x.dtype.itemsize < 4:
        return x.astype(np.float32)
    return x.astype(np.int32) if x.dtype in BITS else x


def narrow(x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A result back in the type that it is to have."""
    return np.asarray(x).astype(dtype, copy=False)


_OTHERS: Final = frozenset(NUMBERS[number] for number in (16, 17, 18, 19, 20, 23, 24, 27, 28))
