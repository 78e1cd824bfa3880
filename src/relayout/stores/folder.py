"""A folder of npy or raw files, one a chunk, and a description.

::

    x.chunks/relayout.json       {"relayout": 1, "descriptor": {"dims": ..., "dtype": ..., "format": ...},
                                  "chunks": [1, 2, 56, 56, 16], "files": "npy"}
    x.chunks/0.0.0.0.0.npy       an array of the shape of a chunk; the name has the numbers of the chunk
    x.chunks/0.1.0.0.0.npy

It is the store that needs nothing: any program reads its files, and who can't write Zarr can write these. All
files have the shape of a full chunk; what lies beyond the array is zeros. With ``"files": "bin"`` they are
the bytes alone, and with ``"little"`` byte order in either case. Elements of a type that is moved and not
converted are named by ``"element": "uint16"``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError, TooLarge, Unsupported, described
from relayout.exchange.mapped import open_regular
from relayout.files.arrays import physical_shape
from relayout.files.descriptor import (
    LONGEST_TEXT,
    descriptor_from_json,
    descriptor_to_json,
    json_from_text,
)
from relayout.files.elements import by_dtype
from relayout.files.spelling import spelled
from relayout.layout.layout import MAX_ELEMENTS
from relayout.stores.buffers import PAGE
from relayout.stores.files import (
    DIRECT,
    ChunkFile,
    fingerprint,
    names_chunk,
    read_whole,
    remove_parts,
    size_of_file,
    write_whole,
)
from relayout.stores.grid import Grid, Index
from relayout.stores.run import check_complete
from relayout.stores.store import Address, Bytes, Fingerprint

__all__ = ["DESCRIPTION", "Folder"]

DESCRIPTION: Final = "relayout.json"

LENGTH_AT: Final = 8
"""Where an npy file of version 1.0 says how long its header is, in two bytes: behind magic and version."""

MOST_HEADER: Final = 4096
"""Bytes of the header of an npy file that are read; those of numbers take about a hundred, and a page at most
where we have written them."""


class Folder:
    """An array in a folder; see :class:`relayout.stores.store.Stored` for what it does."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.folder = Path(address.path)
        told = address.details.get("create")
        if told is None:
            check_complete(self.folder)
            told = _described(self.folder)
        where = self.folder / DESCRIPTION
        try:
            self.desc = descriptor_from_json(told["descriptor"])
            self.chunks = _sizes(told["chunks"])
            self.kind = told.get("files", "npy")
            shape = physical_shape(self.desc)
            if shape is None or self.kind not in ("npy", "bin"):
                raise Unsupported(f"{self.desc} in files of kind {self.kind!r}: there is no such store")
            self.grid = Grid(shape, self.chunks)
        except LayoutError as error:
            raise type(error)(f"{where}: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise LayoutError(f"{where} is no description of an array in chunks: {error!r}") from None
        self.told = told
        self.element = told.get("element", self.desc.dtype.name)
        self._descr = self._named(self.element)
        self.fill = b""
        self.codecs = ""
        self.nbytes = prod(self.chunks) * (self.desc.dtype.bits // 8)
        self.plain, self.header = True, self._header()
        self.held, self.note = 0, ""
        if self.nbytes > MAX_ELEMENTS // 8:
            raise TooLarge(f"{where}: chunks {list(self.chunks)} are larger than any file")

    def _named(self, element: Any) -> str:
        """NumPy's spelling of the type of the elements."""
        bits = self.desc.dtype.bits
        if element == self.desc.dtype.name:
            return by_dtype[element].descr or f"|V{bits // 8}"
        try:
            known = np.dtype(element if isinstance(element, str) else "")
        except (TypeError, ValueError, SyntaxError):
            known = None
        if known is None or known.kind not in "biufcV" or known.fields or known.itemsize * 8 != bits:
            raise LayoutError(
                f"{self.folder / DESCRIPTION}: element is the name of a NumPy type of {bits} bits, "
                f"got {described(element)}"
            )
        return str(known.newbyteorder("<").str)

    @staticmethod
    def create(desc: Any, chunks: tuple[int, ...], kind: str = "npy", element: str = "") -> dict[str, Any]:
        """The description of a new array; ``element``: NumPy's name of a type that is none of ours."""
        told = {"relayout": 1, "descriptor": descriptor_to_json(desc), "chunks": list(chunks), "files": kind}
        return {**told, "element": element} if element else told

    def name(self, chunk: Index) -> str:
        """The file of a chunk."""
        return f"{'.'.join(map(str, chunk)) or '0'}.{self.kind}"

    def _path(self, chunk: Index) -> Path:
        return self.folder / self.name(chunk)

    def read(self, chunk: Index, newest: int = 0) -> Bytes | None:
        """The bytes of a chunk."""
        path = self._path(chunk)
        data = read_whole(path, newest, self.nbytes + MOST_HEADER)
        if data is None:
            return None
        begin = self._check_header(path, data[:MOST_HEADER].tobytes()) if self.kind == "npy" else 0
        self._check_size(path, data.size - begin)
        return data[begin:]

    def opened(self, chunk: Index, newest: int = 0) -> ChunkFile | None:
        """The file of a chunk."""
        path = self._path(chunk)
        try:
            file = ChunkFile(path, newest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            if self.kind == "npy":
                file.begin = self._check_header(path, file.head(MOST_HEADER))
            self._check_size(path, file.size - file.begin)
        except BaseException:
            file.close()
            raise
        return file

    def _check_size(self, path: Path, size: int) -> None:
        if size != self.nbytes:
            raise LayoutError(
                f"{path} has {size} bytes of elements; a chunk {list(self.chunks)} of "
                f"{self.desc.dtype} takes {self.nbytes}"
            )

    def _check_header(self, path: Path, head: bytes) -> int:
        file = io.BytesIO(head)
        try:
            version = np.lib.format.read_magic(file)
            reader = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            shape, fortran, dtype = reader[version](file)
        except Exception as error:  # a header is Python source, and what can go wrong in it is without end
            raise LayoutError(f"{path} is no npy file: {spelled(str(error)[:200])}") from None
        if (
            tuple(shape) != self.chunks
            or (fortran and len(shape) > 1)
            or dtype.str != np.dtype(self._descr).str
        ):
            raise LayoutError(
                f"{path} holds an array of shape {list(shape)} of {dtype.str}"
                f"{', in Fortran order' if fortran else ''}; the description says {list(self.chunks)} of "
                f"{self._descr}"
            )
        return file.tell()

    def encode(self, data: Bytes) -> Sequence[Any]:
        """A chunk as it is written."""
        return [self.header, data]

    def _header(self) -> bytes:
        """What stands before the elements.

        Of large chunks it fills a page, with the spaces that the format allows: then the elements can be
        written past the system's memory.
        """
        if self.kind == "bin":
            return b""
        header = io.BytesIO()
        told = {"descr": self._descr, "fortran_order": False, "shape": self.chunks}
        np.lib.format.write_array_header_1_0(header, told)
        made = header.getvalue()
        if self.nbytes < DIRECT:
            return made
        length = PAGE - LENGTH_AT - 2
        text = made[LENGTH_AT + 2 : -1].ljust(length - 1) + b"\n"
        return made[:LENGTH_AT] + length.to_bytes(2, "little") + text

    def write(self, chunk: Index, data: Bytes) -> str:
        """Write a chunk."""
        return self.write_parts(chunk, [data])

    def write_parts(self, chunk: Index, parts: Iterable[Bytes]) -> str:
        """Write a chunk from its parts."""
        path = self._path(chunk)
        # Files of bytes alone are intermediate stores mostly, which are read again soon.
        write_whole(path, parts, self.kind == "npy" and self.nbytes >= DIRECT, header=self.header)
        return str(path)

    def stored_bytes(self, chunk: Index) -> int:
        """Bytes of the file of a chunk."""
        return size_of_file(self._path(chunk))

    def fingerprint(self) -> Fingerprint:
        """Description, and all files of chunks."""
        first = (0,) * len(self.chunks)
        return fingerprint(self.told, self.folder, names_chunk(self._path(first).name, self.grid.counts))

    def begin(self) -> None:
        """Make the folder (that of an intermediate store)."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def commit(self) -> None:
        """Write the description."""
        remove_parts(self.folder)
        write_whole(self.folder / DESCRIPTION, [(json.dumps(self.told) + "\n").encode()], lasting=True)

    def facts(self) -> Mapping[str, str]:
        """The kind of its files."""
        return {"store": f"folder of {self.kind} files"}


def _sizes(given: Any) -> tuple[int, ...]:
    """The sizes of a chunk, as a description has them."""
    if not isinstance(given, list) or not all(
        type(size) is int and 1 <= size <= MAX_ELEMENTS for size in given
    ):
        raise LayoutError(f"chunks are a list of whole numbers from 1 on, got {described(given)}")
    return tuple(given)


def _described(folder: Path) -> dict[str, Any]:
    where = folder / DESCRIPTION
    try:
        with open_regular(where) as file:
            data = json_from_text(file.read(LONGEST_TEXT + 1))
    except FileNotFoundError:
        raise LayoutError(f"{folder} holds no {DESCRIPTION}, which says what its files are") from None
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None
    if not isinstance(data, dict) or data.get("relayout") != 1:
        raise LayoutError(f"{where} is no description of an array in chunks")
    return data
