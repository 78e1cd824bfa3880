"""Where a layout puts images, rows, pixels and channels, in bytes: a tensor as the compute kernels see it.

The kernels want numbers in place of formats: how far apart images, planes, rows and pixels lie, and for
channels a list of digits. Spatial axes that a tensor does not have are one element long.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from relayout.ir.builder import Builder, Operand
from relayout.ir.types import Value
from relayout.ir.vectors import Piece, pieces_of
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.digits import digit_sum
from relayout.layout.layout import Digit

__all__ = ["LEAST", "Side", "digits_of", "distance", "offset_code", "pieces_at", "places_of", "side_of"]

LEAST = 4  # lanes that must lie together to be loaded or stored as a vector


class Side(NamedTuple):
    """One tensor: digits an axis, strides in bytes."""

    start: int
    """Bytes before element (0, 0, 0, 0, 0)."""
    batch: tuple[Digit, ...]
    channels: tuple[Digit, ...]
    spatial: tuple[tuple[Digit, ...], ...]
    """Of depth, height and width."""
    room: int
    """Channels that there is room for, padding included."""

    @property
    def is_plain(self) -> bool:
        """Whether each spatial axis has one stride."""
        return all(len(digits) == 1 for digits in self.spatial)

    @property
    def steps(self) -> tuple[int, int, int]:
        """Strides of depth, height and width, where they are plain."""
        d, h, w = (digits[0].stride for digits in self.spatial)
        return d, h, w


def digits_of(desc: MemoryDesc) -> list[tuple[Digit, ...]] | None:
    """The digits of all axes, strides in bytes; None where axes are fused."""
    layout, size = desc.layout, desc.dtype.bits // 8
    if any(len(term) != 1 for term in layout.terms):
        return None
    found = {
        term[0]: tuple(Digit(d.weight, d.extent, d.stride * size) for d in ladder)
        for term, ladder in zip(layout.terms, layout.ladders, strict=True)
    }
    return [found[axis] for axis in range(layout.rank)]


def side_of(desc: MemoryDesc) -> Side | None:
    """A tensor whose axes are batch, channels and up to three spatial ones; None where axes are fused."""
    digits = digits_of(desc)
    if digits is None or desc.dtype.bits % 8:
        return None
    layout, (batch, channels, *spatial) = desc.layout, digits
    one = (Digit(1, 1, 0),)
    return Side(
        layout.offset0 * desc.dtype.bits // 8,
        batch,
        channels,
        (*(one for _ in range(3 - len(spatial))), *spatial),
        layout.padded_dims[1],
    )


@lru_cache(maxsize=256)
def places_of(digits: tuple[Digit, ...], count: int) -> tuple[int, ...]:
    """Where the numbers 0 .. count - 1 lie; the first digit is open, so that padding has a place, too.

    >>> places_of((Digit(2, 2, 100), Digit(1, 2, 4)), 5)
    (0, 4, 100, 104, 200)
    """
    return tuple(digit_sum(digits, np.arange(count)).tolist())


def distance(places: Sequence[int]) -> int | None:
    """How far each place is from the one before, 0 for one place alone; None where that varies.

    >>> distance((4, 12, 20)), distance((4,)), distance((4, 12, 16))
    (8, 0, None)
    """
    step = places[1] - places[0] if len(places) > 1 else 0
    if not step:
        return 0 if len(set(places)) == 1 else None
    return step if tuple(places) == tuple(range(places[0], places[0] + len(places) * step, step)) else None


def offset_code(b: Builder, index: Value, digits: Sequence[Digit]) -> Operand:
    """The bytes at an index that is known at run time."""
    total: Operand = 0
    for k, digit in enumerate(digits):
        if digit.extent == 1 or not digit.stride:
            continue
        part = b.udiv(index, digit.weight)
        total = b.add(total, b.mul(b.urem(part, digit.extent) if k else part, digit.stride))
    return total


def pieces_at(places: Sequence[int], size: int) -> tuple[Piece, ...] | None:
    """Lanes at these places, of so many bytes each; None where too few of them lie together.

    >>> pieces_at([0, 4, 8, 12, 100], 4)
    (Piece(lane=0, lanes=4, offset=0), Piece(lane=4, lanes=1, offset=100))
    """
    found: list[Piece] = []
    start = 0
    while start < len(places):
        end = start + 1
        while end < len(places) and places[end] == places[end - 1] + size:
            end += 1
        if end - start < LEAST < len(places) - start:
            return None
        found += pieces_of(start, end - start, places[start], size)
        start = end
    return tuple(found)
