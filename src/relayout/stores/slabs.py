"""Chunks in slabs, each of which stays in the caches from the read to the write.

A chunk takes megabytes. Read whole, converted whole and written whole, its bytes go through memory six
times: the system copies them into a buffer, the kernel reads that and writes another, the system copies that.
A slab is a run of bytes of a chunk that is written, up to a mebibyte, cut along its outermost digits. Where
the elements of a slab are one run of the chunk that is read, too, nothing but the slab is read::

    nchw, chunk of 16 images      read one image | convert it | write it | the next one
    nhwc, chunk of 16 images

Then only the system's own memory of files is touched; buffers lie in the caches, and a task takes two slabs
of memory instead of two chunks. It needs files that have chunks as they are (:attr:`Stored.plain`), at least
where they are written. The definition is to do it with whole chunks, in :mod:`.task`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from relayout.stores.buffers import given_back, taken
from relayout.stores.files import ChunkFile
from relayout.stores.grid import Box, Cells, Index, intersection, size_of
from relayout.stores.pieces import Mover
from relayout.stores.store import Bytes, Stored

__all__ = ["SLAB", "Slab", "Streamed", "Way", "slabs"]

SLAB: Final = 1 << 20
"""Bytes of a slab, at most, as far as the format allows it to be cut."""

LEAST: Final = 64 << 10
"""Bytes of what a slab has of one chunk of the source, on average, from which on it is read by itself."""

MOST_OPEN: Final = 4
"""Chunks of the source that one of the destination may need to be read in parts: all are open meanwhile, in
each thread, and of files a process may often have no more than a thousand."""


class Slab(NamedTuple):
    """A run of bytes of a cell."""

    box: Box
    """Its elements, by logical index, counted from where the cell begins."""
    begin: int
    """Its first byte in the cell."""
    end: int


def slabs(cells: Cells, most: int) -> list[Slab]:
    """Cut a cell that is one chunk into runs of at most ``most`` bytes, or of as few as its format allows.

    Inner digits of an axis (``c%16``) and fused axes are not cut.

    Examples
    --------
    >>> from relayout import MemoryDesc
    >>> cells = Cells(MemoryDesc((8, 64, 4, 4), "u8", "nChw16c"), (2, 2, 4, 4, 16))
    >>> for slab in slabs(cells, 256):
    ...     print(slab.box[:2], slab.begin, slab.end)
    ((0, 1), (0, 16)) 0 256
    ((0, 1), (16, 32)) 256 512
    ((1, 2), (0, 16)) 512 768
    ((1, 2), (16, 32)) 768 1024
    """
    whole = tuple((0, size) for size in cells.desc.dims)
    return list(_cut(cells, most, 0, Slab(whole, 0, cells.nbytes)))


def _cut(cells: Cells, most: int, position: int, slab: Slab) -> Iterator[Slab]:
    """Cut a slab along the digit of a position, and each part along the next if it is too long."""
    size = slab.end - slab.begin
    shape = cells.stored.chunks
    while position < len(shape) and shape[position] == 1:
        position += 1
    if size <= most or position == len(shape) or position not in cells.cuts:
        yield slab
        return
    axis, unit = cells.cuts[position]
    count = shape[position]
    row = size // count
    step = max(1, most // row)
    for k in range(0, count, step):
        stop = min(k + step, count)
        box = (*slab.box[:axis], (k * unit, stop * unit), *slab.box[axis + 1 :])
        part = Slab(box, slab.begin + k * row, slab.begin + stop * row)
        if step == 1:
            yield from _cut(cells, most, position + 1, part)
        else:
            yield part


class Way(NamedTuple):
    """How the chunks of a task are written in slabs."""

    slabs: Sequence[Slab]
    in_parts: bool
    """Whether the source is read in parts, too; otherwise its chunks are held."""

    def boxes(self, cell: Box, block: Box) -> Iterator[Box]:
        """The elements of its slabs that lie in a cell and a block."""
        for slab in self.slabs:
            box = _box(slab, cell, block)
            if box is not None:
                yield box

    @classmethod
    def of(
        cls, source: Stored, mover: Mover, target: Stored, needed: Mapping[Index, Sequence[Index]], block: Box
    ) -> Way | None:
        """How, for cells of the destination that each need some of the source; None: they are not."""
        one, two = mover.source, mover.target
        if not (target.plain and two.direct and two.nbytes > SLAB and needed):
            return None
        cut = slabs(two, SLAB)
        if source.plain and one.direct and max(map(len, needed.values())) <= MOST_OPEN:
            cell, sources = next(iter(needed.items()))
            box = _box(cut[0], two.box(cell), block)
            pieces = [piece for s in sources for piece in mover.views(s, cell, box)] if box else []
            average = (cut[0].end - cut[0].begin) // max(1, len(pieces))
            if pieces and all(piece.is_run for piece in pieces) and average >= min(LEAST, SLAB):
                return cls(cut, True)
        if all(len(sources) == 1 for sources in needed.values()):
            return cls(cut, False)
        return None


class Streamed:
    """A cell of the destination that is written slab by slab.

    Parameters
    ----------
    mover : Mover
        What converts.
    cell : Index
        The cell.
    way : Way
        How it is cut.
    block : Box
        The task's block.
    held : mapping
        Cells of the source that are in memory.
    files : mapping
        Files of the others.

    Attributes
    ----------
    elements, read : int
        Elements converted and bytes read so far.
    seconds : list of float
        Spent in reading and in converting.
    """

    def __init__(
        self,
        mover: Mover,
        cell: Index,
        way: Way,
        block: Box,
        held: Mapping[Index, Bytes],
        files: Mapping[Index, ChunkFile],
    ) -> None:
        self.mover, self.cell, self.way, self.block = mover, cell, way, block
        self.held, self.files = held, files
        self.elements = self.read = 0
        self.seconds = [0.0, 0.0]

    def parts(self) -> Iterator[Bytes]:
        """The slabs, one after another; each is overwritten when the next is asked for."""
        cells = self.mover.target
        for slab in self.way.slabs:
            box = _box(slab, cells.box(self.cell), self.block)
            out = taken(slab.end - slab.begin)
            if box is None or size_of(box) * (cells.desc.dtype.bits // 8) != out.size:
                out[:] = 0  # what lies beyond the array
            if box is not None:
                self._convert(slab, box, out)
            yield out
            given_back(out)

    def _convert(self, slab: Slab, box: Box, out: Bytes) -> None:
        mover = self.mover
        for source in [*self.held, *self.files]:
            for piece in mover.views(source, self.cell, box):
                begin = time.perf_counter()
                file = self.files.get(source)
                if file is None:
                    data = self.held[source][piece.first : piece.last]
                else:
                    data = file.read(piece.first, piece.last)
                    self.read += data.size
                middle = time.perf_counter()
                mover.convert(piece, data, out[piece.begin - slab.begin : piece.end - slab.begin])
                if file is not None:
                    given_back(data)
                self.elements += piece.src.layout.size
                self.seconds[0] += middle - begin
                self.seconds[1] += time.perf_counter() - middle


def _box(slab: Slab, cell: Box, block: Box) -> Box | None:
    """The elements of a slab of a cell that the block has; None: there are none."""
    moved = tuple((a + low, b + low) for (a, b), (low, _) in zip(slab.box, cell, strict=True))
    within = intersection(moved, cell)
    return None if within is None else intersection(within, block)


@contextlib.contextmanager
def closing(files: Mapping[Index, ChunkFile]) -> Iterator[None]:
    """Close them all at the end."""
    try:
        yield
    finally:
        for file in files.values():
            file.close()
