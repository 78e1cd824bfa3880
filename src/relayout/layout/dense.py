"""Layouts without holes."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.layout.layout import Digit, Layout, plain

__all__ = ["CHANNELS_LAST", "dense_like", "resized_like", "row_major"]

CHANNELS_LAST = {2: "nc", 3: "nwc", 4: "nhwc", 5: "ndhwc"}
"""By the number of axes."""


def row_major(dims: Sequence[int]) -> Layout:
    """The plain layout, with the last axis innermost.

    >>> row_major((2, 3, 4)).strides
    (12, 4, 1)
    """
    return Layout(tuple(dims), plain(len(dims)))


def dense_like(layout: Layout, dims: Sequence[int] | None = None) -> Layout:
    """A layout whose digits come in the same order in memory, with nothing in between.

    Parameters
    ----------
    layout : Layout
        What it shall be like.
    dims : sequence of int, optional
        The same sizes, but for axes of size 1, which take no room; they must not be fused with others.

    Examples
    --------
    >>> from relayout import views
    >>> part = views.slice_axis(Layout((2, 32, 4, 4), "nChw16c"), 1, 0, 16)
    >>> part.strides, dense_like(part).strides
    ((512, 256, 64, 16), (256, 256, 64, 16))
    >>> dense_like(part, (1, 16, 1, 1)).span
    16
    """
    sizes = layout.dims if dims is None else tuple(dims)
    gone = {t for t, term in enumerate(layout.terms) if any(sizes[a] != layout.dims[a] for a in term)}
    digits = [
        (abs(digit.stride), digit.weight, t, level)
        for t, ladder in enumerate(layout.ladders)
        for level, digit in enumerate(ladder)
        if t not in gone
    ]
    strides: dict[tuple[int, int], int] = {}
    stride = 1
    for _, _, t, level in sorted(digits):
        strides[t, level] = stride
        stride *= layout.ladders[t][level].extent
    ladders = tuple(
        (Digit(1, 1, 1),)
        if t in gone
        else tuple(Digit(d.weight, d.extent, strides[t, level]) for level, d in enumerate(ladder))
        for t, ladder in enumerate(layout.ladders)
    )
    order = tuple(place for place in layout.order if place[0] not in gone or place[1] == 0)
    padded = tuple(1 if t in gone else room for t, room in enumerate(layout.padded))
    return Layout._make(sizes, layout.terms, ladders, order, padded, 0)


def resized_like(layout: Layout, dims: tuple[int, ...]) -> Layout:
    """A dense layout of other sizes along the spatial axes, with its digits in the same order.

    Where such an axis is cut into digits, or fused with others, it is channels-last.

    >>> part = Layout((2, 8, 4, 4), strides=(256, 1, 64, 16))
    >>> resized_like(part, (2, 8, 2, 2)).strides
    (32, 1, 16, 8)
    """
    ladders, padded = list(layout.ladders), list(layout.padded)
    for axis in range(2, layout.rank):
        if (axis,) not in layout.terms or len(layout.ladders[layout.terms.index((axis,))]) > 1:
            return Layout(dims, CHANNELS_LAST[layout.rank])
        term = layout.terms.index((axis,))
        ladders[term] = (ladders[term][0]._replace(extent=dims[axis]),)
        padded[term] = dims[axis]
    terms, order = layout.terms, layout.order
    return dense_like(Layout._make(dims, terms, tuple(ladders), order, tuple(padded), 0))
