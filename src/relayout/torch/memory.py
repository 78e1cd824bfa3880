"""Advice to the system about large new memory, whose first touch takes longer than what is written to it.

Memory that a program has not had before comes page by page, as it is touched: 0.25 microseconds for each
4 KiB, and as long again to fill it with zeros. The C library asks the system anew for each block of 32 MiB
and more, so a conversion of such a tensor spends two thirds of its time on that.

* :func:`large_pages`: pages of 2 MiB, which Linux gives to those who ask. NumPy asks for its arrays; PyTorch
  does for its tensors if an environment variable says so.
* :func:`touched`: all pages of shared memory at once, in one call of the system.

Where the system knows nothing of it, nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

__all__ = ["LARGE", "POPULATE_WRITE", "large_pages", "touched"]

LARGE: Final = 1 << 22
"""Bytes from which on it pays, as NumPy has it too."""

PAGE: Final = 4096
HUGEPAGE, POPULATE_WRITE = 14, 23  # of Linux, MADV_


def large_pages(x: Any) -> Any:
    """A new tensor whose memory nobody has touched, advised to be in large pages if it is large."""
    if x.nbytes >= LARGE:
        _advise(x.data_ptr(), x.nbytes, HUGEPAGE)
    return x


def touched(storage: Any) -> Any:
    """A new storage in shared memory, with all its pages there if it is large."""
    if storage.nbytes() >= LARGE:
        _advise(storage.data_ptr(), storage.nbytes(), POPULATE_WRITE)
    return storage


def _advise(address: int, size: int, advice: int) -> None:
    madvise = _madvise()
    if madvise is not None:
        start = -(-address // PAGE) * PAGE
        madvise(start, (address + size) // PAGE * PAGE - start, advice)


@lru_cache(maxsize=1)
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        return prototype(("madvise", ctypes.CDLL(None)))
    except AttributeError:
        return None
