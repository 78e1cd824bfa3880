"""Tensors in ONNX files as arrays: raw bytes, fields for each type, sparse ones, data in other files.

A tensor keeps its elements in one of three ways::

    raw_data                 bytes, little endian; types of fewer than 8 bits packed, lowest bits first
    float_data, int32_data   one entry for each element (two floats for a complex number; a byte of packed
    ...                      elements where these have 4 or 2 bits); 16 and 8-bit floats as their bits
    external_data            a file beside the model, with offset and length

Whatever a file says is checked before memory is taken for it: a tensor of 2**60 elements that has no data is
an error and no allocation.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.graph.operators.types import BITS, NUMBERS
from relayout.importers.onnx.external import Folder
from relayout.importers.onnx.lean import LEAST

__all__ = ["array_of", "dense", "dims_of"]

Array = NDArray[Any]

STRING, BOOL, COMPLEX = 8, 9, (14, 15)
FIELDS: Final[dict[int, tuple[str, str]]] = {
    1: ("float_data", "float32"),
    7: ("int64_data", "int64"),
    11: ("double_data", "float64"),
    12: ("uint64_data", "uint64"),
    13: ("uint64_data", "uint64"),
    14: ("float_data", "float32"),
    15: ("double_data", "float64"),
}
"""The field of each type and its entries' type; the types that are missing here use ``int32_data``."""

LARGEST_DENSE: Final = 2**31
"""Elements of a sparse tensor written out: a few bytes of a file could ask for all memory otherwise."""


def array_of(tensor: Any, folder: Folder, held: NDArray[np.uint8] | None = None) -> Array:
    """The elements of a ``TensorProto``, read-only where they share its memory or are mapped.

    Parameters
    ----------
    tensor : onnx.TensorProto
        What a file has.
    folder : Folder
        Where files with external data are.
    held : ndarray of uint8, optional
        Its ``raw_data``, where the message came without.

    Raises
    ------
    LayoutError
        The data type is none, there are too few or too many elements, a file with data is missing, too short
        or outside of the model's folder.
    """
    what = f"tensor {tensor.name!r}"
    number = int(tensor.data_type)
    dtype = NUMBERS.get(number)
    if dtype is None:
        raise LayoutError(f"{what} has data type {number}; ONNX has 1 to {max(NUMBERS)}")
    dims = dims_of(tensor.dims, what)
    if tensor.HasField("segment"):
        raise LayoutError(f"{what} is one segment of a larger tensor; segments are not read")
    count = math.prod(dims)
    if number == STRING:
        return _text(tensor, what, count).reshape(dims)
    bits = BITS.get(dtype, dtype.itemsize * 8)
    if tensor.data_location == 1:
        data = folder.bytes(tensor, what, -(-count * bits // 8))
    elif held is not None:
        data = held
    elif tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        return _typed(tensor, what, number, count).reshape(dims)
    if data.size != -(-count * bits // 8):
        raise LayoutError(
            f"{what} of {_sizes(dims)} {dtype} takes {-(-count * bits // 8)} bytes; {data.size} are given"
        )
    return _elements(data, dtype, count).reshape(dims)


def dims_of(dims: Any, what: str) -> tuple[int, ...]:
    """Sizes as numbers; a LayoutError where one is negative or all together are more than memory has."""
    made = tuple(int(n) for n in dims)
    if any(n < 0 for n in made) or math.prod(n for n in made if n) >= 2**62 or len(made) > 64:
        raise LayoutError(f"{what} has the dims {_sizes(made)}: sizes must be 0 or more, and fit in memory")
    return made


def dense(sparse: Any, folder: Folder) -> Array:
    """A ``SparseTensorProto`` with its zeros written out.

    Raises
    ------
    LayoutError
        Indices don't fit the values or lie outside; or it would have more than 2**31 elements.
    """
    what = f"sparse tensor {sparse.values.name!r}"
    dims = dims_of(sparse.dims, what)
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    if math.prod(dims) > LARGEST_DENSE:
        raise LayoutError(f"{what} has {_sizes(dims)} elements; at most {LARGEST_DENSE} are written out")
    flat = values.ndim == 1 and indices.shape == values.shape
    if not flat and (values.ndim != 1 or indices.shape != (values.size, len(dims))):
        raise LayoutError(
            f"{what} has values of {_sizes(values.shape)} and indices of {_sizes(indices.shape)}; with n"
            f" values there are n indices, or n rows of {len(dims)}"
        )
    if indices.dtype != np.int64:
        raise LayoutError(f"{what} has indices of type {indices.dtype}; they must be int64")
    places = indices.T if not flat else indices[None]
    limits = np.array(dims if not flat else [math.prod(dims)])[:, None]
    if np.any(places < 0) or np.any(places >= limits):
        raise LayoutError(f"{what} of {_sizes(dims)} has indices outside of it")
    made = np.full(dims, "" if values.dtype == object else 0, values.dtype)
    if flat:
        made.reshape(-1)[indices] = values
    else:
        made[tuple(places)] = values
    return made


def _elements(data: NDArray[np.uint8], dtype: np.dtype[Any], count: int) -> Array:
    """Packed bytes as elements."""
    if dtype in BITS:
        bits = BITS[dtype]
        single = np.unpackbits(data, bitorder="little")[: count * bits].reshape(count, bits)
        codes = np.packbits(single, axis=1, bitorder="little").reshape(count)
        if dtype.name.startswith("int"):  # the highest bit counts negative
            top = 1 << (bits - 1)
            signed: Array = (codes ^ top).astype(np.int8) - np.int8(top)
            return signed.astype(dtype)
        return codes.astype(dtype) if dtype.name.startswith("uint") else codes.view(dtype)
    if dtype.kind == "b":
        return data.astype(dtype)
    if data.ctypes.data % dtype.itemsize and data.size < LEAST:
        data = data.copy()  # a file may have tensors at any offset; large ones stay there as they are
    return data.view(dtype)


def _typed(tensor: Any, what: str, number: int, count: int) -> Array:
    """Elements from the field of the type."""
    dtype = NUMBERS[number]
    name, stored = FIELDS.get(number, ("int32_data", "int32"))
    field = getattr(tensor, name)
    per_byte = 8 // BITS[dtype] if dtype in BITS and BITS[dtype] != 6 else 1
    wanted = count * 2 if number in COMPLEX else -(-count // per_byte)
    if len(field) != wanted:
        raise LayoutError(f"{what} takes {wanted} numbers in {name}; it has {len(field)}")
    entries = np.fromiter(field, np.dtype(stored), wanted)
    if number in COMPLEX:
        return entries.view(dtype)
    if number in FIELDS:
        return entries.astype(dtype, copy=False)
    if dtype in BITS:
        codes = entries.astype(np.uint8)
        if BITS[dtype] == 6:  # one entry for each element; the packed form is shorter by two bits
            return (codes & 0x3F).view(dtype)
        return _elements(codes, dtype, count)
    if number == BOOL:
        return entries.astype(dtype)
    if dtype.kind in "iu":
        return entries.astype(dtype)
    return entries.astype(f"uint{dtype.itemsize * 8}").view(dtype)


def _text(tensor: Any, what: str, count: int) -> Array:
    if len(tensor.string_data) != count:
        raise LayoutError(f"{what} takes {count} texts in string_data; it has {len(tensor.string_data)}")
    made = np.empty(count, object)
    try:
        made[:] = [text.decode("utf-8") for text in tensor.string_data]
    except UnicodeDecodeError as error:
        raise LayoutError(f"{what} has a text that is not UTF-8: {error.object!r:.60}") from None
    return made


def _sizes(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims)) or "no dims"
