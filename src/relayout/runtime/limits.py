"""Limits of parallel regions, which the threads and those who plan for them share."""

from __future__ import annotations

from typing import Final

__all__ = ["AWAKE", "SPIN"]

SPIN: Final = 40e-6
"""Seconds that workers spin behind a region before they sleep: what one wakeup takes."""

AWAKE: Final = 200e-6
"""Seconds that they wait where regions follow each other within that time."""
