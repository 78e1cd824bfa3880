"""Where the padding of a layout lies, as nests of loops.

Padding is the room that no element uses: term by term, the numbers from the size of the term to its room,
with every number of the other terms. 17 channels in blocks of 8 have room for 24, so ``nChw8c`` has padding
at channels 17 to 23 of every pixel:

>>> list(padding_nests(Layout((1, 17, 2, 2), "nChw8c")))
[Nest(start=65, loops=((2, 16), (2, 8), (7, 1)))]

Where two terms have padding, their corner is in the nests of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from relayout.layout.layout import Digit, Layout

__all__ = ["Nest", "padding_nests"]


class Nest(NamedTuple):
    """Places that nested loops reach."""

    start: int
    """The first place, in elements."""
    loops: tuple[tuple[int, int], ...]
    """Extents and steps (in elements), outermost first."""


def padding_nests(layout: Layout) -> Iterator[Nest]:
    """All padding of a layout; no nest has places that are no padding."""
    if not layout.has_padding:
        return
    for t, (ladder, room) in enumerate(zip(layout.ladders, layout.padded, strict=True)):
        own = _nests(ladder, layout.term_size(t), room)
        others = [
            list(_nests(other, 0, size))
            for u, (other, size) in enumerate(zip(layout.ladders, layout.padded, strict=True))
            if u != t
        ]
        for parts in product(*others, own):
            loops = tuple(loop for part in parts for loop in part.loops if loop[0] > 1)
            yield Nest(layout.offset0 + sum(part.start for part in parts), loops)


def _nests(ladder: Sequence[Digit], start: int, stop: int) -> Iterator[Nest]:
    """The places of the numbers ``start .. stop - 1`` of one term.

    What is in front of whole steps of the first digit, these, and what is behind: at most two nests a digit.

    >>> [*_nests((Digit(8, 3, 32), Digit(1, 8, 1)), 5, 17)]
    [Nest(start=5, loops=((3, 1),)), Nest(start=32, loops=((1, 32), (8, 1))), Nest(start=64, loops=((1, 1),))]
    """
    if start >= stop:
        return
    (weight, _, stride), rest = ladder[0], ladder[1:]
    if not rest:
        yield Nest(start * stride, ((stop - start, stride),))
        return
    (first, before), (last, behind) = divmod(start, weight), divmod(stop, weight)
    if first == last:
        yield from _moved(_nests(rest, before, behind), first * stride)
        return
    if before:
        yield from _moved(_nests(rest, before, weight), first * stride)
        first += 1
    if first < last:
        inner = tuple((digit.extent, digit.stride) for digit in rest)
        yield Nest(first * stride, ((last - first, stride), *inner))
    yield from _moved(_nests(rest, 0, behind), last * stride)


def _moved(nests: Iterator[Nest], distance: int) -> Iterator[Nest]:
    return (Nest(start + distance, loops) for start, loops in nests)
