"""Limits of parallel regions, which the threads and those who plan for them share."""

from __future__ import annotations

from typing import Final

__all__ = ["AWAKE", "SHARED", "SPIN"]

SPIN: Final = 40e-6
"""Seconds that workers spin behind a region before they sleep: what one wakeup takes."""

AWAKE: Final = 200e-6
"""Seconds that they wait where regions follow each other within that time."""

SHARED: Final = 1 << 17
"""Bytes of source and destination together from which on threads that are awake pay."""
