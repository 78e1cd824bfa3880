"""Limits of parallel regions, which the threads and those who plan for them share."""

from __future__ import annotations

from typing import Final

__all__ = ["AWAKE", "MOST", "SHARED"]

MOST: Final = 256
"""Threads of a region, the calling one among them."""

AWAKE: Final = 40e-6
"""Seconds that workers spin before they sleep."""

SHARED: Final = 1 << 17
"""Bytes of source and destination together from which on threads that are awake pay."""
