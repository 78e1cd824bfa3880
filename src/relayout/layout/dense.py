"""A layout like another one, without gaps: where results go that shall lie as their source does."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.layout.layout import Digit, Layout

__all__ = ["dense_like"]


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
