"""DLPack for the data types that NumPy's DLPack does not know: bf16 and 8-bit floating point.

NumPy passes integers of the same width on, strides, flags and lifetimes included. A capsule says the data
type in four bytes, and these are changed::

    an array of bf16  ->  its bits as uint16  ->  NumPy's capsule: uint 16  ->  bfloat 16      exported
    bfloat 16  ->  uint 16: NumPy's array of uint16  ->  an array of bf16                      imported

The structs and the codes are those of DLPack's header (``dlpack.h``), version 1.1; the 8-bit codes are new in
it. Whoever made the capsule frees it, and does not look at the data type for that.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DType, dtype
from relayout.errors import LayoutError, type_name

__all__ = ["exported", "imported"]

_CODES = {"bf16": 4, "f8_e4m3": 10, "f8_e5m2": 12}  # kDLBfloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2
_KINDS = {code: name for name, code in _CODES.items()}
_UINT = 1  # kDLUInt


class _DataType(ctypes.Structure):
    """``DLDataType``."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """``DLTensor``, with which a ``DLManagedTensor`` begins; what follows the data type is left out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# Prototypes of our own: those of ctypes.pythonapi belong to everybody.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def exported(elements: NDArray[Any], kind: DType, **options: Any) -> Any:
    """A DLPack capsule of an array; ``options`` are those of ``ndarray.__dlpack__``."""
    code = _CODES.get(kind.name)
    if code is None:
        return elements.__dlpack__(**options)
    capsule = elements.view(f"u{elements.itemsize}").__dlpack__(**options)
    _said(capsule).code = code
    return capsule


def imported(data: Any) -> NDArray[Any]:
    """The array that shares the memory of an object with ``__dlpack__``, or of a capsule.

    A capsule is used up by that.

    Raises
    ------
    LayoutError
        The object is not in the CPU's memory, or NumPy does not take it for another reason.
    """
    if type(data).__name__ == "PyCapsule":
        data = _Capsule(data)
    carrier = _Carrier(data)
    try:
        array: NDArray[Any] = np.from_dlpack(carrier)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LayoutError(f"{type_name(data)} can't be read through DLPack: {error}") from None
    return array if carrier.kind is None else array.view(carrier.kind.numpy)


class _Capsule:
    """The producer that a bare capsule is without."""

    def __init__(self, capsule: Any) -> None:
        if not (_is_valid(capsule, b"dltensor_versioned") or _is_valid(capsule, b"dltensor")):
            raise LayoutError(
                "this capsule has no tensor of DLPack, or it has been read: that goes once only"
            )
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        where = _tensor(self.capsule)
        return where.device_type, where.device_id


class _Carrier:
    """An object with ``__dlpack__`` whose capsule is changed on its way to NumPy."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.kind: DType | None = None

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.data.__dlpack__(**options)
        said = _said(capsule)
        if said.code in _KINDS:
            self.kind = dtype(_KINDS[said.code])
            said.code = _UINT
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def _said(capsule: Any) -> _DataType:
    """The data type that a capsule says, to be read and changed in place."""
    said: _DataType = _tensor(capsule).dtype
    return said


def _tensor(capsule: Any) -> _Tensor:
    """What a capsule says of its tensor."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        tensor: _Tensor = versioned.tensor
        return tensor
    return _Tensor.from_address(_pointer(capsule, b"dltensor"))
