"""Which pieces of memory hold the elements that differ: a range of bytes, cache lines, pages.

A kernel that writes behind the end of its own buffer, a copy that stops early or a page that never arrived
do not care about axes: what they leave is a range of bytes. In a blocked format that range is no box of
indices, so it has to be looked for in the order of memory. Every element of a piece differs; padding and
holes within it are no elements and do not count. Where something was overwritten by values that agree here
and there (zeros over activations of which many are zero), the range is said together with what else is there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DType
from relayout.inspecting.placing import places_of
from relayout.inspecting.whereabouts import Tokens
from relayout.layout.layout import Layout
from relayout.targets.machine import LINE

__all__ = ["where_in_memory"]

PAGE = 4096  # bytes
LARGEST = 1 << 24  # places; pieces within a larger range are not looked for
PIECES = 4  # that are written out
NARROW = 4  # a range that is not whole is said if it is at most this part of the memory ...
DENSE = 2  # ... and at least this part of its elements differs


def where_in_memory(mask: NDArray[np.bool_], layout: Layout, memory: Tokens, dtype: DType) -> str:
    """A sentence on the memory in which elements differ; empty where they are scattered.

    Parameters
    ----------
    mask : array of bool, of the logical shape
        Which elements differ.
    layout : Layout
        Where they lie.
    memory : array of unsigned integers
        What was found, as bits, place by place.
    dtype : DType
        Of the elements.

    Examples
    --------
    >>> from relayout.dtypes import dtype
    >>> wrong = np.zeros(16, bool)
    >>> wrong[6:13] = True
    >>> found = np.arange(16, dtype=np.uint32)
    >>> where_in_memory(wrong.reshape(4, 4).T, Layout((4, 4), "ba"), found, dtype("f32"))
    'all that lies in the bytes 24 to 51, and nothing else'
    """
    flat = mask.reshape(-1)
    different = int(np.count_nonzero(flat))
    if not 1 < different < flat.size:
        return ""
    low, high = _ends(flat, layout)
    between = sum(int(np.count_nonzero((at >= low) & (at <= high))) for _, at in places_of(layout))
    if between == different:
        return f"all that lies in {_range(low, high, dtype)}, and nothing else"
    if high - low >= LARGEST:
        return ""
    held, wrong = np.zeros(high - low + 1, np.bool_), np.zeros(high - low + 1, np.bool_)
    for part, at in places_of(layout):
        within = (at >= low) & (at <= high)
        held[at[within] - low] = True
        wrong[at[within & flat[part]] - low] = True
    there = memory[low : high + 1]
    if len(there) == len(held) and (there[held] == there[0]).all():
        return f"all of them lie in {_range(low, high, dtype)}, where every element has the same value"
    places = np.flatnonzero(held)
    differs = wrong[places]
    edges = np.flatnonzero(np.diff(differs)) + 1
    starts = np.concatenate([[0], edges])[::2]
    ends = np.concatenate([edges, [len(places)]])[::2] - 1
    pieces = [(low + int(places[a]), low + int(places[b])) for a, b in zip(starts, ends, strict=True)]
    few = len(pieces) <= PIECES and all(first < last for first, last in pieces)
    if few and 2 * different <= flat.size:
        said = "; ".join(_range(first, last, dtype) for first, last in pieces)
        return f"all that lies in {len(pieces)} pieces, and nothing else: {said}"
    lowest, highest = layout.bounds()
    narrow = NARROW * (high - low + 1) <= highest - lowest + 1
    if narrow and DENSE * np.count_nonzero(differs) >= len(places):
        share = f"{np.count_nonzero(differs):,} of the {len(places):,} elements there"
        return f"all of them lie in {_range(low, high, dtype)}: {share}"
    return ""


def _ends(flat: NDArray[np.bool_], layout: Layout) -> tuple[int, int]:
    """The first and the last place of an element that differs."""
    ends = [
        (int(at[flat[part]].min()), int(at[flat[part]].max()))
        for part, at in places_of(layout)
        if flat[part].any()
    ]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _range(low: int, high: int, dtype: DType) -> str:
    """The bytes of some places, and which pages or cache lines of the buffer these are, if they are whole."""
    first, end = low * dtype.bits // 8, -(-(high + 1) * dtype.bits // 8)
    said = f"the bytes {first:,} to {end - 1:,}"
    for size, name in ((PAGE, "page"), (LINE, "cache line")):
        if first % size == 0 and end % size == 0:
            one, last = first // size, end // size - 1
            which = f"{name} {one:,}" if one == last else f"{name}s {one:,} to {last:,}"
            return f"{said} ({which}, counted from 0)"
    return said
