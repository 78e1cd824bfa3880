"""One array that lies contiguously in a file, as an array in chunks: each chunk is a run of rows.

A contiguous array is a chunked one whose chunks stand one behind the other, wherever it is cut, as long as
the cut leaves runs: along the outermost axis, or the next where a row of that is too big. So an npy file, an
array of a safetensors file or raw bytes are read in parts of some megabytes, each in one request, and no
more of them than is needed. Nothing is mapped: what a program has mapped counts as its memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from relayout import files
from relayout.errors import LayoutError, Unsupported, spelled_bytes
from relayout.exchange.mapped import Identity, is_mapped, map_offset, release
from relayout.files.arrays import physical_shape
from relayout.stores.buffers import taken
from relayout.stores.files import ChunkFile, check_unchanged
from relayout.stores.grid import Grid, Index
from relayout.stores.store import CARRIERS, Address, Bytes, Fingerprint, SourceChanged, digest
from relayout.tensor import Tensor

__all__ = ["File", "rows"]

PART: Final = 8 << 20
"""Bytes of a chunk, where rows are no longer than that."""


def rows(shape: Sequence[int], width: int, most: int = PART) -> tuple[int, ...]:
    """The sizes of chunks that are runs of bytes, of at most so many bytes if an axis allows it.

    Examples
    --------
    >>> rows((1000, 64, 56, 56), 4, 1 << 20), rows((2, 1000, 1000), 4, 1 << 20)
    ((1, 64, 56, 56), (1, 262, 1000))
    """
    chunk = [max(1, size) for size in shape]
    for axis in range(len(chunk)):
        row = width * prod(chunk[axis + 1 :])
        chunk[axis] = max(1, min(chunk[axis], most // row))
        if row <= most:
            break
    return tuple(chunk)


class _Unpacked:
    """An array that can't be read in parts, once for all who have the file open."""

    def __init__(self, tensor: Tensor, foreign: str | None) -> None:
        self.tensor, self.foreign = tensor, foreign


_UNPACKED: Final[WeakValueDictionary[tuple[Identity, Address], _Unpacked]] = WeakValueDictionary()


def _read(address: Address) -> tuple[Tensor, str | None]:
    """The array of a file, and what NumPy calls its elements if they are none of ours."""
    path, details, name = Path(address.path), address.details, address.name or None
    foreign = files.foreign_element(path, name) if details.get("dtype") is None else None
    tensor = files.read(
        path,
        details.get("format"),
        dims=details.get("dims"),
        dtype=details.get("dtype") if foreign is None else CARRIERS[8 * np.dtype(foreign).itemsize],
        name=name,
    )
    return tensor, foreign


class File:
    """An array in a file; see :class:`relayout.stores.store.Stored` for what it does. It is read only."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.path = Path(address.path)
        self._identity = os.stat(self.path)
        key = (Identity.of(self._identity), address)
        kept = _UNPACKED.get(key)
        tensor, foreign = _read(address) if kept is None else (kept.tensor, kept.foreign)
        self.desc = tensor.desc
        shape = physical_shape(self.desc)
        if shape is None:
            raise Unsupported(
                f"{address.spelled} holds {self.desc}, which lies with holes or in parts of bytes, so "
                "it can't "
                "be read in runs of rows; convert it as a file"
            )
        self._begin = map_offset(tensor.buffer, self.path)
        self._kept: _Unpacked | None = None
        self.held, self.note = 0, ""
        if self._begin is None:
            self._kept = _UNPACKED[key] = kept or _Unpacked(tensor, foreign)
            self._keep(tensor)
        self.width = self.desc.dtype.bits // 8
        self.chunks = rows(shape, self.width)
        self.grid = Grid(shape, self.chunks)
        self.element, self.fill, self.codecs = foreign or self.desc.dtype.name, b"", ""
        self.plain, self.header = self._begin is not None, b""
        self._strides = [self.width * prod(shape[axis + 1 :]) for axis in range(len(shape))]

    def _keep(self, tensor: Tensor) -> None:
        """Say what is taken by an array that is not read in parts."""
        size = tensor.buffer.size
        if not is_mapped(tensor.buffer):
            self.held = size
        if size > PART:
            where = "into memory, which counts" if self.held else "to a temporary file"
            self.note = (
                f"{self.address.spelled} is compressed and can't be read in parts: all of it, "
                f"{spelled_bytes(size)}, is unpacked {where}, in each process that reads it"
            )

    def read(self, chunk: Index, newest: int = 0) -> Bytes | None:
        """The bytes of a chunk."""
        box = self.grid.box(chunk)
        first = sum(start * step for (start, _), step in zip(box, self._strides, strict=True))
        size = self.width * prod(stop - start for start, stop in box)
        out = taken(self.width * prod(self.chunks))
        if self._kept is not None:
            out[:size] = self._kept.tensor.buffer[first : first + size]
            release(self._kept.tensor.buffer)  # of the file that it was unpacked to, where there is one
            return out
        assert self._begin is not None
        with self.path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            check_unchanged(self.path, status, newest)
            if status.st_size != self._identity.st_size:
                raise SourceChanged(f"{self.path} has another size than when it was opened")
            file.seek(self._begin + first)
            view, got = memoryview(out[:size].data), 0
            while got < size:
                count = file.readinto(view[got:])
                if not count:
                    raise LayoutError(f"{self.path} ends {size - got} bytes too early")
                got += count
        return out

    def name(self, chunk: Index) -> str:
        """The file itself, which has all chunks."""
        return self.path.name

    def opened(self, chunk: Index, newest: int = 0) -> ChunkFile:
        """The file, at the chunk."""
        assert self._begin is not None  # it is plain
        file = ChunkFile(self.path, newest)
        if file.size != self._identity.st_size:
            file.close()
            raise SourceChanged(f"{self.path} has another size than when it was opened")
        box = self.grid.box(chunk)
        first = sum(start * step for (start, _), step in zip(box, self._strides, strict=True))
        file.begin = self._begin + first
        return file

    def encode(self, data: Bytes) -> Sequence[Bytes]:
        """A chunk as it lies in the file."""
        return [data]

    def write(self, chunk: Index, data: Bytes) -> str:
        """Nothing: a file is written as a whole, by :mod:`relayout.files`."""
        raise Unsupported(f"chunks can't be written into the file {self.path}")

    def stored_bytes(self, chunk: Index) -> int:
        """Bytes of the rows of a chunk."""
        return self.width * prod(stop - start for start, stop in self.grid.box(chunk))

    def write_parts(self, chunk: Index, parts: Iterable[Bytes]) -> str:
        """Nothing, as :meth:`write`."""
        raise Unsupported(f"chunks can't be written into the file {self.path}")

    def fingerprint(self) -> Fingerprint:
        """Size and time of the file."""
        status = os.stat(self.path)
        text = digest([str(self.desc), status.st_size, status.st_mtime_ns])
        return Fingerprint(text, status.st_mtime_ns, self.grid.total, np.int64(self.desc.nbytes).item())

    def begin(self) -> None:
        """Nothing."""

    def commit(self) -> None:
        """Nothing."""

    def facts(self) -> Mapping[str, str]:
        """The kind of file."""
        return {"store": f"array in a {self.path.suffix} file, read in runs of rows"}
