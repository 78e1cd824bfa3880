"""How fast the stores of a conversion are: assumed to compare plans, measured on some chunks for people.

Files that were read before may still be in the system's memory, and then reading them is faster than it will
be; so this is a prediction for a store as it is now, and it says on what it rests.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.stores.files import AT_ONCE
from relayout.stores.store import Stored

__all__ = ["ASSUMED", "KERNEL", "RUN", "Rates", "Work", "assumed", "measured"]

REQUEST: Final = 0.0003
"""Seconds that a chunk takes beside its bytes: a file is opened, or made and renamed."""

ENOUGH: Final = 64 << 20
"""Bytes written, from which on it is known how fast the disk takes them."""

MANY: Final = 33
"""Chunks that are read as samples of an array of some thousands; of others three are."""

PATIENCE: Final = 0.5
"""Seconds that reading samples may take; a chunk that was begun is read to its end."""


RUN: Final = 20e-6
"""Seconds that a run of bytes takes which is written into a file, beside its bytes."""

PART: Final = 50e-6
"""Seconds that it takes to open the file of a chunk of which a part is written."""

MOVE: Final = 60e-6
"""Seconds that a piece takes which is converted, beside its bytes: views are found, buffers are checked."""

KERNEL: Final = 0.02
"""Seconds that a kernel takes which has to be made. That is one at a time, whatever threads there are."""

COPY: Final = 3e9
"""Bytes a second that are copied from chunks into one buffer for a whole block."""


class Work(NamedTuple):
    """What there is to do in a pass, counted: what its predicted time is made of."""

    read: int
    """Bytes of chunks read and decoded."""
    written: int
    """Bytes of chunks written, before they are encoded."""
    chunks: int
    """Chunks read and written."""
    moves: int = 0
    """Pieces that are converted, each by one call of a kernel."""
    kernels: int = 0
    """Kernels that the pieces need at most: one for each shape that a piece has."""
    copied: int = 0
    """Bytes that are copied on the way, before they are converted."""
    parts: int = 0
    """Parts of chunks that are written, each into the file of its chunk; 0: chunks are written whole."""
    runs: int = 0
    """Runs of bytes in which those parts are written."""


@dataclass(frozen=True)
class Rates:
    """How fast a store is read and written, of one thread: what predicted times are made of."""

    read: float
    """Bytes of decoded chunks a second, from asking for the file to the decoded chunk."""
    write: float
    """Bytes of chunks a second, from the chunk in memory to the system's memory of the file."""
    move: float
    """Bytes that the reorder engine reads a second."""
    request: float = 0.0005
    """Seconds that a chunk takes besides, however small it is."""
    disk: float = inf
    """Bytes of chunks a second that the disk takes from all threads together, before they are encoded."""
    measured: str = ""
    """On what the figures were measured; empty: they are assumed."""
    between: tuple[float, float] = (0.0, inf)
    """The same as ``write`` and ``disk`` of files that are not encoded; 0: the same as of the destination."""

    def of_pass(self, first: bool, last: bool) -> Rates:
        """Those of a pass from the source (the first), or to the destination (the last), or between the two.

        >>> rates = Rates(read=1e9, write=1e8, move=2e9, between=(2e9, 1e9))
        >>> rates.of_pass(True, False).write, rates.of_pass(False, True).read
        (2000000000.0, 2000000000.0)
        """
        write, disk = self.between
        if not write or (first and last):
            return self
        read = self.read if first else write
        if last:
            return replace(self, read=read)
        return replace(self, read=read, write=write, disk=disk)

    def seconds(self, work: Work) -> float:
        """Predicted time of one thread, without the kernels that have to be made first (:data:`KERNEL`).

        >>> Rates(read=1e9, write=1e9, move=2e9, request=0.01).seconds(Work(10**9, 10**9, 4))
        2.54
        """
        moved = work.written / self.move + work.moves * MOVE + work.copied / COPY
        parts = work.parts * PART + work.runs * RUN
        return work.read / self.read + work.written / self.write + moved + parts + work.chunks * self.request


ASSUMED: Final = Rates(read=600e6, write=400e6, move=4e9, request=0.001)
"""What shapes are compared by: rates of a thread with a fast codec. Only their ratios matter."""

PLAIN: Final = 3
"""How many times as fast chunks are read and written that are files as they are."""


def assumed(source: bool, target: bool) -> Rates:
    """:data:`ASSUMED`, for a source and a destination whose files have chunks as they are, or do not.

    >>> assumed(False, False) == ASSUMED, assumed(True, False).read
    (True, 1800000000.0)
    """
    return replace(
        ASSUMED,
        read=ASSUMED.read * (PLAIN if source else 1),
        write=ASSUMED.write * (PLAIN if target else 1),
    )


def measured(source: Stored, target: Stored, folder: Path, between: bool = False) -> Rates:
    """Read a few chunks of the source, encode one of the destination, write it to a temporary file.

    Parameters
    ----------
    source, target : Stored
        The arrays; only codecs and chunk sizes of the destination are used, which need not be there yet.
    folder : Path
        Where the temporary file is written and removed.
    between : bool
        Measure how fast files are written that are not encoded, too: those of an intermediate store.
    """
    grid = source.grid
    # Not of an empty array, which has no chunks; and never a set of all numbers, of which there may be 10^9.
    spread = MANY if grid.total >= 100 * MANY else 3
    numbers = sorted({k * (grid.total - 1) // (spread - 1) for k in range(spread)}) if grid.total else []
    if spread == MANY:  # small ones, mostly: what only the first takes is not what they take
        with contextlib.suppress(LayoutError, OSError):
            source.read(grid.index(0))
    total, count, sample, begin = 0, 0, None, time.perf_counter()
    for number in numbers:
        with contextlib.suppress(LayoutError, OSError):  # what can't be read is told when it is needed
            data = source.read(grid.index(number))
            if data is not None:
                total, count, sample = total + data.size, count + 1, data
        if time.perf_counter() - begin > PATIENCE:
            break
    if sample is None:
        return ASSUMED
    reading = total / max(1e-6, time.perf_counter() - begin)
    size = int(np.prod(target.chunks, dtype=np.int64)) * (target.desc.dtype.bits // 8)
    chunk = np.resize(sample, size)
    writing = _written(lambda: target.encode(chunk), size, folder)
    plain = _written(lambda: [chunk], size, folder) if between else (0.0, inf)
    if writing is None or plain is None:
        return ASSUMED
    told = f"measured on {counted(count, 'chunk')} of the source"
    return Rates(reading, writing[0], ASSUMED.move, REQUEST, writing[1], told, plain)


def _written(encoded: Callable[[], Sequence[Any]], size: int, folder: Path) -> tuple[float, float] | None:
    """Bytes a second from a chunk of so many in memory to the system, and until they are on the disk."""
    total = 0
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begin = time.perf_counter()
            while total < ENOUGH and time.perf_counter() - begin < PATIENCE:
                for part in encoded():
                    left = memoryview(part).cast("B")
                    while len(left):
                        left = left[file.write(left[:AT_ONCE]) :]
                total += size
            written = time.perf_counter()
            os.fsync(file.fileno())
            ended = time.perf_counter()
    except (OSError, LayoutError):
        return None
    return total / max(1e-6, written - begin), total / max(1e-6, ended - begin)
