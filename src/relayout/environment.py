"""What a process is told from outside: numbers that environment variables give, and when it began."""

from __future__ import annotations

import os
import sys
import time

from relayout.errors import LayoutError

__all__ = ["LOADED", "named_number"]

LOADED = time.time_ns()
"""About when this process imported the package, in nanoseconds since the epoch."""


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
