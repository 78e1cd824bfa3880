"""A convolution without formats: how many of what, and which input element meets which filter element.

All sizes are given for depth, height and width; spatial axes that a tensor does not have count 1::

    input = output * stride + tap * dilation - padding

Inner products and matrix products are convolutions whose output has one pixel (or whose filter has one tap).

The transpose of a convolution with strides has *gaps*: its input elements lie that far apart, with nothing
between them, and an output meets only the taps that fall on one::

    input * gap = output * stride + tap * dilation - padding
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, prod
from typing import NamedTuple

__all__ = [
    "Geometry",
    "Sizes",
    "Span",
    "few_borders",
    "in_three",
    "is_spread",
    "lane_patterns",
    "rows_have_taps",
    "share_inside",
    "spans",
    "taps_inside",
]

Sizes = tuple[int, int, int]


class Geometry(NamedTuple):
    """The numbers of a convolution; ``inputs`` and ``outputs`` are channels of one group.

    >>> g = Geometry(1, 1, 64, 64, (1, 56, 56), (1, 56, 56), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1))
    >>> g.flops, g.inside
    (231211008, False)
    """

    batch: int
    groups: int
    inputs: int
    outputs: int
    source: Sizes
    target: Sizes
    kernel: Sizes
    strides: Sizes
    dilation: Sizes
    padding: Sizes
    """In front of the first element; what lies behind the last one follows from the other sizes."""
    gaps: Sizes = (1, 1, 1)
    """From one element of the source to the next, in the units of strides, dilation and padding."""
    apart: bool = False
    """Whether each group has vectors of its own, though several groups would fit in one."""

    @classmethod
    def of_matrices(cls, rows: int, inputs: int, outputs: int, groups: int = 1, pixels: int = 1) -> Geometry:
        """A product of matrices: filters of one tap, and rows that are images or pixels of one.

        >>> Geometry.of_matrices(8, 64, 32).flops
        32768
        """
        one, size = (1, 1, 1), (1, 1, pixels)
        return cls(rows, groups, inputs, outputs, size, size, one, one, one, (0, 0, 0))

    @property
    def exchanged(self) -> Geometry:
        """The same with source and destination exchanged, as their gradients have it."""
        return self._replace(inputs=self.outputs, outputs=self.inputs, source=self.target, target=self.source)

    @property
    def taps(self) -> int:
        """Elements of a filter, for one input channel."""
        return prod(self.kernel)

    @property
    def pixels(self) -> int:
        """Pixels of one output image."""
        return prod(self.target)

    @property
    def flops(self) -> int:
        """Operations, taps in the padding included: two for a multiplication and an addition."""
        products = self.batch * self.groups * self.outputs * self.inputs * self.taps * self.pixels
        return 2 * products // prod(self.gaps)

    def reach(self, axis: int, outputs: int) -> int:
        """How many input elements so many neighbouring outputs touch along a spatial axis."""
        last = (outputs - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilation[axis]
        return last // self.gaps[axis] + 1

    def always_inside(self, axis: int) -> bool:
        """Whether all taps of all outputs fall on elements along an axis."""
        if self.gaps[axis] > 1:
            return False
        return not self.padding[axis] and self.reach(axis, self.target[axis]) <= self.source[axis]

    @property
    def inside(self) -> bool:
        """Whether every tap of every output falls on an input element."""
        return all(self.always_inside(axis) for axis in range(3))


def in_three(given: Sequence[int], missing: int = 1) -> Sizes:
    """Depth, height and width, from what a tensor has of them.

    >>> in_three([7, 5])
    (1, 7, 5)
    """
    d, h, w = [missing] * (3 - len(given)) + list(given)
    return d, h, w


def is_spread(geometry: Geometry, lanes: int) -> bool:
    """Whether a vector holds output channels of several groups."""
    outputs = geometry.outputs
    few = geometry.groups > 1 and 0 < outputs < lanes and lanes % outputs == 0
    return few and geometry.inputs <= outputs and not geometry.apart


def lane_patterns(geometry: Geometry, lanes: int) -> tuple[tuple[int, ...], ...]:
    """For each input channel of a group, which lane of the loaded channels each lane takes.

    None where all lanes are of one group: then an element of the source is in all of them.
    """
    per, inputs = geometry.outputs, geometry.inputs
    if not is_spread(geometry, lanes):
        return ()
    return tuple(tuple(lane // per * inputs + k for lane in range(lanes)) for k in range(inputs))


class Span(NamedTuple):
    """Tiles of a row that are alike."""

    start: int
    """The first output pixel."""
    pixels: int
    """Outputs of each tile."""
    tiles: int
    taps: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """For each source pixel, counted from where the first tap of the first output falls: to which outputs it
    belongs, and by which tap."""
    outside: tuple[tuple[int, int], ...]
    """The outputs and their taps that fall on no pixel; none where there are gaps."""


def taps_inside(geometry: Geometry, axis: int, output: int) -> list[tuple[int, int]]:
    """The taps of an output that fall on an element along an axis, and on which.

    >>> g = Geometry(1, 8, 1, 1, (1, 7, 7), (1, 4, 4), (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1))
    >>> taps_inside(g, 2, 0), taps_inside(g, 2, 3)
    ([(1, 0), (2, 1)], [(0, 5), (1, 6)])
    """
    start = output * geometry.strides[axis] - geometry.padding[axis]
    places = ((tap, start + tap * geometry.dilation[axis]) for tap in range(geometry.kernel[axis]))
    gap = geometry.gaps[axis]
    found = [(tap, place // gap) for tap, place in places if place % gap == 0]
    return [(tap, element) for tap, element in found if 0 <= element < geometry.source[axis]]


MOST_BORDER = 4096
"""Outputs along an axis that have taps outside: where there are more, nothing is written for each of them."""


def at_border(geometry: Geometry, axis: int) -> tuple[range, range]:
    """The outputs along an axis that have taps outside: in front, and behind.

    >>> g = Geometry(1, 8, 1, 1, (1, 7, 7), (1, 4, 4), (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1))
    >>> at_border(g, 2)
    (range(0, 1), range(3, 4))
    """
    outputs, stride = geometry.target[axis], geometry.strides[axis]
    front = min(outputs, -(-geometry.padding[axis] // stride))
    room = geometry.source[axis] + geometry.padding[axis] - geometry.reach(axis, 1)
    behind = room // stride + 1  # the first output of which a tap lies behind the last element
    return range(front), range(max(front, min(behind, outputs)), outputs)


def few_borders(geometry: Geometry) -> bool:
    """Whether so few outputs of a row have taps outside that tiles can be written for each of them."""
    if geometry.gaps[2] > 1:
        return geometry.target[2] <= MOST_BORDER
    return sum(map(len, at_border(geometry, 2))) <= MOST_BORDER


def rows_have_taps(geometry: Geometry) -> bool:
    """Whether a tap of each output row and plane falls inside; not where very many are at a border."""
    for axis in (0, 1):
        if geometry.gaps[axis] > 1:
            outputs = geometry.target[axis]
            if outputs > MOST_BORDER or not all(taps_inside(geometry, axis, at) for at in range(outputs)):
                return False
            continue
        front, behind = at_border(geometry, axis)
        if len(front) + len(behind) > MOST_BORDER:
            return False
        if not all(_taps_of(geometry, axis, at) for several in (front, behind) for at in several):
            return False
    return True


def share_inside(geometry: Geometry, axis: int) -> float:
    """The share of the taps of all outputs that fall inside along an axis.

    >>> g = Geometry(1, 8, 1, 1, (1, 7, 7), (1, 4, 4), (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1))
    >>> share_inside(g, 1) == 10 / 12
    True
    """
    taps, outputs = geometry.kernel[axis], geometry.target[axis]
    lost = sum(taps - _taps_of(geometry, axis, at) for several in at_border(geometry, axis) for at in several)
    return 1 - lost / (taps * outputs)


def _taps_of(geometry: Geometry, axis: int, output: int) -> int:
    """How many taps of an output fall on an element along an axis."""
    start, gap = output * geometry.strides[axis] - geometry.padding[axis], geometry.dilation[axis]
    first = max(0, -(start // gap))  # the first tap that lies behind the padding
    last = min(geometry.kernel[axis] - 1, (geometry.source[axis] - 1 - start) // gap)
    return max(0, last - first + 1)


def spans(geometry: Geometry, most: int) -> tuple[Span, ...]:
    """Cut a row into tiles of about the same size; where there are gaps all begin alike behind one."""
    width, start, gap = geometry.target[2], 0, geometry.gaps[2]
    pixels = ceil(width / ceil(width / most))
    pixels = max(pixels // gap, 1) * gap
    room = geometry.source[2] + geometry.padding[2] - geometry.reach(2, 1)
    inside = min(width, room // geometry.strides[2] + 1)  # from there on, taps fall behind the last pixel
    found: list[Span] = []
    while start < width:
        span = _tile(geometry, start, min(pixels, width - start))
        if not span.outside and gap == 1:
            span = span._replace(tiles=max(1, (inside - start) // pixels))
        if found and found[-1]._replace(start=start, tiles=1) == span:
            found[-1] = found[-1]._replace(tiles=found[-1].tiles + 1)
        else:
            found.append(span)
        start += span.tiles * span.pixels
    return tuple(found)


def _tile(geometry: Geometry, start: int, pixels: int) -> Span:
    """One tile of a row."""
    gap = geometry.gaps[2]
    origin = (start * geometry.strides[2] - geometry.padding[2]) // gap
    uses: dict[int, list[tuple[int, int]]] = {}
    for pixel in range(pixels):
        for tap, element in taps_inside(geometry, 2, start + pixel):
            uses.setdefault(element - origin, []).append((pixel, tap))
    inside = {use for found in uses.values() for use in found}
    every = product(range(pixels), range(geometry.kernel[2])) if gap == 1 else ()
    outside = tuple(use for use in every if use not in inside)
    return Span(start, pixels, 1, tuple((at, tuple(uses[at])) for at in sorted(uses)), outside)
