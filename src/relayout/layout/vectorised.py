"""Offsets of many elements at once, with NumPy.

:meth:`Layout.offset` is the definition; this is the same sum, an axis at a time over blocks of indices that
stay in cache. Where an axis is short next to the number of indices, a table of its offsets is cheaper than
dividing: one look-up replaces all of its digits.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relayout.errors import LayoutError
from relayout.layout.digits import digit_sum

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from relayout.layout.layout import Layout

__all__ = ["offsets"]

CHUNK = 1 << 14  # indices at a time: a few columns of int64 fit the first-level cache
LONGEST_TABLE = 1 << 16


def offsets(layout: Layout, indices: ArrayLike) -> NDArray[np.int64]:
    """Return the offset, in elements, of every index of an array of shape (..., rank)."""
    try:
        given = np.asarray(indices)
    except ValueError:
        raise LayoutError(
            f"indices must be an array of whole numbers of shape (..., {layout.rank})"
        ) from None
    if given.ndim == 0 or given.shape[-1] != layout.rank:
        raise LayoutError(
            f"indices have shape {given.shape}; the last dimension must be the rank {layout.rank} of {layout}"
        )
    if given.dtype.kind not in "iu" and given.size:
        raise LayoutError(f"indices must be whole numbers, got {given.dtype}")
    rows = given.reshape(prod(given.shape[:-1]), layout.rank)
    result = np.full(len(rows), layout.offset0, dtype=np.int64)
    if not len(rows):
        return result.reshape(given.shape[:-1])
    tables = [
        digit_sum(ladder, np.arange(layout.term_size(t), dtype=np.int64))
        if layout.term_size(t) <= min(LONGEST_TABLE, max(256, len(rows)))
        else None
        for t, ladder in enumerate(layout.ladders)
    ]
    for start in range(0, len(rows), CHUNK):
        stop = start + CHUNK
        columns = np.ascontiguousarray(rows[start:stop].T, dtype=np.int64)
        for axis, (column, size) in enumerate(zip(columns, layout.dims, strict=True)):
            if column.view(np.uint64).max() >= size:  # a negative index is a huge unsigned one
                _complain(layout, axis, column)
        out = result[start:stop]
        for term, ladder, table in zip(layout.terms, layout.ladders, tables, strict=True):
            numbers = columns[term[0]]
            for axis in term[1:]:
                numbers = numbers * layout.dims[axis] + columns[axis]
            out += table.take(numbers) if table is not None else digit_sum(ladder, numbers)
    return result.reshape(given.shape[:-1])


def _complain(layout: Layout, axis: int, column: NDArray[np.int64]) -> None:
    wrong = column[(column < 0) | (column >= layout.dims[axis])][0]
    raise LayoutError(
        f"index {wrong} of axis {axis} ({layout.axis_names()[axis]}) is out of bounds: "
        f"{layout} has 0 <= index < {layout.dims[axis]} there"
    )
