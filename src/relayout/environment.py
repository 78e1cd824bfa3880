"""What a process is told from outside: numbers that environment variables give, and when it began."""

from __future__ import annotations

import os
import sys
import time

from relayout.errors import LayoutError

__all__ = ["EFFORTS", "LOADED", "effort", "named_number", "processor", "settings"]

LOADED = time.time_ns()
"""About when this process imported the package, in nanoseconds since the epoch."""

_SETTINGS = "RELAYOUT_STREAMING", "RELAYOUT_SHARING", "RELAYOUT_EFFORT", "RELAYOUT_CPU", "RELAYOUT_CACHE"

EFFORTS = ("estimate", "measure")


def settings() -> tuple[str | None, ...]:
    """What decides which kernels are made and where they are found, besides the number of threads."""
    return tuple(map(os.environ.get, _SETTINGS))


def processor() -> str:
    """The processor to make code for, ``RELAYOUT_CPU``; empty: this one."""
    return os.environ.get("RELAYOUT_CPU", "")


def effort() -> str:
    """How a schedule is chosen: ``RELAYOUT_EFFORT``, or "measure".

    Raises
    ------
    LayoutError
        The variable has another value.
    """
    named = os.environ.get("RELAYOUT_EFFORT") or EFFORTS[-1]
    if named not in EFFORTS:
        raise LayoutError(f"RELAYOUT_EFFORT={named[:40]!r} is no effort; there are {', '.join(EFFORTS)}")
    return named


def named_number(name: str, what: str, least: int = 0, most: int = sys.maxsize) -> int | None:
    """The number that a variable gives in digits; None where it is not set, or empty.

    Parameters
    ----------
    name : str
        The variable.
    what : str
        What the number counts, for the error, with an example: ``"number of bytes; write ..."``.
    least, most : int
        A smaller number is an error; of a larger one, however many digits it has, ``most`` is taken.

    Raises
    ------
    LayoutError
        It is no number, or a smaller one.

    Examples
    --------
    >>> os.environ["RELAYOUT_EXAMPLE"] = "9" * 5000
    >>> named_number("RELAYOUT_EXAMPLE", "number of threads", most=256)
    256
    >>> del os.environ["RELAYOUT_EXAMPLE"]
    """
    text = os.environ.get(name, "")
    if not text:
        return None
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else None
    if digits is not None and len(digits) > len(str(most)):  # int() refuses thousands of digits
        return most
    if digits is None or int(digits or 0) < least:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise LayoutError(f"{name}={shown!r} is no {what}")
    return min(int(digits or 0), most)
