"""How a reorder is run, as far as that is a matter of the machine: plain data that prints itself.

A nest fixes *what* is moved. Its kernel can still be run in several ways that give the same bytes: by way of
a stage or straight from memory, around the caches or through them, in larger or smaller blocks. Which is
fastest depends on caches, prefetchers and neighbours, so none of this is a rule. :mod:`.choice` has an
estimate for each; a :class:`Schedule` says where to depart from it, and :mod:`relayout.reorder.tuning`
measures a few of them.

>>> print(Schedule()), print(Schedule(stage=False, rows=128))
estimate
direct, 128 rows
(None, None)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["ESTIMATE", "Schedule", "candidates", "read"]

_WORDS = {
    "stage": ("staged", "direct"),
    "buffer": ("buffered", "unbuffered"),
    "stream": ("streamed", "cached"),
    "prefetch": ("prefetched", "not prefetched"),
    "sweep": ("rows outermost", "rows innermost"),
    "tile": ("tiled", "not tiled"),
}
"""For each choice the words of either way."""


class Schedule(NamedTuple):
    """Departures from the estimate; None: as estimated."""

    stage: bool | None = None
    """Transposes: lines of the source are copied to a small buffer first, and transposed from there."""
    buffer: bool | None = None
    """Pieces of the destination that are no whole lines pass through a buffer, and leave in whole lines."""
    stream: bool | None = None
    """Whole lines are written by streaming (non-temporal) stores, around the caches."""
    prefetch: bool | None = None
    """Source rows that are far apart are prefetched."""
    sweep: bool | None = None
    """Transposes: blocks of rows are the outermost loop, so that source rows are used up one by one."""
    rows: int | None = None
    """Rows, of a transpose or short ones, that are worked on together: as long are the pieces written."""
    tile: bool | None = None
    """Few planes are transposed in tiles, instead of being interleaved or picked apart vector by vector."""

    def __str__(self) -> str:
        words = [
            _WORDS[name][not given]
            for name, given in zip(self._fields, self, strict=True)
            if isinstance(given, bool)
        ]
        if self.rows is not None:
            words.append(f"{self.rows} rows")
        return ", ".join(words) or "estimate"


ESTIMATE = Schedule()


def read(text: str) -> Schedule | None:
    """Read what a schedule prints; None if it is none.

    >>> read("direct, 128 rows") == Schedule(stage=False, rows=128), read("sideways")
    (True, None)
    """
    found: dict[str, Any] = {}
    for word in text.split(", ") if text != "estimate" else ():
        number = re.fullmatch(r"([1-9][0-9]{0,5}) rows", word)
        named = [(name, word == ways[0]) for name, ways in _WORDS.items() if word in ways]
        if number is not None:
            found["rows"] = int(number[1])
        elif named:
            found[named[0][0]] = named[0][1]
        else:
            return None
    made = Schedule(**found)
    return made if str(made) == text else None


def candidates(stream: bool) -> Iterator[Schedule]:
    """Schedules worth measuring, the estimate first; ``stream``: what it estimates about that.

    One departure at a time, and those that go together. Most of them change nothing about a given nest, and
    then give the same plans as one before.
    """
    yield ESTIMATE
    flips = [
        Schedule(stream=not stream),
        *(Schedule(stage=way) for way in (False, True)),
        *(Schedule(sweep=way) for way in (False, True)),
        *(Schedule(buffer=way) for way in (False, True)),
        *(Schedule(prefetch=way) for way in (False, True)),
        *(Schedule(rows=rows) for rows in (8, 16, 32, 64, 128, 256)),
        Schedule(tile=True),
    ]
    yield from flips
    yield from (
        one._replace(stream=not stream) for one in flips[1:] if one.stage is not None or one.rows or one.tile
    )
    yield from (Schedule(stage=True, rows=rows) for rows in (128, 256))
