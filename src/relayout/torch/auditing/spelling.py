"""Numbers and places as a person reads them: times, counts, lines of files."""

from __future__ import annotations

import os

__all__ = ["counted", "seconds_in_words", "short_source"]


def seconds_in_words(seconds: float) -> str:
    """A time in the unit that suits.

    >>> [seconds_in_words(t) for t in (2.5, 0.0123, 4.2e-5, 0)]
    ['2.50 s', '12.3 ms', '42 us', '0 us']
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.0f} us"


def short_source(source: str) -> str:
    """A file as it is seen from here, or its last two parts, and the line."""
    if not source:
        return ""
    name, _, line = source.rpartition(":")
    here = os.getcwd() + os.sep
    near = name.removeprefix(here) if name.startswith(here) else os.sep.join(name.split(os.sep)[-2:])
    return f"{near}:{line}"


def counted(count: int, noun: str) -> str:
    """``1 copy``, ``2 copies``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else many}"
