"""The iteration space of pooling, softmax and normalisations: what their operands go through together.

All of them combine elements along some axes and do the same again for every position of the others. For those
others source and destination are indexed alike, so the common refinement of their layouts gives nests with a
step on either side (:mod:`relayout.loops`). The loop that is contiguous on both sides, if there is one, is
the *run*: its elements are the lanes of vectors ::

    images and channels of    nhwc 2x64x..       2 x               run of 64
                              nChw16c 2x64x..    2 x 4 x           run of 16
                              CHWN4 2x64x..      16 x              run of 8     (2 images of 4 channels)
                              nchw 2x64x..       128 x             run of 1

Sizes that blocks don't divide (100 channels in blocks of 16) make several nests: 6 whole blocks and 4
channels. Padding belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relayout.errors import LayoutError
from relayout.layout import views
from relayout.layout.canonical import normal
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.loops.nest import Loop, Nest, coalesce, order, run_inside
from relayout.loops.refine import Group, nests, refine

__all__ = ["Cover", "contiguous", "cover", "last_axes", "neighbours", "spaces"]

MOST = 16  # nests; each has code of its own


def spaces(groups: Sequence[Group], starts: Sequence[int], sizes: Sequence[int]) -> tuple[Nest, ...] | None:
    """The nests of some groups in bytes, runs innermost; None where there are none, or very many.

    Parameters
    ----------
    groups : sequence of Group
        The axes that are gone over, of the refinement of source and destination.
    starts : sequence of int
        Where all operands begin, in elements.
    sizes : sequence of int
        Bytes of an element of each.

    Examples
    --------
    >>> from relayout.layout.layout import Layout
    >>> from relayout.loops.refine import refine
    >>> blocked = Layout((2, 20, 3), "nCw16c")
    >>> for nest in spaces(refine(blocked, blocked)[:2], (0, 0), (4, 4)):
    ...     print(nest)
    0->0: 2x(384,384)  16x(4,4)
    192->192: 2x(384,384)  4x(4,4)
    """
    found = nests(groups, starts, MOST)
    if found is None:
        return None
    ordered = [coalesce(order(nest.scaled(sizes))) for nest in found]
    return tuple(run_inside(nest, contiguous(nest)) for nest in ordered)


def last_axes(descs: Sequence[MemoryDesc], count: int) -> tuple[list[list[int]], tuple[Nest, ...]] | None:
    """So many last axes apart from all others: for each its steps in bytes, and the nests of the others.

    None where one of them is cut into digits or fused with others, or where there are no nests.

    Parameters
    ----------
    descs : sequence of MemoryDesc
        All operands, the source first and the destination last, of as many axes.
    count : int
        How many axes.
    """
    layouts, sizes = [desc.layout for desc in descs], tuple(desc.dtype.bits // 8 for desc in descs)
    found: list[list[int]] = []
    for axis in reversed(range(len(descs[0].dims) - count, len(descs[0].dims))):
        steps = [_step(desc.layout, axis) for desc in descs]
        if None in steps:
            return None
        found.insert(0, [(step or 0) * size for step, size in zip(steps, sizes, strict=True)])
        try:
            layouts = [views.select(layout, axis, 0) for layout in layouts]
        except LayoutError:
            return None
    blocks = spaces(refine(*layouts), [layout.offset0 for layout in layouts], sizes)
    return None if blocks is None else (found, blocks)


def _step(layout: Layout, axis: int) -> int | None:
    """The elements from one index of an axis to the next; None where there is no such number."""
    if (axis,) not in layout.terms:
        return None
    digits = normal(layout.ladders[layout.terms.index((axis,))], layout.dims[axis])
    if len(digits) > 1:
        return None
    return digits[0].stride if digits else 0


def contiguous(nest: Nest) -> Loop | None:
    """The loop that goes through source and destination element by element, whatever others do.

    >>> contiguous(Nest((0, 0, 0), (Loop(3, (4, 0, 4)), Loop(5, (12, 4, 12))), (4, 4, 4)))
    Loop(extent=3, steps=(4, 0, 4))
    """
    ends = nest.widths[0], nest.widths[-1]
    return next((loop for loop in nest.loops if (loop.steps[0], loop.steps[-1]) == ends), None)


def neighbours(nest: Nest) -> int:
    """How many elements lie side by side: those of the contiguous loop, or each by itself."""
    run = contiguous(nest)
    return run.extent if run else 1


class Cover(NamedTuple):
    """``times`` chunks of ``chunk`` elements, each of which is vectors of ``lanes`` at ``offsets``.

    Chunk k begins at ``min(k * chunk, total - chunk)``: the last one steps back, as its last vector does.
    """

    lanes: int
    offsets: tuple[int, ...]
    chunk: int
    times: int


def cover(total: int, lanes: int, most: int) -> Cover:
    """Cover elements with whole vectors, at most so many in a chunk; some elements are covered twice.

    >>> cover(100, 16, 8)
    Cover(lanes=16, offsets=(0, 16, 32, 48, 64, 80, 84), chunk=100, times=1)
    >>> cover(3, 16, 8)
    Cover(lanes=2, offsets=(0, 1), chunk=3, times=1)
    """
    lanes = min(lanes, 1 << (total.bit_length() - 1))
    vectors = -(-total // lanes)
    times = -(-vectors // most)
    chunk = min(total, -(-vectors // times) * lanes)
    offsets = tuple(min(k * lanes, chunk - lanes) for k in range(-(-chunk // lanes)))
    return Cover(lanes, offsets, chunk, -(-total // chunk))
