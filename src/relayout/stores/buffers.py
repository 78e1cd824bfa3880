"""Buffers of chunks that are used again.

A chunk takes megabytes, which the system hands out page by page, each zeroed when it is first touched, and
takes back when the chunk is gone. That takes as long as to convert it. So a thread that does many tasks keeps
what it no longer needs for the next chunk of that size::

    with reused():              a worker's loop over its tasks
        data = taken(size)      what lay there before: for those who write every byte
        ...
        given_back(data)        nobody uses it any more

Each thread has buffers of its own. What it has and what it keeps are together never more bytes than it once
had at the same time, so the plan's count of memory holds, whatever sizes it asks for one after another: what
was kept longest is dropped first. Without ``reused`` buffers come from the system and go back to it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np

from relayout.stores.store import Bytes
from relayout.tensor import ALIGNMENT, address, aligned

__all__ = ["PAGE", "given_back", "reused", "taken"]


PAGE: Final = 4096
"""Buffers begin on pages, from where a file can be written past the system's memory."""


class _Thread(threading.local):
    """What a thread has and keeps."""

    pool: _Pool | None = None
    """None: nothing is kept."""


_THREAD = _Thread()


class _Pool:
    """Buffers of a thread: those that are out, and those that were given back."""

    def __init__(self) -> None:
        self.free: dict[int, list[Bytes]] = {}
        """By their sizes, those that were given back last at the end."""
        self.out: dict[int, int] = {}
        """By their addresses, the sizes of those that somebody has."""
        self.held = self.kept = self.most = 0
        """Bytes that are out; that are free; and the most that were out at the same time."""

    def take(self, size: int) -> Bytes:
        same = self.free.get(size)
        if same:
            data = same.pop()
            self.kept -= size
            if not same:
                del self.free[size]
        else:
            self._drop(self.most - self.held - size)
            data = _on_page(aligned(size + PAGE, zeroed=False), size)
        self.out[address(_whole(data))] = size
        self.held += size
        self.most = max(self.most, self.held)
        return data

    def give_back(self, data: Bytes) -> None:
        whole = _whole(data)
        size = self.out.pop(address(whole), None)
        if size is None:
            return  # none of ours
        self.held -= size
        if whole.nbytes != size + PAGE + ALIGNMENT:
            return  # one of ours was there that has vanished without having been given back
        self.kept += size
        same = self.free.pop(size, [])
        same.append(_on_page(whole, size))
        self.free[size] = same

    def _drop(self, most: int) -> None:
        """Keep no more than so many bytes."""
        while self.kept > most and self.free:
            size, same = next(iter(self.free.items()))
            same.pop()
            self.kept -= size
            if not same:
                del self.free[size]


def _whole(data: Bytes) -> Bytes:
    """The array whose memory a buffer is a part of."""
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data


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
    before, _THREAD.pool = _THREAD.pool, _Pool()
    try:
        yield
    finally:
        _THREAD.pool = before


def taken(size: int) -> Bytes:
    """A buffer of so many bytes, which hold anything.

    Raises
    ------
    TooLarge
        The system has no such memory.
    """
    pool = _THREAD.pool
    return _on_page(aligned(size + PAGE, zeroed=False), size) if pool is None else pool.take(size)


def _on_page(room: Bytes, size: int) -> Bytes:
    start = -address(room) % PAGE
    return room[start : start + size]


def given_back(data: Bytes) -> None:
    """Say that nobody uses these bytes any more.

    What is a part or a view of a larger buffer gives all of it back. Memory that is not ours (what a codec
    has returned) is left to its owner.
    """
    pool = _THREAD.pool
    if pool is not None:
        pool.give_back(data)
