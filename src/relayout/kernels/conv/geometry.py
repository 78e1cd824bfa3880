"""A convolution without formats: how many of what, and which input element meets which filter element.

All sizes are given for depth, height and width; spatial axes that a tensor does not have count 1::

    input = output * stride + tap * dilation - padding

Inner products and matrix products are convolutions whose output has one pixel (or whose filter has one tap).
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

__all__ = ["Geometry", "Sizes"]

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
        return 2 * self.batch * self.groups * self.outputs * self.inputs * self.taps * self.pixels

    def reach(self, axis: int, outputs: int) -> int:
        """How many input elements so many neighbouring outputs touch along a spatial axis."""
        return (outputs - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1

    @property
    def inside(self) -> bool:
        """Whether every tap of every output falls on an input element."""
        return all(not self.padding[a] and self.reach(a, self.target[a]) <= self.source[a] for a in range(3))
