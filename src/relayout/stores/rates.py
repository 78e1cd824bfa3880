"""How fast the stores of a conversion are, measured on some of their chunks.

Files that were read before may still be in the system's memory, and then reading them is faster than it will
be; so this is a prediction for a store as it is now, and it says on what it rests.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from relayout.errors import LayoutError
from relayout.stores.files import AT_ONCE
from relayout.stores.plans import Rates, several
from relayout.stores.search import ASSUMED
from relayout.stores.store import Bytes, Stored

__all__ = ["measured"]

REQUEST: Final = 0.0005
"""Seconds that a chunk takes beside its bytes."""

ENOUGH: Final = 64 << 20
"""Bytes written, from which on it is known how fast the disk takes them."""

PATIENCE: Final = 0.5
"""Seconds that reading samples may take; a chunk that was begun is read to its end."""


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
    for number in sorted({0, grid.total // 2, grid.total - 1} & set(range(grid.total))):
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
    told = f"measured on {several(count, 'chunk')} of the source"
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
