"""How an array in a file becomes a tensor, and how a tensor becomes an array in a file.

npy, npz and safetensors hold *arrays*: a shape, an element type and bytes. A memory format is neither, so
there is one rule that ties them together:

    The array in the file has one axis for each digit of the format, outermost first, and its bytes are in C
    order.

This is the *physical shape*. Any NumPy user can load it and sees exactly what lies in memory::

    dims (1, 17, 2, 2) in ...      array in the file
    nchw                           [1, 17, 2, 2]
    nhwc                           [1, 2, 2, 17]
    nChw8c                         [1, 3, 2, 2, 8]      n, c//8, h, w, c%8; of 24 channels 7 are padding

Read the other way round, the shape of a plain format gives the dims. That of a blocked one does not (17
channels or 24?), and neither says which axis is which. So a *descriptor* (:mod:`relayout.files.descriptor`)
is stored along, inside of the file or beside it, except where the array says it all: row-major order and an
element type that the container knows.

Three things have no physical shape and are stored as a line of elements or bytes, with a descriptor: layouts
with holes (rows with a pitch, parts of bigger tensors), 4-bit elements (bytes of two), formats of more than
32 digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DType, DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported, checked, counted
from relayout.files.elements import by_code, by_descr
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, check_dims, plain, spell_dims
from relayout.tensor import Tensor, from_buffer

__all__ = ["Given", "StoredArray", "StoredForm", "physical_shape", "stored_form", "to_desc", "to_tensor"]

MOST_AXES = 32  # of an array in NumPy before version 2


class Given(NamedTuple):
    """What the caller says about a file; None: nothing."""

    format: str | Format | None = None
    dims: tuple[int, ...] | None = None
    dtype: DType | None = None
    name: str | None = None
    to: Format | None = None
    """The format to convert to; where its axes have a meaning, those of the file need one, too."""

    @classmethod
    def make(
        cls,
        format: str | Format | None,
        dims: Sequence[int] | None,
        dtype: DTypeLike | None,
        name: str | None,
    ) -> Given:
        """Check and keep it."""
        sizes = None if dims is None else check_dims(dims)
        return cls(format, sizes, None if dtype is None else as_dtype(dtype), name)


class StoredArray(NamedTuple):
    """An array as it lies in a file."""

    where: str
    """The file, and the name within it, for messages."""
    load: Callable[[], NDArray[np.uint8]]
    """Gives the bytes of the elements, no more and no less; mapped, where that is possible."""
    nbytes: int
    """How many bytes these are."""
    shape: tuple[int, ...]
    type_name: str
    """The element type as the file calls it."""
    bits: int
    """Bits an element."""
    dtype: DType | None
    """The element type, where it is one of ours."""
    strides: tuple[int, ...] | None = None
    """Elements between neighbours of each axis; None: C order."""

    @property
    def kind(self) -> str:
        """The element type in one spelling for all kinds of files: ours, or that of safetensors."""
        if self.dtype is not None:
            return self.dtype.name
        known = by_descr.get(self.type_name)
        return self.type_name if known is None or known.code is None else known.code

    @property
    def is_convertible(self) -> bool:
        """False for the types that can be copied, but not converted: truth values, unsigned integers, ...."""
        element = by_code.get(self.kind)
        return element is None or element.dtype is not None


class StoredForm(NamedTuple):
    """The array that a tensor is stored as."""

    desc: MemoryDesc
    """What is in the file: the same elements, beginning at byte 0."""
    shape: tuple[int, ...]
    as_bytes: bool
    """Whether the elements of the array are bytes (of 4-bit elements)."""
    says_it_all: bool
    """Whether the array can be read right without a descriptor, if the container knows its element type."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * (1 if self.as_bytes else self.desc.dtype.bits // 8)


def physical_shape(desc: MemoryDesc) -> tuple[int, ...] | None:
    """The extents of the digits in memory order, outermost first; None where the elements don't lie densely.

    Examples
    --------
    >>> import relayout as rl
    >>> physical_shape(rl.MemoryDesc((1, 17, 2, 2), "f32", "nChw8c"))
    (1, 3, 2, 2, 8)
    >>> physical_shape(rl.MemoryDesc((2, 3), "f32", strides=(10, 1))) is None
    True
    """
    format = checked(desc, MemoryDesc, "desc", "a MemoryDesc").format
    if format is None or desc.dtype.bits < 8:
        return None
    shape = tuple(digit.extent for digit in Layout._dense(desc.dims, format).digits)
    return shape if len(shape) <= MOST_AXES else None


def stored_form(desc: MemoryDesc) -> StoredForm:
    """Choose the array that a tensor is stored as.

    Raises
    ------
    LayoutError
        The tensor has no layout, or its elements share places (broadcast).
    """
    if desc.layout is None:
        raise LayoutError(f"{desc} has no layout, so no bytes can be written; decide on a format first")
    format = desc.format
    if format is not None:
        compact = MemoryDesc._make(desc.dims, desc.dtype, Layout._dense(desc.dims, format))
    elif desc.layout.room().is_injective():
        low, _ = desc.layout.bounds()
        compact = MemoryDesc._make(desc.dims, desc.dtype, desc.layout.moved(desc.layout.offset0 - low))
    else:
        raise LayoutError(
            f"elements of {desc} share places (broadcast); reorder it into a format, then write it"
        )
    if desc.dtype.bits < 8:
        return StoredForm(compact, (compact.required_bytes,), True, False)
    shape = physical_shape(compact)
    if shape is None:
        return StoredForm(compact, (compact.required_bytes * 8 // desc.dtype.bits,), False, False)
    return StoredForm(compact, shape, False, format == plain(desc.rank))


def to_tensor(
    array: StoredArray, given: Given, described: MemoryDesc | None = None, described_in: str = ""
) -> Tensor:
    """Say what the bytes of an array mean, by its descriptor and by what the caller says.

    Raises
    ------
    LayoutError
        They contradict each other or the array, or they leave something open.
    """
    desc = to_desc(array, given, described, described_in)
    return from_buffer(array.load(), desc)


def to_desc(
    array: StoredArray, given: Given, described: MemoryDesc | None = None, described_in: str = ""
) -> MemoryDesc:
    """The descriptor in :func:`to_tensor`. No bytes are read for it."""
    if described is not None:
        _check_agreement(array.where, given, described, described_in)
        if not _fits(array, described):
            raise LayoutError(
                f"{array.where} holds {_held(array)}, but its descriptor {described_in} says {described}; "
                "remove it if it is out of date"
            )
        return described
    kind = _element_type(array, given.dtype)
    _check_meaning(array, given, kind)
    if given.dims is not None:
        return _with_dims(array, given, given.dims, kind)
    if kind.bits < 8:
        raise LayoutError(
            f"{array.where} holds bytes of {kind} elements; say how many there are on each axis (dims)"
        )
    format = plain(len(array.shape)) if given.format is None else _plain_format(array, given.format, kind)
    if array.strides is None:
        dims = [0] * len(array.shape)
        for position, (axis, _) in enumerate(format.order):
            dims[axis] = array.shape[position]
        return MemoryDesc(dims, kind, Layout(dims, format))
    dims, strides = [0] * len(array.shape), [0] * len(array.shape)
    for position, (axis, _) in enumerate(format.order):
        dims[axis], strides[axis] = array.shape[position], array.strides[position]
    return MemoryDesc(dims, kind, Layout(dims, strides=strides))


def described_tensor(where: str, data: NDArray[np.uint8], described: MemoryDesc) -> Tensor:
    """A tensor whose bytes are all of ``data``."""
    needed = described.required_bytes
    if data.size != needed:
        raise LayoutError(f"{where} has {data.size} bytes, but {described} takes {needed}")
    return from_buffer(data, described)


def check_agreement(where: str, given: Given, described: MemoryDesc, described_in: str) -> None:
    """Refuse what contradicts a descriptor."""
    _check_agreement(where, given, described, described_in)


# -- workings -------------------------------------------------------------------------------------------


def _check_agreement(where: str, given: Given, described: MemoryDesc, described_in: str) -> None:
    wrong = None
    if given.dims is not None and given.dims != described.dims:
        wrong = f"dims {spell_dims(given.dims)}"
    elif given.dtype is not None and given.dtype != described.dtype:
        wrong = f"data type {given.dtype}"
    elif given.format is not None:
        asked = MemoryDesc(described.dims, described.dtype, given.format)
        if asked.layout is None or not asked.layout.same_bytes(described.layout):
            wrong = f"format {given.format}"
    if wrong is not None:
        raise LayoutError(
            f"{where} is described by {described_in} as {described}, which contradicts the {wrong} that was "
            "given; leave that "
            "out, or remove the descriptor if it is out of date"
        )


def _fits(array: StoredArray, desc: MemoryDesc) -> bool:
    """Whether an array can hold a tensor: in its physical shape or as a line (of bytes, if 4-bit)."""
    half = desc.dtype.bits < 8
    known = array.dtype is None or array.dtype == ("u8" if half else desc.dtype)
    bits = 8 if half else desc.dtype.bits
    shaped = array.strides is None and (len(array.shape) == 1 or array.shape == physical_shape(desc))
    return known and array.bits == bits and shaped and array.nbytes == desc.required_bytes


def _element_type(array: StoredArray, asked: DType | None) -> DType:
    if array.bits % 8:
        raise Unsupported(
            f"{array.where} holds {array.type_name}, elements of {array.bits} bits, which Relayout does not "
            "offer"
        )
    if asked is None:
        if array.dtype is None:
            raise LayoutError(
                f"{array.where} holds elements of {array.bits // 8} bytes whose type is called "
                f"{array.kind!r}, which is none of the data types of Relayout; if it stands for one of "
                "them (bf16 and f8 in npy files, say), name it with the data type of the input "
                "(--in-dtype, src_dtype)"
            )
        return array.dtype
    bits = array.bits
    as_raw_bytes = array.dtype == "u8" and (asked.bits == 8 or asked.bits < 8)
    if array.dtype is asked or as_raw_bytes or (array.dtype is None and bits == asked.bits):
        return asked
    raise LayoutError(
        f"{array.where} holds {array.kind}, not {asked}; the data type of the input says "
        "what bytes mean and converts nothing"
    )


def _check_meaning(array: StoredArray, given: Given, kind: DType) -> None:
    """Refuse to guess what the axes of an array mean where the format to convert to has a meaning."""
    rank = len(array.shape if given.dims is None else given.dims)
    if given.to is None or given.format is not None or rank < 2:
        return
    to = given.to if given.to.rank is not None else given.to.resolve(rank, kind.name)
    if to.roles is not None:
        raise LayoutError(
            f"{array.where} holds {_held(array)}, and nothing says what its axes mean, so it can't be "
            f"converted to {given.to}; say the format it is in: --from nchw, --from nhwc, ... (src_format)"
        )


def _with_dims(array: StoredArray, given: Given, dims: tuple[int, ...], kind: DType) -> MemoryDesc:
    desc = MemoryDesc(dims, kind, plain(len(dims)) if given.format is None else given.format)
    if desc.layout is None:
        raise LayoutError(
            f"the bytes of {array.where} can't be in the format {given.format}; name one that has a layout"
        )
    form = stored_form(desc)
    if array.shape not in (form.shape, (prod(form.shape),)):
        raise LayoutError(
            f"{array.where} holds {_held(array)}; {desc} is stored as an array of shape {list(form.shape)}"
            + (" of bytes" if form.as_bytes else "")
        )
    if array.strides is not None:
        raise LayoutError(
            f"{array.where} has strides {array.strides}, not C order, so its bytes aren't in {desc}; save it "
            "in C order, or leave out the dims"
        )
    return desc


def _plain_format(array: StoredArray, text: str | Format, kind: DType) -> Format:
    """The format of an array without further words: one whose digits are its axes."""
    format, rank = Format(text), len(array.shape)
    wanted = format.rank if format.rank is not None else rank
    blocked = format.rank is not None and any(format.radices)
    if wanted != rank and not blocked:
        raise LayoutError(
            f"{array.where} holds {_held(array)}, which has {counted(rank, 'axis')}; the format {format} has "
            f"{wanted}"
        )
    if not blocked:
        format = format.resolve(rank, kind.name)
        blocked = any(format.radices) or any(len(term) > 1 for term in format.terms)
    if blocked:
        raise LayoutError(
            f"{array.where} holds {_held(array)}, from which nobody can tell the dims of a tensor in "
            f"{format}, where padding fills the last "
            "blocks; say the dims, or put the descriptor beside the file"
        )
    return format


def _held(array: StoredArray) -> str:
    order = f" with strides {list(array.strides)}" if array.strides is not None else ""
    return f"an array of shape {list(array.shape)} of {array.kind}{order}"
