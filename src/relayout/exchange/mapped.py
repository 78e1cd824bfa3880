"""Memory maps: files that are arrays without having been read.

A file of many gigabytes is converted in slices. Its bytes are *mapped*: the operating system reads the pages
that are looked at and writes those that were changed. Pages count as memory of the process while they are
mapped, so :func:`release` hands them back from time to time; they stay in the cache of the system as long as
there is room.

Only maps that were made here are released. The pages of a shared map of a file can always be read again.
Those of a private map (``numpy.load(..., mmap_mode="c")``) or of an anonymous one exist nowhere else, and
would be zeros afterwards; a map does not tell which it is.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Identity",
    "SharedMap",
    "flush",
    "is_mapped",
    "map_and_identify",
    "map_for_reading",
    "map_for_writing",
    "map_offset",
    "open_regular",
    "release",
]

Bytes = NDArray[np.uint8]


class SharedMap(mmap.mmap):
    """A shared map of a file, made by this module: the file has its pages, or will get them."""

    identity: Identity | None = None
    """Which file that is, where it is known."""


class Identity(NamedTuple):
    """What tells one version of a file from another, for as long as either exists."""

    device: int
    inode: int
    size: int
    modified: int
    """In nanoseconds."""

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """The identity in what ``os.stat`` returns."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def is_same_file(self, other: Identity) -> bool:
        """Whether both are one file, whatever was written to it in between."""
        return (self.device, self.inode) == (other.device, other.inode)


def map_for_reading(path: Path) -> Bytes:
    """The bytes of a whole file, read-only."""
    return map_and_identify(path)[0]


def map_and_identify(path: Path) -> tuple[Bytes, Identity]:
    """The bytes of a whole file, read-only, and which version of the file they are."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        return _mapped(file, status.st_size, mmap.ACCESS_READ), Identity.of(status)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises
    ------
    OSError
        It can't be read, or is no regular file: a pipe would wait for somebody to write to it.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.open(path, flags)
    kind = os.fstat(file).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(file, "rb")
    os.close(file)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "this is no regular file, so it can't be mapped", os.fspath(path))


def map_for_writing(file: BinaryIO) -> Bytes:
    """The bytes of a whole open file, writable."""
    return _mapped(file, os.fstat(file.fileno()).st_size, mmap.ACCESS_WRITE)


def is_mapped(data: NDArray[Any]) -> bool:
    """Whether this module has mapped an array, whatever file it is of."""
    return _map_of(data) is not None


def map_offset(data: NDArray[Any], path: Path) -> int | None:
    """Where in a file an array begins, in bytes; None: this module has not mapped it, or from another file.

    What is compressed in a file is unpacked to another one, and mapped from there.
    """
    source = _map_of(data)
    if source is None or source.identity is None:
        return None
    if not source.identity.is_same_file(Identity.of(os.stat(path))):
        return None
    return int(data.ctypes.data - np.frombuffer(source, np.uint8).ctypes.data)


def flush(data: Bytes) -> None:
    """Write the changed pages of a mapped array to its file."""
    source = _map_of(data)
    if source is not None:
        source.flush()


def release(data: NDArray[Any]) -> None:
    """Hand the pages of an array that this module mapped back to the system; any other is left alone."""
    source = _map_of(data)
    if source is not None and hasattr(source, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        source.madvise(mmap.MADV_DONTNEED)


def _mapped(file: BinaryIO, size: int, access: int) -> Bytes:
    if size == 0:  # an empty map is an error
        return np.empty(0, np.uint8)
    made = SharedMap(file.fileno(), size, access=access)
    made.identity = Identity.of(os.fstat(file.fileno()))
    return np.frombuffer(made, np.uint8)


def _map_of(data: NDArray[Any]) -> SharedMap | None:
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, SharedMap) else None
