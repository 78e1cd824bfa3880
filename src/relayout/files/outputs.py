"""Arrays that are to be written into a file that holds several."""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from relayout.errors import LayoutError, Unsupported
from relayout.exchange.mapped import release
from relayout.files.arrays import StoredArray, stored_form
from relayout.files.descriptor import descriptor_to_text
from relayout.files.elements import OPAQUE, by_code, by_descr, by_dtype
from relayout.files.members import Member
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc

__all__ = ["Output", "Writer", "converted", "copy", "kept"]

COPIED: Final = 1 << 24  # bytes copied before their pages are handed back


class Output(NamedTuple):
    """An array to be written: all that stands in a file but its elements."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    element: str
    """Its element type as the kind of file calls it."""
    text: str | None
    """Its descriptor, or None where the file says it all."""


class Writer(Protocol):
    """A file that is being written, array by array, in the order in which they were announced."""

    def room(self, output: Output) -> AbstractContextManager[NDArray[np.uint8]]:
        """The bytes of an array, zeros that are to be overwritten in the block."""

    def carry(self, source: Path, names: list[str]) -> None:
        """Copy members of another file of the same kind as they are."""


def converted(name: str, desc: MemoryDesc, kind: str) -> Output:
    """What is written for a tensor, in a file of kind ``npz`` or ``safetensors``.

    Raises
    ------
    LayoutError
        The tensor has no layout, or its elements share places (broadcast).
    """
    form = stored_form(desc)
    type_name = form.desc.dtype.name
    element = by_dtype["u8" if form.as_bytes else type_name]
    opaque = kind == "npz" and type_name in OPAQUE
    text = descriptor_to_text(form.desc) if opaque or not form.says_it_all else None
    if kind == "safetensors":
        called = element.code
    else:
        called = f"|V{element.bits // 8}" if opaque else element.descr
    assert called is not None
    return Output(name, form.shape, form.nbytes, called, text)


def kept(member: Member, kind: str) -> Output:
    """What is written for an array that is copied as it is.

    Raises
    ------
    Unsupported
        This kind of file has no name for its element type.
    LayoutError
        Its descriptor is damaged.
    """
    array, described = member.array, member.described()
    meant = (array if array.dtype is None else array.dtype) if described is None else described.dtype
    if described is not None and described.dtype.bits < 8:
        element = by_dtype["u8"]
    elif meant is not array:
        element = by_dtype[str(meant)]
    else:
        found = by_code.get(array.type_name) or by_descr.get(array.type_name)
        if found is None:
            raise Unsupported(_no_name(array, kind))
        element = found
    called = element.code if kind == "safetensors" else element.descr
    if called is None:
        raise Unsupported(_no_name(array, kind))
    text = None if described is None else descriptor_to_text(described)
    return Output(member.name, array.shape, prod(array.shape) * array.bits // 8, called, text)


def copy(array: StoredArray, out: NDArray[np.uint8]) -> None:
    """Write the elements of an array in C order."""
    data = array.load()
    if array.strides is not None:
        element = np.dtype(f"V{array.bits // 8}")
        strides = [stride * element.itemsize for stride in array.strides]
        if out.size:
            out.view(element).reshape(array.shape)[...] = as_strided(
                data[: data.size // element.itemsize * element.itemsize].view(element), array.shape, strides
            )
        return
    if data.size != out.size:
        raise LayoutError(f"{array.where} has {data.size} bytes where {out.size} are expected")
    for start in range(0, data.size, COPIED):
        out[start : start + COPIED] = data[start : start + COPIED]
        release(data)
        release(out)


def _no_name(array: StoredArray, kind: str) -> str:
    type_name = array.dtype or array.type_name
    way = (
        "; convert it to a type that NumPy knows (--name, --dtype), or write a .safetensors file"
        if kind == "npz"
        else "; leave it out (--only), or write a file of the kind that it comes from"
    )
    return f"{array.where} holds {spelled(str(type_name))}, for which {kind} files have no name{way}"
