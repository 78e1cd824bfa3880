"""Buffers of chunks that are used again.

A chunk takes megabytes, which the system hands out page by page, each zeroed when it is first touched, and
takes back when the chunk is gone. That takes as long as to convert it. So a thread that does many tasks keeps
what it no longer needs for the next chunk of that size::

    with reused():              a worker's loop over its tasks
        data = taken(size)      what lay there before: for those who write every byte
        ...
        given_back(data)        nobody uses it any more

Each thread has buffers of its own, and no more than it once held at the same time, so the plan's count of
memory holds. Without ``reused`` buffers come from the system and go back to it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np

from relayout.stores.store import Bytes
from relayout.tensor import ALIGNMENT, address, aligned

__all__ = ["given_back", "reused", "taken"]


PAGE: Final = 4096
"""Buffers begin on pages, from where a file can be written past the system's memory."""


class _Thread(threading.local):
    """What a thread keeps."""

    free: dict[int, list[Bytes]] | None = None
    """By their sizes; None: nothing is kept."""


_THREAD = _Thread()


@contextlib.contextmanager
def reused() -> Iterator[None]:
    """Keep what this thread gives back until the block ends.

    Examples
    --------
    >>> with reused():
    ...     first = taken(1000)
    ...     given_back(first)
    ...     np.shares_memory(first, taken(1000)), np.shares_memory(first, taken(1000))
    (True, False)
    """
    before, _THREAD.free = _THREAD.free, {}
    try:
        yield
    finally:
        _THREAD.free = before


def taken(size: int) -> Bytes:
    """A buffer of so many bytes, which hold anything.

    Raises
    ------
    TooLarge
        The system has no such memory.
    """
    kept = (_THREAD.free or {}).get(size)
    return kept.pop() if kept else _on_page(aligned(size + PAGE, zeroed=False), size)


def _on_page(room: Bytes, size: int) -> Bytes:
    start = -address(room) % PAGE
    return room[start : start + size]


def given_back(data: Bytes) -> None:
    """Say that nobody uses these bytes any more.

    What is a part or a view of a larger buffer gives all of it back. Memory that is not ours (what a codec
    has returned) is left to its owner.
    """
    if _THREAD.free is None:
        return
    whole = data
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    size = whole.size - PAGE - ALIGNMENT  # as :func:`taken` has made it
    if whole.base is None and whole.dtype == np.uint8 and whole.ndim == 1 and size > 0:
        _THREAD.free.setdefault(size, []).append(_on_page(whole, size))
