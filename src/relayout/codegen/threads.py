"""Sharing one call among threads.

Kernels run without the interpreter's lock, so ordinary Python threads share them well. The threads sleep in a
pool between calls; handing work to one costs some tens of microseconds, which is why small tensors are not
shared (:data:`SHARED`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

__all__ = ["SHARED", "count", "share"]

SHARED = 1 << 20  # bytes of source and destination together from which on threads are worth waking

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_size = 0


def count(threads: int | None = None) -> int:
    """How many threads to use: as asked for, else ``RELAYOUT_THREADS``, else what the process may run on."""
    if threads is not None:
        return threads
    named = os.environ.get("RELAYOUT_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(work: Callable[[int, int], None], extent: int, threads: int, unit: int = 1) -> None:
    """Call ``work(start, stop)`` for ranges that cover ``0 ..

    Extent``, one a thread, cut at multiples of ``unit``.
    """
    units = -(-extent // unit)
    parts = min(threads, units)
    if parts <= 1:
        work(0, extent)
        return
    cuts = [min(extent, units * k // parts * unit) for k in range(parts + 1)]
    jobs = [_executor(threads).submit(work, a, b) for a, b in pairwise(cuts[1:])]
    try:
        work(cuts[0], cuts[1])
    finally:
        wait(jobs)
    for job in jobs:
        job.result()


def _executor(threads: int) -> ThreadPoolExecutor:
    global _pool, _size
    with _lock:
        if _pool is None or _size < threads:
            _pool, _size = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="relayout"), threads
        return _pool


def _forget() -> None:
    """In a child process the threads are gone; a new pool is made when it is needed."""
    global _pool, _size, _lock
    _pool, _size, _lock = None, 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
