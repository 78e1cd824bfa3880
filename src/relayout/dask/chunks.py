"""Chunks of axes as chunks of digits: arithmetic without Dask.

A chunked array cuts each axis at some places. Its physical form has an axis for each digit of the format, and
is chunked, too. If each cut of an axis lies between two blocks of the format, then a chunk of the logical
array *is* a chunk of the physical one: the open digit is cut, at the same place counted in blocks, and all
other digits are whole ::

    nChw16c, c = 40          axis c      0 ........ 16 ........ 32 .... 40      chunks (16, 24) or (32, 8)
                             digit c//16       0          1         2           chunks (1, 2)   or (2, 1)

A cut inside a block leaves no choice: the two parts of the block come from two chunks, and one of them has to
move. :func:`aligned` moves the cut to the nearest place between two blocks.

Fused axes are one number, ``y * X + x``. It is cut where its first axis is, so the others are whole chunks,
and the distance of places where both can be cut is that of the least common multiple.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import lcm, prod
from typing import NamedTuple

from relayout.layout.layout import Layout

__all__ = ["Cut", "aligned", "cuts", "physical_shape"]

Chunks = tuple[int, ...]
"""The sizes of the chunks along one axis."""


def physical_shape(layout: Layout) -> tuple[int, ...]:
    """The extents of a dense layout's digits in the order of memory, padding included.

    >>> physical_shape(Layout((2, 17, 5, 4), "nChw16c"))
    (2, 2, 5, 4, 16)
    """
    return tuple(digit.extent for digit in layout.digits)


class Cut(NamedTuple):
    """Where one term of a layout can be cut into chunks that are whole blocks."""

    axis: int
    """The logical axis that is cut; other axes of the term are whole."""
    whole: tuple[int, ...]
    """Those other axes."""
    place: int
    """The axis of the physical array that is cut: the place of the term's open digit."""
    weight: int
    """The elements of the term in one step of that digit."""
    rest: int
    """The elements of the term in one step of the logical axis: 1, or the product of axes in ``whole``."""

    @property
    def unit(self) -> int:
        """Between two cuts of the logical axis there is a multiple of this number of steps."""
        return lcm(self.weight, self.rest) // self.rest

    @property
    def physical_unit(self) -> int:
        """The same in steps of the open digit."""
        return lcm(self.weight, self.rest) // self.weight

    def physical(self, chunks: Chunks) -> Chunks:
        """Chunks of the open digit for aligned chunks of the logical axis; the last is rounded up."""
        return _sizes([-(-end * self.rest // self.weight) for end in accumulate(chunks)])

    def logical(self, chunks: Chunks) -> Chunks:
        """Chunks of the logical axis, padding included, for aligned chunks of the open digit.

        Where the padding is not as long as a step of the axis, which happens with fused axes, it is left out.
        """
        return _sizes([end * self.weight // self.rest for end in accumulate(chunks)])


def cuts(layout: Layout) -> tuple[Cut, ...]:
    """For each term of a layout with elements, how it can be cut.

    >>> [cut.unit for cut in cuts(Layout((2, 17, 5, 4), "nChw16c"))]
    [1, 16, 1, 1]
    """
    found = []
    for term, axes in enumerate(layout.terms):
        first = next((k for k, axis in enumerate(axes) if layout.dims[axis] > 1), 0)
        found.append(
            Cut(
                axis=axes[first],
                whole=tuple(axis for axis in axes if axis != axes[first]),
                place=layout.order.index((term, 0)),
                weight=layout.ladders[term][0].weight,
                rest=prod(layout.dims[axis] for axis in axes[first + 1 :]),
            )
        )
    return tuple(found)


def aligned(chunks: Chunks, unit: int) -> Chunks:
    """The chunks themselves where all cuts are at multiples of ``unit``; else such that are close to them.

    Each cut goes to the nearest multiple; cuts that meet are one.

    >>> aligned((16, 32, 5), 16), aligned((10, 10, 10, 10), 16)
    ((16, 32, 5), (16, 16, 8))
    """
    *inner, total = accumulate(chunks)
    if all(end % unit == 0 for end in inner):
        return chunks
    moved = {(end + unit // 2) // unit * unit for end in inner}
    return _sizes([*sorted(end for end in moved if 0 < end < total), total])


def _sizes(ends: Sequence[int]) -> Chunks:
    return tuple(end - start for start, end in pairwise((0, *ends)))
