"""Names as messages show them.

File names are bytes, and array names are whatever somebody wrote into a file. Both may hold what can't be
printed: bytes that are not UTF-8 (which Python keeps as surrogates), line ends, the escape sequences of a
terminal.
"""

from __future__ import annotations

import os

__all__ = ["MOST_LISTED", "listed", "spelled"]

MOST_LISTED = 12


def spelled(name: str | os.PathLike[str]) -> str:
    r"""A name in which everything can be printed, on one line.

    >>> spelled("w.npy"), spelled("ö\n.npy"), spelled("\udcff.npy")  # the last is the byte 0xff
    ('w.npy', 'ö\\n.npy', '\\xff.npy')
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in os.fspath(name))


def listed(names: list[str]) -> str:
    """Some names, for messages.

    >>> listed(["w", "b"])
    '2 arrays: w, b'
    """
    if not names:
        return "no arrays"
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    shown = ", ".join(spelled(name) for name in names[:MOST_LISTED])
    return f"{len(names)} array{'s' * (len(names) != 1)}: {shown}{more}"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else repr(character)[1:-1]
