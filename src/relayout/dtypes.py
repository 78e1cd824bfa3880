"""Data types: what an element is, how many bits it takes, and how 4-bit elements share a byte.

The thirteen types
==================

A name says the kind and the number of *bits*: ``f`` floating point, ``bf`` brain float, ``s`` signed and
``u`` unsigned integer. They are oneDNN's names, with ``s64`` added::

    name      bits  values                                     NumPy / ml_dtypes
    f64       64    IEEE binary64                              float64
    f32       32    IEEE binary32                              float32
    f16       16    IEEE binary16, to 65504                    float16
    bf16      16    the upper half of an f32                   ml_dtypes.bfloat16
    f8_e4m3   8     OCP E4M3, to 448: no infinity, one NaN     ml_dtypes.float8_e4m3fn
    f8_e5m2   8     OCP E5M2, to 57344: the upper half of f16  ml_dtypes.float8_e5m2
    s64 s32 s16 s8  two's complement integers                  int64 int32 int16 int8
    u8        8     0 to 255                                   uint8
    s4 u4     4     -8 to 7, 0 to 15                           ml_dtypes.int4, ml_dtypes.uint4

:func:`dtype` reads all of these, and the names that other systems give them:

>>> dtype("f32"), dtype("float32"), dtype("torch.bfloat16"), dtype("F8_E4M3")
(DType('f32'), DType('f32'), DType('bf16'), DType('f8_e4m3'))

Bits, not bytes
===============

NumPy's short codes count bytes, and some of them are spelled as the names here are: NumPy reads ``"u8"`` as
64-bit and ``"f16"`` as long double. Therefore a :class:`DType` is an object of its own and not a string. A
string would be read by NumPy *before* anything could correct it, and ``numpy.zeros(4, "u8")`` makes 32 bytes.
An object that carries its NumPy type is understood everywhere:

>>> import numpy as np
>>> np.zeros(4, dtype("u8")).nbytes, np.dtype("uint8") == dtype("u8"), dtype("u8") == "u8"
(4, True, True)

Half bytes
==========

Two 4-bit elements share a byte; the element of even index is in the low half. An odd count ends in a byte
whose high half is zero. That is oneDNN's rule (``nibble2_t`` in its sources: index 0 is ``low``, the byte is
``high << 4 | low``).

>>> pack(np.array([1, -2, 3]), "s4")
array([225,   3], dtype=uint8)

Here 225 is 0xe1: -2 is 0b1110, above 1. :func:`pack` and :func:`unpack` pass between such bytes and arrays
with one element a byte, the only form in which ml_dtypes knows 4-bit integers.

How values pass from one type to another is told in :mod:`relayout.convert`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from relayout.errors import LayoutError, counted, type_name, whole
from relayout.forking import lock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["DTYPES", "DType", "DTypeLike", "dtype", "pack", "single", "unpack"]


def single(number: float) -> float:
    """The nearest f32; an ``OverflowError`` where that would be infinite and the number is not.

    >>> single(0.1)
    0.10000000149011612
    """
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


class DType:
    """A data type: its name, its width and its range.

    There is one object for each type (compare with ``is`` or ``==``); get it from :func:`dtype`. It is equal
    to its name, to its NumPy and PyTorch types and to its scalar type, hashes and prints as its name does,
    and may stand wherever NumPy takes a data type.

    Attributes
    ----------
    name : str
        The name, such as ``"f32"``.
    bits : int
        Width of an element in bits: 64, 32, 16, 8 or 4.
    is_float, is_signed : bool
        Floating point (rather than integer); able to hold negative numbers.
    min, max : int or float
        The smallest and the largest finite value: an int for integers, a float for floating point.

    Notes
    -----
    The hash is that of the name, so that a dictionary keyed by names can be asked with a DType. NumPy's types
    hash differently: do not mix them with DTypes in one set.

    Examples
    --------
    >>> t = dtype("s4")
    >>> t.bits, t.is_float, t.is_signed, t.min, t.max
    (4, False, True, -8, 7)
    >>> dtype("f8_e4m3").max, dtype("f16").max
    (448.0, 65504.0)
    >>> import numpy as np
    >>> dtype("u8") == np.uint8, np.dtype("uint8") == dtype("u8"), {"u8": 4}[dtype("u8")]
    (True, True, 4)
    """

    __slots__ = ("_numpy", "_numpy_name", "bits", "is_float", "is_signed", "max", "min", "name")

    name: str
    bits: int
    is_float: bool
    is_signed: bool
    min: int | float
    max: int | float
    _numpy_name: str
    _numpy: np.dtype[Any] | None

    def __init__(self, name: str, bits: int, numpy_name: str, max: int | float, min: int | float) -> None:
        put = object.__setattr__
        put(self, "name", name)
        put(self, "bits", bits)
        put(self, "is_float", isinstance(max, float))
        put(self, "is_signed", min < 0)
        put(self, "min", min)
        put(self, "max", max)
        put(self, "_numpy_name", numpy_name)
        put(self, "_numpy", None)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy data type: NumPy's own, or one of ml_dtypes, which is imported when first needed.

        4-bit types take a whole byte in a NumPy array; see :func:`pack`.

        >>> dtype("bf16").numpy.itemsize, dtype("s4").numpy.itemsize
        (2, 1)
        """
        known = self._numpy
        if known is None:
            import numpy as np

            scalar = getattr(np, self._numpy_name, None)
            if scalar is None:
                with lock():
                    import ml_dtypes

                scalar = getattr(ml_dtypes, self._numpy_name)
            known = np.dtype(scalar)
            object.__setattr__(self, "_numpy", known)
        return known

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same as :attr:`numpy`, under the name by which NumPy asks an object for its data type.

        >>> import numpy as np
        >>> np.dtype(dtype("u4"))
        dtype(uint4)
        """
        return self.numpy

    __numpy_dtype__ = dtype  # the name by which NumPy 2.4 and later asks first

    def nbytes(self, count: int) -> int:
        """Bytes that ``count`` elements side by side take; half a byte is rounded up.

        >>> dtype("f32").nbytes(3), dtype("s4").nbytes(3)
        (12, 2)
        """
        return -(-whole(count, "count") * self.bits // 8)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str):
            return self.name == other
        if isinstance(other, DType) or not (_is_numpy_type(other) or _is_torch_type(other)):
            return NotImplemented
        try:
            return dtype(other) is self
        except LayoutError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)

    def __repr__(self) -> str:
        return f"DType({self.name!r})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a data type cannot be changed (tried to set {name!r} of {self.name})")

    def __reduce__(self) -> tuple[Callable[[Any], DType], tuple[str]]:
        return dtype, (self.name,)


def _integer(name: str, numpy_name: str) -> DType:
    bits = int(name[1:])
    if name[0] == "u":
        return DType(name, bits, numpy_name, 2**bits - 1, 0)
    return DType(name, bits, numpy_name, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))


def _float(name: str, bits: int, numpy_name: str, largest: float) -> DType:
    return DType(name, bits, numpy_name, largest, -largest)


DTYPES: Final[tuple[DType, ...]] = (
    _float("f64", 64, "float64", (2 - 2.0**-52) * 2.0**1023),
    _float("f32", 32, "float32", (2 - 2.0**-23) * 2.0**127),
    _float("f16", 16, "float16", 65504.0),
    _float("bf16", 16, "bfloat16", (2 - 2.0**-7) * 2.0**127),
    _float("f8_e4m3", 8, "float8_e4m3fn", 448.0),
    _float("f8_e5m2", 8, "float8_e5m2", 57344.0),
    _integer("s64", "int64"),
    _integer("s32", "int32"),
    _integer("s16", "int16"),
    _integer("s8", "int8"),
    _integer("u8", "uint8"),
    _integer("s4", "int4"),
    _integer("u4", "uint4"),
)
"""All data types, widest first, floating point before integer."""

_BY_NUMPY_NAME: Final = {t._numpy_name: t for t in DTYPES}

# What other systems write, in lower case: NumPy and PyTorch, MLIR and OpenVINO (i8, f8e4m3), safetensors
# (F8_E4M3), TensorRT (fp8) and C. A "module.name" that is not found whole is looked up by its last part.
_SYNONYMS: Final = {
    "f64": "float64 fp64 double",
    "f32": "float32 fp32 single torch.float",
    "f16": "float16 fp16 half",
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn f8e4m3 f8e4m3fn f8_e4m3fn fp8_e4m3 fp8e4m3 fp8_e4m3fn e4m3 e4m3fn",
    "f8_e5m2": "float8_e5m2 f8e5m2 fp8_e5m2 fp8e5m2 e5m2",
    "s64": "int64 i64 torch.long",
    "s32": "int32 i32 torch.int",
    "s16": "int16 i16 torch.short",
    "s8": "int8 i8",
    "u8": "uint8",
    "s4": "int4 i4",
    "u4": "uint4",
}

_KNOWN: Final[dict[object, DType]] = {t.name: t for t in DTYPES}
_KNOWN.update({word: _KNOWN[name] for name, words in _SYNONYMS.items() for word in words.split()})

_BYTES_NOT_BITS = "digits count bits here, and bytes in NumPy's short codes; write float32, int8 and so on"
_PLATFORM = "its width differs between systems; name the width, such as f32, f64, s32 or s64"
_BOOLEAN = (
    "truth values are no data type of their own: store them as u8, x.view(torch.uint8) or "
    "array.view(numpy.uint8)"
)
_COMPLEX = (
    "complex numbers are pairs, which get an axis of their own: torch.view_as_real(x), or "
    "array.view(array.real.dtype).reshape(*array.shape, 2)"
)
_UNSIGNED = (
    "unsigned integers have 8 bits or 4; convert it to a signed type that holds its values, such as s32 "
    "or s64, or view its bits as signed to move them only"
)
_FNUZ = (
    "its bits mean other numbers than those of f8_e4m3 and f8_e5m2 (no infinities, one zero, another bias); "
    "convert it to one of them or to f32 first, x.float()"
)
_SCALES = "it holds exponents only, the scales of MX formats; convert it to f32 first, x.float()"
_HALVES = "two 4-bit floating-point numbers share a byte; view it as u8, x.view(torch.uint8), to move it only"
_QUANTISED = (
    "the scale of quantised numbers is not in their memory; x.int_repr() has the integers, and src_scale and "
    "src_zero_point take the rest"
)
_REASONS: Final = {
    **dict.fromkeys(("bool", "boolean"), _BOOLEAN),
    **dict.fromkeys(("complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"), _COMPLEX),
    **dict.fromkeys(("uint16", "uint32", "uint64", "u16", "u32", "u64"), _UNSIGNED),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz"), _FNUZ),
    "float8_e8m0fnu": _SCALES,
    "float4_e2m1fn_x2": _HALVES,
    **dict.fromkeys(("qint8", "quint8", "qint32", "quint4x2", "quint2x4"), _QUANTISED),
    "float8_e4m3": "this is ml_dtypes' name of a type with infinities; OCP's and oneDNN's type is f8_e4m3",
    "f8": "there are two 8-bit floating-point types: f8_e4m3 and f8_e5m2",
    **dict.fromkeys(("fp8", "float8"), "there are two 8-bit floating-point types: f8_e4m3 and f8_e5m2"),
    **dict.fromkeys(("f2", "f4", "i1", "i2", "u1", "u2"), _BYTES_NOT_BITS),
    **dict.fromkeys(("float", "int", "long", "short", "byte", "char"), _PLATFORM),
}

DTypeLike: TypeAlias = Any
"""What :func:`dtype` reads: a DType, a name, a NumPy or ml_dtypes type, a ``torch.dtype``."""


def dtype(x: DTypeLike) -> DType:
    """Return the data type that ``x`` names.

    Parameters
    ----------
    x : DType, str, numpy.dtype, type or torch.dtype
        A data type; its name here or in another system, in any case (``"f32"``, ``"float32"``, ``"fp32"``,
        ``"i8"``, ``"half"``, ``"torch.float32"``); a NumPy data type in native byte order, or its typestr
        (``"<f4"``); a scalar type of NumPy or ml_dtypes, or Python's ``float`` (f64) and ``int`` (s64), as
        NumPy reads them; a ``torch.dtype``, of which only the text is looked at.

    Returns
    -------
    DType
        The one object for the type.

    Raises
    ------
    LayoutError
        No data type has that name (the nearest ones are suggested), or the NumPy type has no counterpart
        here: truth values, unsigned integers of more than 8 bits, complex numbers, swapped byte order.

    Examples
    --------
    >>> import numpy as np
    >>> dtype("int8"), dtype(np.float16), dtype(np.dtype("int32"))
    (DType('s8'), DType('f16'), DType('s32'))
    >>> dtype("flaot32")
    Traceback (most recent call last):
    relayout.errors.LayoutError: 'flaot32' is no data type; did you mean 'float32' or 'f32'? The ...
    """
    if isinstance(x, DType):
        return x
    try:
        found = _KNOWN.get(x)
    except TypeError:  # not hashable
        found = None
    return found or _read(x)


def _read(x: object) -> DType:
    if isinstance(x, str):
        word = x.strip().lower()
        if word.startswith(("<", ">", "=", "|")):
            return _from_typestr(x.strip())
        found = _KNOWN.get(word)
        if found is None:
            word = word.rpartition(".")[2]
            found = _KNOWN.get(word)
        return found or _refuse(repr(x), word)
    if _is_torch_type(x):
        found = dtype(str(x))
        _KNOWN[x] = found
        return found
    if isinstance(x, type) or _is_numpy_type(x):
        found = _from_numpy(x)
        _KNOWN[x] = found
        return found
    return _refuse(repr(x) if len(repr(x)) <= 60 else f"an object of type {type_name(x)}", "")


def _from_typestr(text: str) -> DType:
    import numpy as np

    try:
        given = np.dtype(text)
    except (TypeError, ValueError, SyntaxError):  # the last one for '<01'
        _refuse(repr(text), "")
    return _from_numpy(given)


def _from_numpy(x: Any) -> DType:
    import warnings

    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy reads abstract types such as np.floating, but warns
        try:
            given = np.dtype(x)
        except (TypeError, ValueError, Warning):
            given = np.dtype(object)
    if given.kind == "O":
        _refuse(f"type {x.__name__}" if isinstance(x, type) else f"NumPy type {x}", "")
    if not given.isnative:
        raise LayoutError(
            f"NumPy type {given.str!r} has its bytes in foreign order; data types here are in native order;"
            " convert the array first: array.astype(array.dtype.newbyteorder('='))"
        )
    found = _BY_NUMPY_NAME.get(given.name)
    if found is None or found.numpy != given:
        numbers = given.kind not in "USmM" and given.type.__name__ != "void"
        _refuse(f"NumPy type {given.name}", given.name if numbers else "")  # no number is near a text
    return found


def _is_numpy_type(x: object) -> bool:
    """Whether ``x`` is a NumPy data type or scalar type, found without importing NumPy."""
    import sys

    np = sys.modules.get("numpy")
    return np is not None and (isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)))


def _is_torch_type(x: object) -> bool:
    """Whether ``x`` is a ``torch.dtype``, found without importing PyTorch."""
    cls = type(x)
    return cls.__module__ == "torch" and cls.__name__ == "dtype"


def _refuse(what: str, word: str) -> NoReturn:
    names = ", ".join(t.name for t in DTYPES)
    if word in _REASONS:
        raise LayoutError(f"{what} is no data type: {_REASONS[word]}. The data types are {names}")
    with lock():
        import difflib

    near = difflib.get_close_matches(word, [k for k in list(_KNOWN) if isinstance(k, str)], n=2)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise LayoutError(f"{what} is no data type{hint} The data types are {names}")


_CONVERTS: Final = "relayout.convert.convert rounds and saturates values to another type"


def pack(values: ArrayLike, dtype: DTypeLike) -> NDArray[np.uint8]:
    """Return the bytes of elements that lie side by side, two 4-bit elements to a byte.

    Parameters
    ----------
    values : array_like
        Elements in any shape, taken in row-major order. For 4-bit types any integers in the type's range;
        for other types an array of that very type.
    dtype : DTypeLike
        The data type of the elements.

    Returns
    -------
    ndarray
        One-dimensional, of uint8, ``dtype.nbytes(count)`` long. The 4-bit element of even index is in the
        low half of its byte; the high half of the last byte is zero where the count is odd (oneDNN's rule).
        Where elements are whole bytes, the array may share memory with ``values``.

    Raises
    ------
    LayoutError
        A value is outside the range of the 4-bit type, or the values are of another type.

    Examples
    --------
    >>> import numpy as np
    >>> [hex(b) for b in pack(np.array([1, 2, 15]), "u4")]
    ['0x21', '0xf']
    >>> pack(np.array([8]), "s4")
    Traceback (most recent call last):
    relayout.errors.LayoutError: 8 does not fit in s4 (-8 to 7); ...
    """
    import numpy as np

    kind, array = _dtype(dtype), np.asarray(values)
    if kind.bits == 4:
        return _pack_halves(array.reshape(-1), kind)
    if array.dtype != kind.numpy:
        raise LayoutError(f"pack takes elements of {kind} as {kind.numpy}, got {array.dtype}; {_CONVERTS}")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _pack_halves(array: NDArray[Any], kind: DType) -> NDArray[np.uint8]:
    import numpy as np

    if array.size and array.dtype != kind.numpy:
        if array.dtype.kind not in "iu":
            raise LayoutError(f"pack takes integers as elements of {kind}, got {array.dtype}; {_CONVERTS}")
        wrong = array[(array < kind.min) | (array > kind.max)]
        if wrong.size:
            raise LayoutError(f"{wrong[0]} does not fit in {kind} ({kind.min} to {kind.max}); {_CONVERTS}")
    # ml_dtypes leaves open what the upper half of its bytes holds, so only values are passed on
    halves = np.zeros(array.size + array.size % 2, np.uint8)
    halves[: array.size] = array.astype(np.int8).view(np.uint8) & 0x0F
    low, high = halves[0::2], halves[1::2]
    return np.bitwise_or(low, np.left_shift(high, 4), dtype=np.uint8)


def unpack(buffer: NDArray[Any], dtype: DTypeLike, count: int) -> NDArray[Any]:
    """Return the first ``count`` elements that lie side by side in ``buffer``: the inverse of :func:`pack`.

    Parameters
    ----------
    buffer : ndarray of uint8
        One-dimensional bytes, at least ``dtype.nbytes(count)`` of them.
    dtype : DTypeLike
        The data type of the elements.
    count : int
        How many elements to return.

    Returns
    -------
    ndarray
        One-dimensional, of ``dtype.numpy``. Where elements are whole bytes it shares memory with ``buffer``
        (if that is contiguous); 4-bit elements are copied, one byte for each.

    Raises
    ------
    LayoutError
        The buffer is too short, or is no one-dimensional array of uint8.

    Examples
    --------
    >>> import numpy as np
    >>> unpack(np.array([0xE1, 0x03], np.uint8), "s4", 3)
    array([1, -2, 3], dtype=int4)
    """
    import numpy as np

    kind = _dtype(dtype)
    if buffer.dtype != np.uint8 or buffer.ndim != 1:
        raise LayoutError(
            f"unpack reads a 1-D array of uint8, got {counted(buffer.ndim, 'axis')} of {buffer.dtype}"
        )
    needed = kind.nbytes(count)
    if count < 0 or buffer.size < needed:
        raise LayoutError(
            f"{counted(count, 'element')} of {kind} need {counted(needed, 'byte')}, but the buffer has "
            f"{buffer.size}"
        )
    if kind.bits != 4:
        return np.ascontiguousarray(buffer[:needed]).view(kind.numpy)
    halves = np.empty((needed, 2), np.uint8)
    np.bitwise_and(buffer[:needed], 0x0F, out=halves[:, 0])
    np.right_shift(buffer[:needed], 4, out=halves[:, 1])
    elements: NDArray[Any] = halves.reshape(-1)[:count]
    if kind.is_signed:
        elements = (elements ^ 8).view(np.int8) - np.int8(8)  # the bit of weight 8 counts as -8
    return elements.astype(kind.numpy)


_dtype = dtype  # under a name that the parameters called dtype do not hide
