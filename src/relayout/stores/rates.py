"""How fast the stores of a conversion are: assumed to compare plans, measured on some chunks for people.

Files that were read before may still be in the system's memory, and then reading them is faster than it will
be; so this is a prediction for a store as it is now, and it says on what it rests.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

import numpy as np

from relayout.errors import LayoutError
from relayout.stores.files import AT_ONCE
from relayout.stores.store import Bytes, Stored

__all__ = ["ASSUMED", "RUN", "Rates", "measured"]

REQUEST: Final = 0.0005
"""Seconds that a chunk takes beside its bytes."""

ENOUGH: Final = 64 << 20
"""Bytes written, from which on it is known how fast the disk takes them."""

PATIENCE: Final = 0.5
"""Seconds that reading samples may take; a chunk that was begun is read to its end."""


RUN: Final = 20e-6
"""Seconds that a run of bytes takes which is written into a file, beside its bytes."""


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

    def seconds(self, read: int, written: int, chunks: int, runs: int = 0) -> float:
        """Predicted time of one thread for so many bytes of chunks, so many chunks read and written, and so
        many runs of bytes that are written into parts of chunks.

        >>> Rates(read=1e9, write=1e9, move=2e9, request=0.01).seconds(10**9, 10**9, 4)
        2.54
        """
        work = read / self.read + written / self.write + read / self.move
        return work + chunks * self.request + runs * RUN


ASSUMED: Final = Rates(read=600e6, write=400e6, move=4e9, request=0.001)
"""What shapes are compared by: rates of a thread with a fast codec. Only their ratios matter."""


def measured(source: Stored, target: Stored, folder: Path) -> Rates:
    """Read a few chunks of the source, encode one of the destination, write it to a temporary file.

    Parameters
    ----------
    source, target : Stored
        The arrays; only codecs and chunk sizes of the destination are used, which need not be there yet.
    folder : Path
        Where the temporary file is written and removed.
    """
    total, count, sample, begin = 0, 0, None, time.perf_counter()
    grid = source.grid
    # Not of an empty array, which has no chunks; and never a set of all numbers, of which there may be 10^9.
    for number in sorted({0, grid.total // 2, grid.total - 1}) if grid.total else ():
        with contextlib.suppress(LayoutError, OSError):  # what can't be read is told when it is needed
            data = source.read(grid.index(number))
            if data is not None:
                total, count, sample = total + data.size, count + 1, data
        if time.perf_counter() - begin > PATIENCE:
            break
    if sample is None:
        return ASSUMED
    reading = total / max(1e-6, time.perf_counter() - begin)
    writing = _written(sample, target, folder)
    if writing is None:
        return ASSUMED
    told = f"measured on {count} {'chunk' if count == 1 else 'chunks'} of the source"
    return Rates(reading, writing[0], ASSUMED.move, REQUEST, writing[1], told)


def _written(sample: Bytes, target: Stored, folder: Path) -> tuple[float, float] | None:
    """Bytes a second from a chunk in memory to the system, and until they are on the disk."""
    size = int(np.prod(target.chunks, dtype=np.int64)) * (target.desc.dtype.bits // 8)
    data, total = np.resize(sample, size), 0
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begin = time.perf_counter()
            while total < ENOUGH and time.perf_counter() - begin < PATIENCE:
                for part in target.encode(data):
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
