"""How long a reorder should take: as long as ``memcpy`` of its bytes, on this machine, now.

A reorder reads every byte of the source and writes every byte of the destination once, and so does a copy of
half their sum. What kernels need beyond that (1.0 to 2 times, see ``docs/performance.md``) depends on the
shape; the copy is the yardstick, and it is measured when somebody asks, since machines are shared.
"""

from __future__ import annotations

import time
from math import log2
from typing import NamedTuple

import numpy as np

from relayout.environment import effort
from relayout.jit.support import missing
from relayout.processors import caches
from relayout.runtime import threads
from relayout.runtime.clock import USUAL
from relayout.runtime.kept import forget, kept
from relayout.runtime.memcpy import memcpy_kernel
from relayout.runtime.sharing import SHARED
from relayout.targets.machine import derived

__all__ = ["Prediction", "copy_seconds", "note", "seconds_to_move"]

LARGEST = 1 << 25  # bytes that are copied; larger ones take proportionally longer
MOST = LARGEST.bit_length()  # the order of as many bytes that are read and written
ROUNDS = 5
LEAST = 1 << 14  # bytes: below that, calling takes longer than copying
PROVEN = 1.5  # times as fast as what is kept: more than two measurements differ
GUESSED = (16.0, 10.0, 4.0)
"""Bytes that a core's copies read and write in a cycle, where nothing is measured: in its own caches, in the
last one, and in memory. Measured on Zen 3, rounded."""
STEPS = 4  # of a speed from one power of two to the next: measured twice, it differs by a tenth


class Prediction(NamedTuple):
    """What a reorder moves at least, and how long a copy of as much takes: ``Reorder.predicted``."""

    read: int
    """Bytes of the source's elements, without padding and holes; with ``beta`` the destination's too."""
    written: int
    """Bytes of the destination, padding included."""
    seconds: float
    """How long ``memcpy`` takes to read and write as many bytes, with as many threads, measured just now."""


def copy_seconds(read: int, written: int, count: int | None = None) -> float:
    """Seconds that ``memcpy`` takes to read and to write half of so many bytes, the fastest of a few rounds.

    Parameters
    ----------
    read, written : int
        Bytes of the source and of the destination.
    count : int, optional
        Threads that share the copy, as they share a reorder.
    """
    size = max(1, (read + written) // 2)
    part = min(size, LARGEST)
    source, target = np.ones(part, np.uint8), np.zeros(part, np.uint8)
    operands = np.array([part], np.int64)
    many = threads.count(count) if 2 * part >= SHARED else 1
    places = source.ctypes.data, target.ctypes.data, operands.ctypes.data
    kernel = _kernel()
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        if kernel is None:
            target[:] = source
        else:
            threads.run(kernel, places[0], places[1], places[2], many, many)
        taken.append(time.perf_counter() - start)
    return min(taken) * size / part


def seconds_to_move(size: int, count: int | None = None) -> float:
    """About how many seconds it takes to read and write so many bytes in all.

    Speeds are measured once for such sizes, rounded to what measuring can tell apart, and kept on disk, so
    that all processes plan by the same ones. ``RELAYOUT_EFFORT=estimate`` measures nothing and guesses them.

    >>> 0 < seconds_to_move(1 << 16) < seconds_to_move(1 << 24)
    True
    """
    order = max(size, 1).bit_length()
    return size / _speed(order, count)


def note(size: int, seconds: float, count: int | None = None) -> None:
    """Look at a copy that has just been measured: far faster than what is kept, it proves that to be wrong.

    Parameters
    ----------
    size : int
        Bytes read and written.
    seconds : float
        What the copy took.
    count : int, optional
        Threads that shared it.
    """
    if size < 2 * LEAST or effort() != "measure":
        return
    order = size.bit_length()  # sizes of one order may fit a cache or not: so does the order below
    if size > PROVEN * seconds * max(_speed(order, count), _speed(order - 1, count)):
        forget()


@kept("speed of copies")
def _speed(order: int, count: int | None) -> float:
    """Bytes in a second, of copies that read and write about ``2 ** order`` in all."""
    if effort() != "measure":
        own, last, memory = GUESSED
        size, (_, l2, l3) = 1 << order, caches()
        return USUAL * (own if size <= l2 else last if size <= derived(l2, l3).streaming else memory)
    if order > MOST:  # what is copied is the same
        return float(_speed(MOST, count))
    half = max(LEAST, 1 << order) // 2
    speed = 2 * half / copy_seconds(half, half, count)
    return float(2 ** (round(STEPS * log2(speed)) / STEPS))


def _kernel() -> int | None:
    """The address of the kernel that copies; None on hosts without machine code, where NumPy copies."""
    return None if missing() else memcpy_kernel()
