"""Reorders on disk: all that a process needs to call the kernels of a problem, as another one has found it.

Planning a reorder and making the text of its kernels takes longer than moving a megabyte, and importing what
does it longer still. So what came of it is kept, as a few lines of text::

    the code of its kernels, by the name of its entry         loaded by relayout.jit.engines
    the wish, whether threads are woken, what contest is due  relayout.reorder.choice
    where its kernels look for the values of attributes       relayout.reorder.operands
    which other entries it depends on, and what they said     thresholds and choices that were measured

These lines lie beside the kernels, under the same rules (:mod:`relayout.jit.cache`). Their name is the digest
of the problem and of all that decides what comes of it: the processor and its caches, llvmlite's library, the
number of threads, settings, and this package's source files, as far as the system tells that they are the
same (:func:`relayout.jit.cache.stamp`). Where that can't be told, nothing is kept, and kernels are found by
their text.

What is measured changes what is decided, later and in other processes. So a record says what the entries that
hold measurements said when it was made, and is no longer valid when they say anything else.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from relayout import environment, processors
from relayout.jit import cache, engines
from relayout.jit.identity import identity

if TYPE_CHECKING:
    from relayout.jit.abi import Kernel
    from relayout.layout.descriptor import MemoryDesc
    from relayout.reorder.native import Native

__all__ = ["PLAIN", "Record", "Row", "consulted", "keep", "name", "recalled"]

VERSION: Final = 2
"""Of records; counted up when they change their meaning."""

PLAIN: Final = -1
"""Of a row that holds the values themselves."""

CACHES: Final = (188, 191, 194)
"""``_SC_LEVEL1_DCACHE_SIZE`` and so on, in the C library of GNU; Python has no names for them."""

ABSENT: Final = "-"
"""What an entry says that there is not."""


Row = tuple[str, int, int, int, int]
"""Where kernels look for the values of one attribute.

Its name; :data:`PLAIN`, or which of two bounds of the reciprocals it is, or which of the numbers of lines;
the first byte in the block of operands, and the byte behind the last one; how many values there are, the
first ones again behind the last.
"""


class Record:
    """What is kept of a reorder.

    Attributes
    ----------
    kernels : list of Kernel
        For any destination, and for one that nobody has touched yet.
    divides : bool
        Whether they have a loop that threads can share.
    shares : bool
        Whether it pays to wake threads for it.
    wish : str
        Words that its plans have.
    left : int
        Calls until a contest is due; 0: none is.
    rows : tuple of Row
        Where they look for the values of attributes.
    """

    __slots__ = ("divides", "kernels", "left", "rows", "shares", "wish")

    def __init__(
        self, kernels: list[Kernel], divides: bool, shares: bool, wish: str, left: int, rows: tuple[Row, ...]
    ) -> None:
        self.kernels, self.divides, self.shares = kernels, divides, shares
        self.wish, self.left, self.rows = wish, left, rows


@lru_cache(maxsize=1)
def _here() -> str:
    """What tells processor and source code from others; empty where one of them can't be told."""
    code = cache.stamp(environment.LOADED, cache.REORDERS)
    processor = identity() if code is not None else ""
    return repr((VERSION, code, processor, caches())) if processor else ""


def caches() -> tuple[int, ...]:
    """What changes when the caches do.

    The C library has asked the processor when it was loaded. Its sizes may be of more cores than those of
    :func:`relayout.processors.caches`, which plans go by and which take 13 files to read.
    """
    with contextlib.suppress(OSError, ValueError):  # another C library
        if sys.platform == "linux" and all(found := tuple(map(os.sysconf, CACHES))):
            return found
    return processors.caches()


def name(src: MemoryDesc, dst: MemoryDesc, shape: object, what: str, settings: Sequence[Any]) -> str:
    """The name of a record; empty where none is kept.

    Parameters
    ----------
    src, dst : MemoryDesc
        The descriptors.
    shape : Shape
        The attributes that take part.
    what : str
        A wish, or what else the record is about.
    settings : sequence
        The number of threads, and what :func:`relayout.environment.settings` has said.
    """
    if environment.processor() or not _here():
        return ""
    sides = [(desc.dtype.name, desc.layout._key()) for desc in (src, dst)]
    words = repr((_here(), settings, sides, shape, what))
    return f"plan-{cache.digest(words.encode()).hex()}"


def recalled(name: str) -> Record | None:
    """The record of this name; None where there is none, or it no longer holds."""
    data = cache.load(name) if name else None
    if data is None:
        return None
    rows: list[Row] = []
    try:
        code, wish, numbers, *lines = data.decode().split("\n")
        key, *functions = code.split(" ")
        divides, shares, left, since, until = map(int, numbers.split())
        for line in lines:
            kind, word, *more = line.split(" ")
            if kind == "row":
                bound, begin, end, entries = map(int, more)
                rows.append((word, bound, begin, end, entries))
            elif [line] != consulted([word]):
                return None
        if until and not since < time.time() < until:
            return None
        engine = engines.at_hand(key)
        kernels = [engines.kernel(engine, function) for function in functions] if engine else []
    except (ValueError, TypeError, KeyError):  # what another program has left there
        return None
    if not kernels:
        return None
    return Record(kernels, bool(divides), bool(shares), wish, left, tuple(rows))


def consulted(entries: Sequence[str]) -> list[str]:
    """What other entries say now: a line for each, which is the same for as long as they say it."""
    found = ((entry, cache.load(entry)) for entry in entries)
    return [f"on {entry} {ABSENT if data is None else cache.digest(data).hex()}" for entry, data in found]


def keep(
    name: str, made: Native, said: Sequence[str], left: int = 0, lasts: tuple[int, int] = (0, 0)
) -> None:
    """Keep a record for later processes.

    Parameters
    ----------
    name : str
        Its name, from before the kernels were made.
    made : Native
        The kernels.
    said : sequence of str
        What :func:`consulted` has said of the entries that the kernels depend on, before they were made.
    left : int
        Calls until a contest is due.
    lasts : tuple of int
        From when to when it holds, in seconds since the epoch; 0: always.
    """
    engine = made.kernels[0].engine
    if not engine.key or not cache.settled(environment.LOADED, cache.REORDERS):
        return
    numbers = int(made._divides), int(made._shares), left, *lasts
    code = " ".join([engine.key, *(kernel.name for kernel in made.kernels)])
    lines = [code, made.wish, " ".join(map(str, numbers))]
    lines += [" ".join(map(str, ("row", *row))) for row in made.rows]
    lines += said
    cache.save(name, "\n".join(lines).encode())
