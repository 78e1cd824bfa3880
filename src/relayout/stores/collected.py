"""Chunks that several tasks write parts of, from the first part to the name in the store.

A chunk that one task writes is written under another name and renamed. One that many tasks write parts of
belongs to none of them, so somebody has to keep it until all have written. That is :class:`Collected`, and
this is the life of a chunk in it::

                opened                written                 finished
    nothing  ----------->  .relayout/parts/c/0/3  ---------------------->  c/0/3
                            |   ^   parts, in any order, |                   |
                            +---+   as often as you like +<------------------+
                                                                 resumed

*opened*    the file has its full size and its header, and zeros where nobody has written yet. Whoever comes
            first makes it, whoever comes later finds it so
*written*   a part goes to its place. A task that runs twice, or at the same time twice, writes the same bytes
            to the same places
*finished*  when all tasks are done: each file gets its name in the store by a rename. If that is interrupted
            some have their names already; it is done again, and those stay
*resumed*   tasks are to be done again although some files have their names: these are collected again, since
            nothing in the store may be half written

Whether a chunk is there as it was written is asked in either place (:meth:`Collected.stored_bytes`).

The intermediate store of two passes is collected where it stays, as nobody takes it for complete anyway.
There *finished* and *resumed* are nothing to do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from relayout.files.atomic import naming
from relayout.stores.files import AT_ONCE, size_of_file
from relayout.stores.grid import Index
from relayout.stores.journal import sync_folders
from relayout.stores.scatter import Region, runs
from relayout.stores.store import Bytes, Stored

__all__ = ["PARTS", "Collected", "PartialChunk"]

PARTS: Final = "parts"
"""The folder of an incomplete destination in which its chunks are collected, among its other workings."""


class PartialChunk:
    """The file of one chunk, open for parts to be written; a context that closes it.

    Parameters
    ----------
    path : Path
        The file. It is made if it is not there, and its folders are.
    header : bytes
        What stands before the elements.
    nbytes : int
        Bytes of the elements.

    Raises
    ------
    OSError
        It can't be written, or is a link.
    """

    def __init__(self, path: Path, header: bytes, nbytes: int) -> None:
        self.path, self._begin = path, len(header)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        with naming(path):
            try:
                self._handle = os.open(path, flags, 0o666)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._handle = os.open(path, flags, 0o666)
            try:
                # Always, as after a power failure a file may have its size and nothing in it.
                self._write(np.frombuffer(header, np.uint8), 0)
                size = len(header) + nbytes
                if os.fstat(self._handle).st_size != size:  # whoever else sees that does the same
                    os.ftruncate(self._handle, size)
            except BaseException:
                os.close(self._handle)
                raise

    def write(self, data: Bytes, at: int) -> None:
        """Write a part, ``at`` bytes behind the first element."""
        with naming(self.path):
            self._write(data, self._begin + at)

    def _write(self, data: Bytes, at: int) -> None:
        left = data.data
        os.lseek(self._handle, at, os.SEEK_SET)
        while len(left):
            left = left[os.write(self._handle, left[:AT_ONCE]) :]

    def __enter__(self) -> PartialChunk:
        return self

    def __exit__(self, *error: object) -> None:
        with naming(self.path):
            os.close(self._handle)


class Collected:
    r"""The chunks of a store that several tasks write parts of.

    Parameters
    ----------
    stored : Stored
        The destination; its files have chunks as they are (:attr:`Stored.plain`).
    folder : Path
        Where the files are collected until they are finished.

    Examples
    --------
    >>> import json, tempfile
    >>> from relayout import MemoryDesc
    >>> from relayout.stores.folder import Folder
    >>> from relayout.stores.grid import Cells
    >>> from relayout.stores.scatter import regions
    >>> from relayout.stores.store import Address
    >>> desc = MemoryDesc((2, 4), "u8", "ab")
    >>> with tempfile.TemporaryDirectory() as name:
    ...     told = Folder.create(desc, (2, 4), "bin")
    ...     stored = Address("folder", name, "", json.dumps({"create": told})).open()
    ...     made = Collected(stored, Path(name, "aside"))
    ...     for row in (1, 0):
    ...         (region,) = regions(Cells(desc, (2, 4), True), ((row, row + 1), (0, 4)))
    ...         _ = made.write(region, np.full(4, row, np.uint8))
    ...     made.finish()
    ...     Path(name, "0.0.bin").read_bytes()
    b'\x00\x00\x00\x00\x01\x01\x01\x01'
    """

    def __init__(self, stored: Stored, folder: Path) -> None:
        self.stored, self.folder = stored, folder
        self.root = Path(stored.address.path)
        """Where the chunks have their names."""
        self._nbytes = int(np.prod(stored.chunks, dtype=np.int64)) * (stored.desc.dtype.bits // 8)

    @property
    def file_bytes(self) -> int:
        """What the file of a chunk takes from its first part on."""
        return len(self.stored.header) + self._nbytes

    def opened(self, chunk: Index) -> PartialChunk:
        """The file of a chunk, for its parts."""
        return PartialChunk(self.folder / self.stored.name(chunk), self.stored.header, self._nbytes)

    def write(self, region: Region, data: Bytes, turn: int = 0) -> list[str]:
        """Write a region into the files of its chunks.

        Parameters
        ----------
        region, data
            What is written, as :attr:`Region.desc` describes it.
        turn : int
            Which chunk is the first to be written: tasks that run at the same time shall not meet.

        Returns
        -------
        list of str
            The files.

        Raises
        ------
        OSError
            Something can't be written.
        """
        width = region.desc.dtype.bits // 8
        places = list(runs(region.stored.chunks, self.stored.chunks, region.start, width))
        names = []
        for k in range(region.stored.total):
            number = (k + turn) % region.stored.total
            first = number * region.part_bytes
            with self.opened(region.chunk(number)) as file:
                for begin, at, count in places:
                    file.write(data[first + begin : first + begin + count], at)
            names.append(str(file.path))
        return names

    def stored_bytes(self, chunk: Index) -> int:
        """Bytes of the file of a chunk, wherever it is in its life; 0: it is not there.

        Raises
        ------
        OSError
            The system does not say.
        """
        return size_of_file(self.folder / self.stored.name(chunk)) or self.stored.stored_bytes(chunk)

    def finish(self) -> None:
        """Give the files their names in the store. Those that have them already stay.

        Raises
        ------
        FileNotFoundError
            A file is in neither place.
        """
        if self.folder == self.root:
            return
        parents: set[Path] = set()
        for chunk in self.stored.grid:
            name = self.stored.name(chunk)
            path = self.root / name
            with naming(path):
                if path.parent not in parents:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    parents.add(path.parent)
                try:
                    (self.folder / name).replace(path)
                except FileNotFoundError:
                    if not path.is_file():
                        raise
        sync_folders(parents)

    def resume(self) -> None:
        """Undo :meth:`finish`: what has its name already is collected again, for parts to be written."""
        if self.folder == self.root:
            return
        for chunk in self.stored.grid:
            name = self.stored.name(chunk)
            if not os.path.lexists(self.root / name) or os.path.lexists(self.folder / name):
                continue
            with naming(self.root / name):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.root / name).replace(self.folder / name)
