r"""NumPy's npy: a header, and the bytes of one array.

::

    \x93NUMPY  version  header length  {'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 2, 2, 8)}
    bytes

The header can say nothing else, so a descriptor lies beside the file (``x.npy.layout.json``). bf16 and f8,
which NumPy does not know, are stored as opaque elements (``|V2``, ``|V1``), as NumPy itself stores those of
ml_dtypes, and their names are in the descriptor.

Headers are read by :mod:`numpy.lib.format`; nothing is ever unpickled, and the bytes are mapped, not loaded.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.files.arrays import Given, StoredArray, StoredForm, stored_form, to_tensor
from relayout.files.atomic import reserve
from relayout.files.beside import description, map_described, replacing_described
from relayout.files.mapped import flush, map_for_writing
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor

__all__ = ["create", "header", "parse", "read", "says_it_all"]

SUFFIXES: Final = (".npy",)
OPAQUE: Final = frozenset({"bf16", "f8_e4m3", "f8_e5m2"})
MOST_HEADER: Final = 1 << 17  # no honest header is longer than some hundred bytes


def read(path: Path, given: Given) -> Tensor:
    """Map an npy file."""
    data, described, where = map_described(path)
    return to_tensor(parse(data, spelled(path)), given, described, where)


@contextmanager
def create(path: Path, desc: MemoryDesc, name: str | None, force: bool) -> Iterator[Tensor]:
    """Make an npy file for a tensor, to be filled; it gets its name when the block ends."""
    form = stored_form(desc)
    head = header(form)
    text = None if says_it_all(form) else description(form.desc)
    with replacing_described(path, force, text) as file:
        reserve(file, len(head) + form.nbytes, path)
        file.write(head)
        file.flush()
        data = map_for_writing(file)
        yield Tensor(form.desc, data[len(head) :])
        flush(data)


def parse(data: NDArray[np.uint8], where: str) -> StoredArray:
    """Read the header of an npy file, given all of its bytes.

    Raises
    ------
    LayoutError
        The header is damaged, the elements are no numbers, or the file is shorter or longer than the header
        says.
    """
    shape, fortran, given, begin = _header(data, where)
    if given.kind == "O" or given.names is not None or given.subdtype is not None or not given.itemsize:
        raise LayoutError(
            f"{where} holds elements of type {given}, which are no numbers (and are not unpickled)"
        )
    if any(n < 0 for n in shape):
        raise LayoutError(f"{where} claims the shape {list(shape)}; a size can't be negative")
    needed, there = prod(shape) * given.itemsize, data.size - begin
    if needed != there:
        kind = "truncated" if there < needed else "damaged"
        raise LayoutError(
            f"{where} is {kind}: an array of shape {list(shape)} of {given} takes {needed} bytes, the file "
            f"has {there}"
        )
    try:
        known = as_dtype(given)
    except LayoutError:
        if not given.isnative:
            raise LayoutError(
                f"{where} holds {given}, whose bytes are in foreign order; save it in native order"
            ) from None
        known = None
    return StoredArray(where, data[begin:], shape, str(given), given.itemsize, known, fortran)


def header(form: StoredForm) -> bytes:
    """The header of the array that a tensor is stored as."""
    kind = form.desc.dtype
    if form.as_bytes:
        descr = "|u1"
    elif kind.name in OPAQUE:
        descr = f"|V{kind.bits // 8}"
    else:
        descr = npy_format.dtype_to_descr(kind.numpy)  # type: ignore[assignment]
    made = io.BytesIO()
    npy_format.write_array_header_1_0(made, {"descr": descr, "fortran_order": False, "shape": form.shape})
    return made.getvalue()


def says_it_all(form: StoredForm) -> bool:
    """Whether the array is enough, without a descriptor."""
    return form.says_it_all and form.desc.dtype.name not in OPAQUE


def _header(data: NDArray[np.uint8], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file: BinaryIO = io.BytesIO(data[:MOST_HEADER].tobytes())
    try:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            shape, fortran, given = npy_format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, given = npy_format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} is not known")
    except (
        Exception
    ) as error:  # the header is Python source, and what can go wrong in reading it is without end
        raise LayoutError(
            f"{where} is no npy file: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from None
    return shape, fortran, given, file.tell()
