"""Blocks whose chunks of the source are put together before they are converted.

Where the chunks of two stores have no common divisor, each pair of them meets in a box of another shape, and
a kernel for each shape would be made and called once or twice. Chunks of 103 rows meet those of 89 in pieces
of any height up to 89; along two axes that are ten thousand shapes. So all chunks that a block touches are
copied into one buffer first, as they are, and each chunk of the destination is one piece of that::

    +-----+-----+-----+         chunks of the source, copied one after another
    |   ..|.....|...  |
    +---:-+-----+--:--+         ...  what the block needs of them
    |   ..|.....|...  |
    +-----+-----+-----+

The buffer is a *cell* of the source like any other, only larger, so that the mover (:mod:`.pieces`) needs to
know nothing of it. It is as large for all blocks of a pass, so that strides are the same, and a kernel fits
all of them.

What it costs is one more copy, and the memory for it, and that chunks at the rim of a block are read by its
neighbours, too.
The definition is the way piece by piece, in :mod:`.task`; the planner compares the two (:mod:`.search`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np

from relayout.layout.descriptor import MemoryDesc
from relayout.stores.grid import Box, Cells, Index, stored_shape
from relayout.stores.store import Bytes

__all__ = ["Hull", "memory"]


class Hull(Cells):
    """All cells of a source that a block touches, as one cell.

    Parameters
    ----------
    source : Cells
        The cells.
    counts : sequence of int
        For how many of them there is room along each axis: as many as any block touches.
    block : Box
        The block, by logical index.

    Attributes
    ----------
    size : int
        Bytes of the buffer.

    Examples
    --------
    >>> cells = Cells(MemoryDesc((10, 9), "u8", "ab"), (4, 3))
    >>> hull = Hull(cells, (2, 3), ((5, 10), (2, 8)))
    >>> hull.box(()), hull.desc, hull.size
    (((4, 10), (0, 9)), MemoryDesc('u8:ab:8x9'), 72)
    >>> data = np.zeros(hull.size, np.uint8)
    >>> for chunk in hull.chunks():
    ...     hull.put(data, chunk, np.full(12, 3 * chunk[0] + chunk[1], np.uint8))
    >>> data.reshape(8, 9)[3:5]
    array([[3, 3, 3, 4, 4, 4, 5, 5, 5],
           [6, 6, 6, 7, 7, 7, 8, 8, 8]], dtype=uint8)
    """

    def __init__(self, source: Cells, counts: Sequence[int], block: Box) -> None:
        format = source.whole.format
        assert format is not None  # stores have one
        sizes = [size * count for size, count in zip(source.grid.chunks, counts, strict=True)]
        desc = MemoryDesc(sizes, source.whole.dtype, format)
        shape = stored_shape(desc)
        super().__init__(desc, shape)
        self._source, self._shape = source, shape
        self._touched = source.grid.touched(block)
        self._box = tuple(
            (within.start * size, min(within.stop * size, whole))
            for within, size, whole in zip(self._touched, source.grid.chunks, source.grid.shape, strict=True)
        )
        self._first = [0] * len(shape)  # the number of the first chunk along each physical axis
        for position, (axis, _) in source.cuts.items():
            self._first[position] = self._touched[axis].start
        width = desc.dtype.bits // 8
        self._element = np.dtype(f"u{width}")
        self.size = prod(shape) * width

    def box(self, cell: Index) -> Box:
        """The elements of the array that it holds."""
        return self._box

    def chunks(self) -> Iterator[Index]:
        """The chunks that are to be put into it."""
        for cell in product(*self._touched):
            for chunk, _ in self._source.chunks_of(cell):
                yield chunk

    def put(self, data: Bytes, chunk: Index, found: Bytes) -> None:
        """Copy a full chunk to its place."""
        sizes = self._source.stored.chunks
        starts = [(k - first) * size for k, first, size in zip(chunk, self._first, sizes, strict=True)]
        whole = data.view(self._element).reshape(self._shape)
        # The last chunks along an inner digit (c%16) may reach beyond it.
        part = whole[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
        elements = found.view(self._element).reshape(sizes)
        part[...] = elements[tuple(slice(0, size) for size in part.shape)]


def memory(source: Cells, target: Cells, counts: Sequence[int]) -> int:
    """Bytes that a block takes which touches so many cells along each axis: the buffer, and a chunk that is
    read or made, with what codecs need for it.

    >>> cells = Cells(MemoryDesc((10, 9), "u8", "ab"), (4, 3), plain=True)
    >>> memory(cells, cells, (2, 3))
    84
    """
    read = source.nbytes + source.coding_bytes * (1 if source.direct else 2)
    return prod(counts) * source.nbytes + max(read, target.nbytes) + 2 * target.coding_bytes
