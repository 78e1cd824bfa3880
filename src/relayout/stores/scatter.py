"""Blocks of the source that are written into parts of many chunks.

A block of whole chunks of the source meets many chunks of the destination, and has of each a part. Seen as a
memory format that part is nothing new: the block is reordered once, into the layout of the destination whose
outer digits are the names of its chunks (:func:`.grid.chunk_layout`). What each chunk gets then lies in one
piece, and goes to its place in the file of that chunk, mostly as one run of bytes::

    rows to columns         block of rows      ->    | chunk 0 | chunk 1 | chunk 2 |   one reorder
                                                         |         |         |
                                                     file 0     file 1     file 2      a run of bytes each

So an exchange of all with all reads and writes everything once, in the memory of a block and a chunk. Files
that hold chunks as they are can be written like that (:attr:`Stored.plain`), if runs are long enough. A file
belongs to many tasks then; :mod:`.collected` is where it is until all of them are done. This module is the
geometry: which parts a block has of which chunks, and where in their files they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

from relayout.layout.descriptor import MemoryDesc
from relayout.stores.grid import Box, Cells, Index, chunk_layout, stored_shape

__all__ = ["Region", "regions", "runs"]


class Region(Cells):
    """A part of a block that is made of parts of chunks, all of the same shape.

    Attributes
    ----------
    desc : MemoryDesc
        Its elements with all that belongs to one chunk in one piece, in the order of the chunks.
    stored : Grid
        The same as a physical array that is cut into chunks.
    size : int
        Its bytes.
    """

    def __init__(self, target: Cells, box: Box) -> None:
        format = target.whole.format
        assert format is not None  # stores have one
        sizes = [stop - start for start, stop in box]
        for axis, (start, stop) in enumerate(box):
            size = target.grid.chunks[axis]
            if stop == target.whole.dims[axis] and start % size == 0:
                sizes[axis] = -(-stop // size) * size - start  # with what lies beyond the array: longer runs
        self.is_full = all(stop - start == size for (start, stop), size in zip(box, sizes, strict=True))
        """Whether it has nothing beyond the array, and no padding."""
        plain = MemoryDesc(sizes, target.whole.dtype, format)
        shape = list(stored_shape(plain))
        cut = list(shape)
        self._first = [0] * len(shape)
        self.start = [0] * len(shape)
        """Where the parts begin in their chunks, in the physical array of a chunk."""
        weights = [list(one) for one in target.weights]
        for position, (axis, unit) in target.cuts.items():
            size, (start, stop) = target.grid.chunks[axis], box[axis]
            self._first[position] = start // size
            self.start[position] = start % size // unit
            if stop > start - start % size + size:  # whole chunks, from the beginning of the first one
                cut[position] = target.stored.chunks[position]
                weights[axis].append(size)
        self.is_full = self.is_full and not plain.layout.has_padding
        super().__init__(plain, cut)
        self._box = box
        self.weights = tuple(map(tuple, weights))
        self.desc = MemoryDesc(plain.dims, plain.dtype, chunk_layout(plain, cut)[0])
        self.part_bytes = prod(cut) * plain.dtype.bits // 8
        self.size = self.part_bytes * self.stored.total

    def box(self, cell: Index) -> Box:
        """Its elements, by logical index."""
        return self._box

    def writes(self, chunk: Sequence[int]) -> int:
        """How many runs of bytes it is written in, into chunks of that shape."""
        return self.stored.total * sum(1 for _ in runs(self.stored.chunks, chunk, self.start, 1))

    def chunk(self, number: int) -> Index:
        """The chunk of the destination that a part belongs to."""
        place = self.stored.index(number)
        return tuple(k + first for k, first in zip(place, self._first, strict=True))


def regions(target: Cells, block: Box) -> list[Region]:
    """Cut a block where the whole chunks begin and end that lie within it.

    A chunk that reaches beyond the array is written with what lies there, which is zeros.

    Examples
    --------
    >>> cells = Cells(MemoryDesc((8, 100), "f32", "ab"), (8, 30))
    >>> for one in regions(cells, ((2, 4), (5, 100))):
    ...     print(one.box(()), one.stored.total, one.stored.chunks, one.start)
    ((2, 4), (5, 30)) 1 (2, 25) [2, 5]
    ((2, 4), (30, 90)) 2 (2, 30) [2, 0]
    ((2, 4), (90, 100)) 1 (2, 30) [2, 0]
    """
    parts = (
        _segments(start, stop, size) for (start, stop), size in zip(block, target.grid.chunks, strict=True)
    )
    return [Region(target, box) for box in product(*parts)]


def _segments(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """What lies before the first whole chunk, the whole chunks, and what lies behind them."""
    first, last = -(-start // size) * size, stop // size * size
    if first >= last:  # no whole one
        cuts = [start, first, stop] if start < first < stop else [start, stop]
    else:
        cuts = sorted({start, first, last, stop})
    return [(a, b) for a, b in pairwise(cuts) if a < b]


def runs(
    part: Sequence[int], chunk: Sequence[int], start: Sequence[int], width: int
) -> Iterator[tuple[int, int, int]]:
    """The runs of bytes of a part of a chunk: where each is in the part, where in the chunk, how long.

    Examples
    --------
    >>> list(runs((2, 3), (8, 3), (4, 0), 4)), list(runs((2, 2), (4, 8), (1, 2), 1))
    ([(0, 48, 24)], [(0, 10, 2), (2, 18, 2)])
    """
    outer = len(part)
    while outer and part[outer - 1] == chunk[outer - 1]:
        outer -= 1
    outer = max(0, outer - 1)  # the axis whose steps still lie one behind the other
    strides = [width * prod(chunk[axis + 1 :]) for axis in range(len(chunk))]
    size = width * prod(part[outer:])
    base = sum(first * stride for first, stride in zip(start, strides, strict=True))
    for number, place in enumerate(product(*map(range, part[:outer]))):
        yield number * size, base + sum(k * stride for k, stride in zip(place, strides, strict=False)), size
