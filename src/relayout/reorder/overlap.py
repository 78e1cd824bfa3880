"""Whether a source and a destination have bits of memory in common.

Views of one buffer often interleave: the two columns of a matrix, the fields of a record, the first channels
of each pixel and the others. Their ranges overlap, and they share nothing. Two tests tell, the cheap one
first, and neither ever calls apart what is not.

**By residues.** Modulo some ``m``, every digit whose stride is a multiple of ``m`` vanishes. The others move
an element no further than they reach, so all of a side lies in one interval modulo ``m``; if the intervals of
both sides do not meet there, no two elements do. Fields of a record of 8 bytes, f32 at 0 and u8 at 4::

    m = 64 bits:  source [0, 32)   destination [32, 40)        apart, however many records there are

Strides and their common divisors are tried as ``m``. What this can't tell may still be apart: it compares
intervals, and neither knows in which order a digit takes its values nor that some combinations never occur.

**Place by place.** All elements of both sides are looked up, where there are not too many of them. That is
exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout

__all__ = ["overlap"]

COMPARED = 1 << 22  # elements up to which views are compared place by place


class _Side(NamedTuple):
    """Elements of ``width`` bits, the first from ``start`` on, repeated along digits of (count, stride)."""

    start: int
    width: int
    digits: tuple[tuple[int, int], ...]

    def interval(self, modulus: int) -> tuple[int, int]:
        """Where all elements lie modulo a number, from which bit to before which, not reduced."""
        low = high = self.start
        for count, stride in self.digits:
            if stride % modulus:
                low += min(0, (count - 1) * stride)
                high += max(0, (count - 1) * stride)
        return low, high + self.width


def overlap(src: MemoryDesc, source_at: int, dst: MemoryDesc, target_at: int) -> bool:
    """Whether the destination, its padding included, has a place in common with an element of the source.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors of any dims and data types.
    source_at, target_at : int
        The addresses of their buffers, in bytes.

    Returns
    -------
    bool
        False only if they share nothing. True if they do; or, for views of more than 4 million elements,
        if that can't be told from their strides.

    Examples
    --------
    Records of 8 bytes with an f32 and a u8 behind it:

    >>> from relayout.layout.layout import Layout
    >>> values = MemoryDesc((1000,), "f32", Layout((1000,), strides=(2,)))
    >>> flags = MemoryDesc((1000,), "u8", Layout((1000,), strides=(8,)))
    >>> overlap(values, 0, flags, 4), overlap(values, 0, flags, 3)
    (False, True)
    """
    if 0 in src.dims or 0 in dst.dims:
        return False
    room = dst.layout.room() if dst.layout.has_padding else dst.layout
    source, target = _side(src.layout, src.dtype.bits, source_at), _side(room, dst.dtype.bits, target_at)
    if _out_of_range(src, source_at, dst, target_at) or _apart(source, target):
        return False
    if max(src.layout.size, room.size) > COMPARED:
        return True
    return _meet(_places(src.layout, source), source.width, _places(room, target), target.width)


def _side(layout: Layout, bits: int, address: int) -> _Side:
    digits = tuple(
        (digit.extent, digit.stride * bits)
        for ladder in layout.ladders
        for digit in ladder
        if digit.extent > 1
    )
    return _Side(address * 8 + layout.offset0 * bits, bits, digits)


def _out_of_range(src: MemoryDesc, source_at: int, dst: MemoryDesc, target_at: int) -> bool:
    """Whether all of one lies before all of the other."""
    ranges = []
    for desc, address in ((src, source_at), (dst, target_at)):
        low, high = desc.layout.bounds()
        bits = desc.dtype.bits
        ranges.append((address * 8 + low * bits, address * 8 + (high + 1) * bits))
    return ranges[0][1] <= ranges[1][0] or ranges[1][1] <= ranges[0][0]


def _apart(one: _Side, two: _Side) -> bool:
    """Whether the intervals of both sides are disjoint modulo some number."""
    for modulus in _moduli(one, two):
        (low, high), (first, last) = one.interval(modulus), two.interval(modulus)
        distance = (first - low) % modulus
        if distance >= high - low and modulus - distance >= last - first:
            return True
    return False


def _moduli(one: _Side, two: _Side) -> Iterator[int]:
    """The strides of both sides, and the common divisors of the largest ones, each once."""
    strides = sorted({abs(stride) for _, stride in (*one.digits, *two.digits) if stride}, reverse=True)
    yield from dict.fromkeys((*strides, *accumulate(strides, gcd)))


def _places(layout: Layout, side: _Side) -> NDArray[np.int64]:
    """The first bit of every element, each once, in rising order."""
    offsets = layout.offsets(np.moveaxis(np.indices(layout.dims), 0, -1))
    return np.unique(offsets) * side.width + (side.start - layout.offset0 * side.width)


def _meet(one: NDArray[np.int64], width: int, two: NDArray[np.int64], other: int) -> bool:
    """Whether any elements of two rising lists of places, of so many bits each, have bits in common."""
    nearest = np.searchsorted(two, one - other, side="right")  # the first that does not end before
    inside = nearest < len(two)
    return bool((two[nearest[inside]] < one[inside] + width).any())
