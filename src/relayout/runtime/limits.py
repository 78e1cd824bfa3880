"""Limits of parallel regions, which the threads and those who plan for them share."""

from __future__ import annotations

from typing import Final

__all__ = ["AWAKE", "MOST", "PATIENCE", "SHARED"]

MOST: Final = 256
"""Threads of a region, the calling one among them."""

AWAKE: Final = 40e-6
"""Seconds that workers spin behind a region, and keep their processors to themselves."""

PATIENCE: Final = 2e-3
"""Seconds that they wait in all where regions follow each other: the time of some tens of wakeups."""

SHARED: Final = 1 << 17
"""Bytes of source and destination together from which on threads that are awake pay."""
