"""What a store has to offer: an array as it keeps it, chunk by chunk.

Everything above this module knows stores by :class:`Stored` only: a descriptor, the shape of a chunk, and two
functions that read and write one chunk by its number. Codecs, file names, shards and indices are the
store's own affair. A new kind of store is one module with one such class, and a line in :data:`KINDS`.

=================  =============================================================================
kind               module
=================  =============================================================================
``zarr``           :mod:`relayout.stores.zarr`: Zarr arrays of version 2 and 3, codecs, shards
``folder``         :mod:`relayout.stores.folder`: npy or raw files, one a chunk, and a description
``file``           :mod:`relayout.stores.file`: one contiguous array in a file (npy, safetensors, raw),
                   whose chunks are runs of rows, so that no more of it is read than is needed
=================  =============================================================================
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.stores.grid import Grid, Index

if TYPE_CHECKING:
    from relayout.stores.files import ChunkFile

__all__ = ["CARRIERS", "Address", "Bytes", "Fingerprint", "SourceChanged", "Stored", "digest"]

Bytes = NDArray[np.uint8]


class SourceChanged(LayoutError):
    """A store is not what it was when its conversion was planned."""


class Address(NamedTuple):
    """Where an array is and what its bytes mean, as plain data; any process can open it.

    Examples
    --------
    >>> Address("zarr", "/data/big.zarr", "images", '{"format": "nchw"}').spelled
    '/data/big.zarr: images'
    """

    kind: str
    """One of :data:`KINDS`."""
    path: str
    """The folder or file, absolute, or a URL."""
    name: str = ""
    """The array in a store of several."""
    said: str = ""
    """JSON: what the caller said about it (format, dims, dtype), or what a new array is to be."""

    @property
    def spelled(self) -> str:
        """For messages."""
        return f"{self.path}: {self.name}" if self.name else self.path

    @property
    def details(self) -> dict[str, Any]:
        """What :attr:`said` holds."""
        return json.loads(self.said) if self.said else {}

    def open(self) -> Stored:
        """The array, as it is now."""
        if self.kind not in KINDS:
            raise LayoutError(f"there is no kind of store called {self.kind!r}; there are {', '.join(KINDS)}")
        with lock():
            module = import_module(f"relayout.stores.{self.kind}")
        made: Stored = getattr(module, KINDS[self.kind])(self)
        return made


class Fingerprint(NamedTuple):
    """What a store was like at one time."""

    text: str
    """A digest of its metadata and, for stores in folders, of names, sizes and times of all its chunks."""
    newest: int
    """The latest time of change of a chunk, in ns; 0: unknown. What is newer was changed since."""
    chunks: int
    """How many chunks are there; those that are missing stand for the fill value. -1: unknown."""
    nbytes: int
    """Bytes that they take as stored, compressed; -1: unknown."""


class Stored(Protocol):
    """An array in a store."""

    address: Address
    desc: MemoryDesc
    """Logical sizes, data type and format of the elements."""
    grid: Grid
    """The physical array, cut into chunks."""
    chunks: tuple[int, ...]
    """The sizes of a chunk, of the physical array: what is read and written as one (a shard, if there are
    any)."""
    fill: bytes
    """The element that chunks which are missing are made of; empty: none may be missing."""
    element: str
    """What the store calls the type of the elements: that of ``desc``, or another of the same width, whose
    elements are moved and not converted (uint16 as s16). Then it is NumPy's name of that type."""
    codecs: str
    """How chunks are encoded, for people; empty: not at all."""
    plain: bool
    """Whether a file has the bytes of a chunk as they are, behind a header at most, so that chunks can be
    read and written in parts (:meth:`opened`, :meth:`write_parts`)."""
    header: bytes
    """What stands before a chunk in its file, where the store is :attr:`plain`."""
    held: int
    """Bytes of the array that are in memory as long as it is open; 0: nothing is kept."""
    note: str
    """What a plan has to say about reading it; empty: nothing."""

    def read(self, chunk: Index, newest: int = 0) -> Bytes | None:
        """The bytes of a full chunk, decoded, in C order of the physical array; None: it is missing.

        Of a chunk that reaches beyond the array what lies beyond is undefined. ``newest`` is that of the
        plan's fingerprint: a chunk that was changed later is refused, if it is not 0.

        Raises
        ------
        SourceChanged
            The chunk was changed since.
        LayoutError
            It is damaged.
        OSError
            It can't be read.
        """

    def name(self, chunk: Index) -> str:
        """The file of a chunk, relative to the folder of the store."""

    def opened(self, chunk: Index, newest: int = 0) -> ChunkFile | None:
        """The file of a chunk, to be read in parts, where the store is :attr:`plain`; None: it is missing.

        Raises what :meth:`read` raises.
        """

    def encode(self, data: Bytes) -> Sequence[Any]:
        """A full chunk as it is written: buffers, one behind the other. Empty: it is nothing but the fill
        value, in a store that leaves such chunks out.
        """

    def write(self, chunk: Index, data: Bytes) -> str:
        """Encode a full chunk and write it, whole or not at all. Returns the file, for the journal.

        Raises
        ------
        OSError
            It can't be written; a file that was there before is as it was.
        """

    def write_parts(self, chunk: Index, parts: Iterable[Bytes]) -> str:
        """Write a chunk as :meth:`write` does, whole or not at all, from parts of it in their order, where
        the store is :attr:`plain`. Each part is written before the next is asked for.
        """

    def stored_bytes(self, chunk: Index) -> int:
        """Bytes that a chunk takes as it is stored; 0: it is not there.

        Raises
        ------
        OSError
            The system does not say.
        """

    def fingerprint(self) -> Fingerprint:
        """What the store is like now."""

    def begin(self) -> None:
        """Prepare the place of a new array, which nobody can open yet."""

    def commit(self) -> None:
        """Make the new array one that can be opened, by one rename."""

    def facts(self) -> Mapping[str, str]:
        """What there is to say about it besides, in the order of showing."""


CARRIERS: Final = {8: "u8", 16: "s16", 32: "s32", 64: "s64"}
"""What elements of types that are none of ours are moved as, by their bits."""

KINDS: Final = {"zarr": "Zarr", "folder": "Folder", "file": "File"}
"""The kinds of stores, each with the class in the module of its name."""


def digest(data: object) -> str:
    """A short name for plain data: equal for equal data in all processes.

    >>> digest({"b": 1, "a": [2]}) == digest({"a": [2], "b": 1})
    True
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
