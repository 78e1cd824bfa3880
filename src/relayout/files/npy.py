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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.exchange.mapped import flush, map_for_writing
from relayout.files.arrays import Given, StoredArray, stored_form
from relayout.files.atomic import reserve
from relayout.files.beside import description, map_described, replacing_described
from relayout.files.members import Member, Opened
from relayout.files.outputs import converted
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor

__all__ = ["MOST_HEADER", "create", "header", "opened", "parse", "read"]

SUFFIXES: Final = (".npy",)
MOST_HEADER: Final = 1 << 17  # no honest header is longer than some hundred bytes


def read(path: Path, given: Given) -> Tensor:
    """Map an npy file."""
    return opened(path).tensor(given._replace(name=None))  # there is only one, whatever it is called


@contextmanager
def create(path: Path, desc: MemoryDesc, name: str | None, force: bool) -> Iterator[Tensor]:
    """Make an npy file for a tensor, to be filled; it gets its name when the block ends."""
    form, output = stored_form(desc), converted("", desc, "npz")
    head = header(output.element, output.shape)
    text = None if output.text is None else description(form.desc)
    with replacing_described(path, force, text) as file:
        reserve(file, len(head) + form.nbytes, path)
        file.write(head)
        file.flush()
        data = map_for_writing(file)
        yield Tensor(form.desc, data[len(head) :])
        flush(data)


def opened(path: Path) -> Opened:
    """The one array of an npy file, without its elements."""
    data, described, where = map_described(path)
    array = parse(data[:MOST_HEADER].tobytes(), data.size, lambda: data, spelled(path))
    return Opened(path, "npy", [""], lambda _: Member("", array, lambda: described, where))


def parse(head: bytes, size: int, load: Callable[[], NDArray[np.uint8]], where: str) -> StoredArray:
    """Read the header of an npy file.

    Parameters
    ----------
    head : bytes
        The first bytes of the file, as many as a header may have, or all of them.
    size : int
        Bytes of the whole file.
    load : callable
        Gives all bytes of the file.
    where : str
        The file, for messages.

    Raises
    ------
    LayoutError
        The header is damaged, the elements are no numbers, or the file is shorter or longer than the header
        says.
    """
    shape, fortran, given, begin = _header(head, where)
    if given.kind == "O" or given.names is not None or given.subdtype is not None or not given.itemsize:
        raise LayoutError(
            f"{where} holds elements of type {given}, which are no numbers (and are not unpickled)"
        )
    if any(n < 0 for n in shape):
        raise LayoutError(f"{where} claims the shape {list(shape)}; a size can't be negative")
    needed, there = prod(shape) * given.itemsize, size - begin
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
    strides = None
    if fortran and len(shape) > 1:
        strides = tuple(prod(n or 1 for n in shape[:axis]) for axis in range(len(shape)))
    return StoredArray(
        where, lambda: load()[begin:], needed, shape, given.str, 8 * given.itemsize, known, strides
    )


def header(descr: str, shape: tuple[int, ...]) -> bytes:
    """The header of an array in C order."""
    made = io.BytesIO()
    npy_format.write_array_header_1_0(made, {"descr": descr, "fortran_order": False, "shape": shape})
    return made.getvalue()


def _header(head: bytes, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file: BinaryIO = io.BytesIO(head)
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
        what = spelled(str(error).splitlines()[0]) if str(error) else type(error).__name__
        raise LayoutError(f"{where} is no npy file: {what}") from None
    return shape, fortran, given, file.tell()
