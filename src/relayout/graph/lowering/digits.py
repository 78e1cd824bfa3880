"""Channels in the order in which they lie, for what adds up products over them.

A sum does not ask in which order its terms come. So where the channels of a value lie in another order than
their numbers, as behind a channel shuffle, or the pixels and channels of an image that is read as one row,
whoever multiplies them by constant weights goes over them as they lie, and the weights are packed alike::

    Concat(a, b) -> shuffle -> Conv(w)      memory a0 a1 a2 b0 b1 b2, numbers a0 b0 a1 b1 a2 b2
                                            read as a0 a1 a2 b0 b1 b2, with columns 0 2 4 1 3 5 of w
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.tensor import Tensor, tensor

__all__ = ["Renumbered", "permuted", "renumbering"]

Renumbered: TypeAlias = Callable[[Layout, int], Layout]
"""What renumbers the indices of an axis of any layout that has as many."""


def renumbering(layout: Layout, axis: int) -> Renumbered | None:
    """What numbers the indices of an axis as they lie in memory; None where they do already.

    >>> seen = views.merge_axes(views.permute(Layout((2, 3, 4), "abc"), (1, 0, 2)), 0, 1)
    >>> seen.offsets([[k, 0] for k in range(6)]).tolist()
    [0, 12, 4, 16, 8, 20]
    >>> again = renumbering(seen, 0)
    >>> again(seen, 0).offsets([[k, 0] for k in range(6)]).tolist()
    [0, 4, 8, 12, 16, 20]
    """
    place = next(k for k, term in enumerate(layout.terms) if axis in term)
    digits = [digit for digit in layout.ladders[place] if digit.extent > 1]
    order = sorted(range(len(digits)), key=lambda k: -digits[k].stride)
    extents = [digit.extent for digit in digits]
    if len(layout.terms[place]) > 1 or order == list(range(len(digits))):
        return None
    if prod(extents) != layout.dims[axis]:  # the last ones are padding
        return None

    def renumbered(other: Layout, at: int) -> Layout:
        apart = views.split_axis(other, at, extents)
        axes = list(range(apart.rank))
        axes[at : at + len(order)] = [at + k for k in order]
        return views.merge_axes(views.permute(apart, axes), at, at + len(order) - 1)

    return renumbered


def permuted(data: object, renumbered: Renumbered, axis: int) -> Tensor:
    """A constant whose indices along an axis are renumbered: a view, until it is packed."""
    given = tensor(data)
    layout = renumbered(given.desc.layout, axis)
    return Tensor(MemoryDesc(layout.dims, given.desc.dtype, layout), given.buffer)
