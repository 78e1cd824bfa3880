"""Buffers of chunks that are used again.

A chunk takes megabytes, which the system hands out page by page, each zeroed when it is first touched, and
takes back when the chunk is gone. That takes as long as to convert it. So what a task no longer needs is kept
for the next chunk of about that size::

    pool = Pool()               one for all threads that do tasks of a plan
    with reused(pool):          each thread's loop over its tasks
        data = taken(size)      what lay there before: for those who write every byte
        ...
        given_back(data)        nobody uses it any more

Threads share a pool, as they do not need the same things at the same time: one decodes a chunk while another
encodes. What a pool has and what it keeps are together never more bytes than it once had at the same time, so
the plan's count of memory holds, whatever sizes are asked for one after another: what was kept longest is
dropped first. Without ``reused`` buffers come from the system and go back to it.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from typing import Final

import numpy as np

from relayout.errors import TooLarge
from relayout.stores.store import Bytes
from relayout.tensor import ALIGNMENT, address, aligned

__all__ = ["PAGE", "Pool", "given_back", "reused", "taken"]


PAGE: Final = 4096
"""Buffers begin on pages, from where a file can be written past the system's memory."""

MORE: Final = 64
"""A buffer has room for a 64th more than was asked for. What zstd makes of a chunk may take as much more than
the chunk, so one buffer does for either. Of room that nobody touches the system makes no memory."""

LARGE: Final = 1 << 20
"""Bytes from which on a buffer is made of the system's own pages."""

WASTE: Final = 16
"""A buffer is used again for what takes up to a 16th less than it has room for."""


class _Thread(threading.local):
    """What a thread keeps its buffers in."""

    pool: Pool | None = None
    """None: nothing is kept."""


_THREAD = _Thread()


class Pool:
    """Buffers of several threads: those that are out, and those that were given back.

    Examples
    --------
    >>> pool = Pool()
    >>> data = pool.take(1000)
    >>> pool.give_back(data)
    >>> again = pool.take(990)
    >>> again.size, np.shares_memory(data, again)
    (990, True)
    """

    def __init__(self) -> None:
        self.free: dict[int, list[Bytes]] = {}
        """By their room, those that were given back last at the end."""
        self.out: dict[int, int] = {}
        """By their addresses, the room of those that somebody has."""
        self.held = self.kept = self.most = 0
        """Bytes that are out; that are free; and the most that were out at the same time."""
        self._lock = threading.Lock()

    def take(self, size: int) -> Bytes:
        """A buffer of so many bytes."""
        with self._lock:
            room = min((room for room in self.free if size <= room <= size + size // WASTE), default=0)
            if room:
                same = self.free[room]
                data = same.pop()
                self.kept -= room
                if not same:
                    del self.free[room]
            else:
                room = size + size // MORE
                self._drop(self.most - self.held - room)
                data = _fresh(room)
            self.out[address(_whole(data))] = room
            self.held += room
            self.most = max(self.most, self.held)
        return _on_page(data, size)

    def give_back(self, data: Bytes) -> None:
        """Keep one that was taken, for the next."""
        whole = _whole(data)
        with self._lock:
            room = self.out.pop(address(whole), None)
            if room is None:
                return  # none of ours
            self.held -= room
            if whole.nbytes != room + PAGE + ALIGNMENT:
                return  # one of ours was there that has vanished without having been given back
            self.kept += room
            same = self.free.pop(room, [])
            same.append(whole)
            self.free[room] = same

    def _drop(self, most: int) -> None:
        """Keep no more than so many bytes."""
        while self.kept > most and self.free:
            room, same = next(iter(self.free.items()))
            same.pop()
            self.kept -= room
            if not same:
                del self.free[room]


def _fresh(room: int) -> Bytes:
    """Memory for a buffer of so many bytes, and for a page to begin on.

    Large buffers are the system's own pages, which it has back as soon as they are dropped. The C library
    would keep them: once it has freed 32 MB it takes as much from its heap, and returns no more of that than
    is beyond the double.
    """
    size = room + PAGE + ALIGNMENT
    if size < LARGE:
        return _whole(aligned(room + PAGE, zeroed=False))
    try:
        return np.frombuffer(mmap.mmap(-1, size), np.uint8)
    except (OSError, OverflowError, ValueError):
        raise TooLarge(f"a buffer of {room} bytes is needed, and the system has no memory for it") from None


def _whole(data: Bytes) -> Bytes:
    """The array whose memory a buffer is a part of."""
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data


@contextlib.contextmanager
def reused(pool: Pool | None = None) -> Iterator[None]:
    """Have this thread take its buffers from a pool, without one from its own, until the block ends.

    Examples
    --------
    >>> with reused():
    ...     first = taken(1000)
    ...     given_back(first)
    ...     np.shares_memory(first, taken(1000)), np.shares_memory(first, taken(1000))
    (True, False)
    """
    before, _THREAD.pool = _THREAD.pool, Pool() if pool is None else pool
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
