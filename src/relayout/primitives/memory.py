"""Where the values of a sequence lie: one piece of memory, in which places are used again and again.

A value is *alive* from the step that makes it to the last one that reads it. Two that are never alive at the
same time may have the same place::

    step        0    1    2    3    4              offset
    a  100 B    |----|                             0         a and d share a place
    b   60 B         |----|                        128       behind a
    c   50 B              |----|                   0         again the place of a
    d  100 B                   |----|              64        behind c

To find the smallest memory is hard (it is the packing of rectangles whose horizontal places are given), but
to be near it is easy: one value after the other into the smallest gap between those that are alive together
with it, or behind them. Two orders are tried, the largest first and the earliest first, and the better one is
taken; the first is good where sizes differ much, the second along chains. What can't be beaten is known, too:
the most bytes that are alive at once.

>>> memory = arranged([Span(100, 0, 1), Span(60, 1, 2), Span(50, 2, 3), Span(100, 3, 4)])
>>> memory.offsets, memory.peak
((0, 128, 0, 64), 192)
>>> memory.bound, memory.total
(192, 384)

Places begin on cache lines, so that no two values share one: threads would fight over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

__all__ = ["ALIGNED", "Memory", "Span", "arranged"]

ALIGNED = 64  # bytes: a cache line, and the widest vectors


class Span(NamedTuple):
    """So many bytes, from one step to another, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        """Whether there is a step at which both are alive."""
        return self.first <= other.last and other.first <= self.last


class Memory(NamedTuple):
    """Offsets of spans, and how good they are; all in bytes, each span rounded up to whole cache lines."""

    offsets: tuple[int, ...]
    """In the order in which the spans were given."""
    peak: int
    """What the memory must hold."""
    bound: int
    """The most that is alive at once: no arrangement has a smaller peak."""
    total: int
    """What it would take if nothing were shared."""


def arranged(spans: Sequence[Span]) -> Memory:
    """Give each span a place.

    Parameters
    ----------
    spans : sequence of Span
        What is to be placed; spans of no bytes get offset 0.

    Returns
    -------
    Memory
        Those that meet don't overlap.
    """
    sizes = [-(-span.size // ALIGNED) * ALIGNED for span in spans]
    everyone = range(len(spans))
    orders = (
        sorted(everyone, key=lambda k: (-sizes[k], spans[k].first)),
        sorted(everyone, key=lambda k: (spans[k].first, -sizes[k])),
    )
    found = [_placed(spans, sizes, order) for order in orders]
    peak, offsets = min(found, key=lambda one: one[0])
    return Memory(tuple(offsets), peak, _most_alive(spans, sizes), sum(sizes))


def _placed(spans: Sequence[Span], sizes: Sequence[int], order: Sequence[int]) -> tuple[int, list[int]]:
    """The peak, and the offsets, if spans are placed in some order."""
    offsets = [0] * len(spans)
    placed: list[int] = []
    for k in order:
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in placed
            if spans[k].meets(spans[other])
        )
        offsets[k] = _tightest(taken, sizes[k]) if sizes[k] else 0
        placed.append(k)
    return max((o + n for o, n in zip(offsets, sizes, strict=True)), default=0), offsets


def _tightest(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Where the smallest gap of at least ``size`` begins; behind everything if there is none."""
    best, room, end = -1, -1, 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < room):
            best, room = end, gap
        end = max(end, stop)
    return best if best >= 0 else end


def _most_alive(spans: Sequence[Span], sizes: Sequence[int]) -> int:
    """The most bytes that are alive at one step."""
    changes: dict[int, int] = {}
    for span, size in zip(spans, sizes, strict=True):
        changes[span.first] = changes.get(span.first, 0) + size
        changes[span.last + 1] = changes.get(span.last + 1, 0) - size
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)
