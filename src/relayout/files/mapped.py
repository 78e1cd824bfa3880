"""Memory maps: files that are arrays without having been read.

A file of many gigabytes is converted in slices. Its bytes are *mapped*: the operating system reads the pages
that are looked at and writes those that were changed. Pages count as memory of the process while they are
mapped, so :func:`release` hands them back from time to time; they stay in the cache of the system as long as
there is room.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["map_for_reading", "map_for_writing", "release"]

Bytes = NDArray[np.uint8]


def map_for_reading(path: Path) -> Bytes:
    """The bytes of a whole file, read-only."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:  # an empty map is an error
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def map_for_writing(file: BinaryIO) -> Bytes:
    """The bytes of a whole open file, writable."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE), np.uint8)


def flush(data: Bytes) -> None:
    """Write the changed pages of a mapped array to its file."""
    source = _map_of(data)
    if source is not None:
        source.flush()


def release(data: Bytes) -> None:
    """Hand the pages of a mapped array back to the system; an array that is not mapped is left alone."""
    source = _map_of(data)
    if source is not None and hasattr(source, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        source.madvise(mmap.MADV_DONTNEED)


def _map_of(data: Bytes) -> mmap.mmap | None:
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
