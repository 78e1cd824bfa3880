"""What the system says of processors: how many a process may use, and how large their caches are.

How many is what a process is told, what it is bound to, what its container has.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Final

from relayout.environment import named_number

__all__ = ["MOST", "caches", "count", "limited", "processors"]

MOST: Final = 256
"""Threads of a region, the calling one among them."""

PAGE: Final = 4096
"""Bytes that Linux gives at a time of a file about the system; fewer are its end."""


def count(threads: int | None = None) -> int:
    """How many threads to use.

    As many as asked for, else ``RELAYOUT_THREADS``, else one for each processor that this process may run on,
    or that a control group (a container's share of the machine) leaves it, rounded up.

    >>> count(3)
    3
    """
    if threads is not None:
        return min(int(threads), MOST)
    if (least := _LIMIT.get()) is not None:
        return least
    named = named_number("RELAYOUT_THREADS", "number of threads; write 1 or more, in digits", 1, MOST)
    return processors() if named is None else named


@contextlib.contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Within this, threads that nobody names are so many, for what is planned and compiled; None: as ever.

    >>> with limited(3):
    ...     count()
    3
    """
    mark = _LIMIT.set(None if threads is None else count(threads))
    try:
        yield
    finally:
        _LIMIT.reset(mark)


_LIMIT: ContextVar[int | None] = ContextVar("relayout_threads", default=None)


def processors() -> int:
    """How many threads can really run at once."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, _quota()) if allowed > 1 else 1


@lru_cache(maxsize=4)
def _quota(root: str = "") -> int:
    """The processors that Linux's control groups grant, at least 1; without a limit a very large number.

    A limit is processor time a period, both in microseconds, and holds for all groups below the one that it
    is set on. Version 2 keeps both in one file, version 1 in two, where -1 is no limit.
    """
    granted: float = sys.maxsize
    with contextlib.suppress(OSError, ValueError):  # no such system, or lines of another form
        for line in _text(f"{root}/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = f"{root}/sys/fs/cgroup" + ("/cpu" if controllers else "")
            names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"] if controllers else ["cpu.max"]
            group = path.strip("/")
            granted = min(granted, _limit(top, names))
            while group:
                granted = min(granted, _limit(f"{top}/{group}", names))
                group = group.rpartition("/")[0]
    return max(1, math.ceil(granted))


def _limit(folder: str, names: list[str]) -> float:
    """The limit of one control group, in processors."""
    try:
        quota, period = " ".join(_text(f"{folder}/{name}") for name in names).split()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):
        return math.inf  # no such group, no such files, or "max"


@lru_cache(maxsize=1)
def caches() -> tuple[int, int, int]:
    """First, second and last level data cache of the first processor.

    Plain guesses where the system does not tell.
    """
    sizes = {1: 32 << 10, 2: 1 << 20, 3: 8 << 20}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        try:
            level, kind, text = (_text(f"{folder}/{name}").strip() for name in ("level", "type", "size"))
        except OSError:
            break
        if kind != "Instruction" and level in "123" and text[-1:] in "KM" and text[:-1].isdigit():
            sizes[int(level)] = int(text[:-1]) << (10 if text[-1] == "K" else 20)
    return sizes[1], sizes[2], sizes[3]


def _text(path: str) -> str:
    file, found = os.open(path, os.O_RDONLY), b""  # a quarter of the time of open() and its objects
    try:
        while len(more := os.read(file, PAGE)) == PAGE:  # paths of control groups alone may take a page
            found += more
        return (found + more).decode()
    finally:
        os.close(file)
