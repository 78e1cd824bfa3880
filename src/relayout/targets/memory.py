"""How much memory the machine has."""

from __future__ import annotations

import os
from functools import lru_cache

__all__ = ["installed"]

MOST = 1 << 47
"""Bytes that a process has addresses for, on all processors of today."""


@lru_cache(maxsize=1)
def installed() -> int:
    """Bytes of memory, with what the system swaps to; where nobody tells, what a process can address.

    >>> installed() > 1 << 20
    True
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            told = dict(line.split(":", 1) for line in file if ":" in line)
        return sum(1024 * int(told[name].split()[0]) for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return MOST
