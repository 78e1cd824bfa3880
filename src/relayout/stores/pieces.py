"""The common refinement of two grids of cells: what each cell of the source has to give to each of the
destination.

A piece is where a cell of the source and one of the destination meet. Both cells are tensors of a known
layout, and so is the piece, on both sides: a view. One reorder moves it from the one buffer to the other, so
that each byte moves through memory once, whatever the grids. A piece that begins within a block of either
format is cut where the next block begins; it may end anywhere::

    c in cells of 40, nChw16c in cells of 64      0..40 | 40..48, 48..64 || 64..80 | 80..120
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, product
from typing import Final, NamedTuple

from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.reorder.attributes import Attributes
from relayout.reorder.conversion import Conversion
from relayout.stores.grid import Box, Cells, Index, intersection
from relayout.stores.store import Bytes

__all__ = ["Mover", "Piece", "pieces"]

MOST_CONVERSIONS: Final = 256
"""Reorders that are kept; a conversion has a few, for pieces within the array and at its ends."""

MOST_KERNELS: Final = 256
"""Kernels that are made for the pieces of two cells. Where pieces are small and have more shapes than that,
NumPy does the others: to make a kernel takes as long as to move some megabytes."""

SMALL: Final = 256 << 10
"""Bytes of a piece up to which it is not worth a kernel for itself alone."""

_CONVERSIONS: Final[dict[tuple[MemoryDesc, MemoryDesc, Attributes], Conversion]] = {}
_KERNELS: Final[dict[tuple[MemoryDesc, MemoryDesc], set[tuple[MemoryDesc, MemoryDesc]]]] = {}
"""By the cells for whose pieces they were made: between which views."""


def pieces(source: Cells, source_cell: Index, target: Cells, target_cell: Index, block: Box) -> Iterator[Box]:
    """What of a block two cells have in common, in boxes that are views on both sides.

    Examples
    --------
    >>> one = Cells(MemoryDesc((1, 64), "u8", "ab"), (1, 24))
    >>> two = Cells(MemoryDesc((1, 64), "u8", "aB16b"), (1, 2, 16))
    >>> [box[1] for box in pieces(one, (0, 0), two, (0, 0), ((0, 1), (0, 64)))]
    [(0, 24)]
    >>> [box[1] for box in pieces(one, (0, 1), two, (0, 0), ((0, 1), (0, 64)))]
    [(24, 32)]
    """
    common = intersection(source.box(source_cell), target.box(target_cell))
    common = None if common is None else intersection(common, block)
    if common is None:
        return
    yield from product(
        *(
            _parts(start, stop, source.weights[axis], target.weights[axis])
            for axis, (start, stop) in enumerate(common)
        )
    )


@lru_cache(maxsize=4096)
def _parts(start: int, stop: int, one: tuple[int, ...], two: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Cut a range that begins within a block where the next block of each digit begins."""
    cuts = {start, stop}
    for weight in {*one, *two}:
        if start % weight:
            cuts.add(min(stop, -(-start // weight) * weight))
    inside = sorted(cuts)
    return tuple(pairwise(inside))


def _view(desc: MemoryDesc, box: Box) -> tuple[MemoryDesc, int, int]:
    """A part of a cell: its descriptor, and the bytes of the cell's buffer from its first to its last.

    A part that begins where a block of each digit begins is one that begins with the cell, elsewhere.
    """
    layout = desc.layout
    moved = list(box)
    base = 0
    for term, ladder in zip(layout.terms, layout.ladders, strict=True):
        axis = term[0]
        start, stop = box[axis]
        # What ends with the cell has the padding behind it, and is another part than one that does not.
        if start and len(term) == 1 and ladder and stop < desc.dims[axis] and start % ladder[0].weight == 0:
            base += start // ladder[0].weight * ladder[0].stride
            moved[axis] = 0, stop - start
    view, first, last = _part(desc, tuple(moved))
    base *= desc.dtype.bits // 8
    return view, first + base, last + base


@lru_cache(maxsize=4096)
def _part(desc: MemoryDesc, box: Box) -> tuple[MemoryDesc, int, int]:
    """The definition of :func:`_view`, part by part."""
    layout = desc.layout
    for axis, (start, stop) in enumerate(box):
        if (start, stop) != (0, desc.dims[axis]):
            layout = views.slice_axis(layout, axis, start, stop)
    low, high = layout.bounds()
    size = desc.dtype.bits // 8
    return (
        MemoryDesc(layout.dims, desc.dtype, layout.moved(layout.offset0 - low)),
        low * size,
        (high + 1) * size,
    )


def _conversion(
    src: MemoryDesc, dst: MemoryDesc, attributes: Attributes, family: tuple[MemoryDesc, MemoryDesc]
) -> Conversion:
    """A reorder of such pieces, planned and compiled once, however many threads ask for it at a time.

    ``family`` are the cells that the pieces are of.
    """
    found = _CONVERSIONS.get((src, dst, attributes))
    return _made(src, dst, attributes, family) if found is None else found


@locked
def _made(
    src: MemoryDesc, dst: MemoryDesc, attributes: Attributes, family: tuple[MemoryDesc, MemoryDesc]
) -> Conversion:
    key = src, dst, attributes
    found = _CONVERSIONS.get(key)
    if found is None:
        while len(_CONVERSIONS) >= MOST_CONVERSIONS:
            del _CONVERSIONS[next(iter(_CONVERSIONS))]
        if family not in _KERNELS:
            while len(_KERNELS) >= MOST_CONVERSIONS:
                del _KERNELS[next(iter(_KERNELS))]
            _KERNELS[family] = set()
        made = _KERNELS[family]
        if (src, dst) not in made and len(made) >= MOST_KERNELS and src.nbytes <= SMALL:
            found = Conversion.uncompiled(src, dst, "position").with_attributes(attributes)
        else:
            made.add((src, dst))
            # The threads are ours: one a task. Contests would load the compiler in the middle of the work, in
            # each worker of a cluster, and take longer than there is to gain from some gigabytes.
            found = Conversion.settled(src, dst, attributes, 1, fixed=True)
        _CONVERSIONS[key] = found
    return found


class Piece(NamedTuple):
    """A box as a view of a cell of the source and of one of the destination."""

    box: Box
    src: MemoryDesc
    first: int
    """Where it begins in the cell of the source, in bytes."""
    last: int
    dst: MemoryDesc
    begin: int
    """Where it begins in the cell of the destination."""
    end: int

    @property
    def is_run(self) -> bool:
        """Whether its elements lie one behind the other in the source, with nothing in between."""
        return self.last - self.first == self.src.layout.size * (self.src.dtype.bits // 8)


class Mover:
    """Moves pieces between the cells of two arrays."""

    def __init__(self, source: Cells, target: Cells, attributes: Attributes) -> None:
        self.source, self.target, self.attributes = source, target, attributes
        self._family = source.desc, target.desc

    def move(self, source_cell: Index, data: Bytes, target_cell: Index, out: Bytes, block: Box) -> int:
        """Write what a cell of the source has of one of the destination. Returns how many elements it was."""
        moved = 0
        for one in self.views(source_cell, target_cell, block):
            self.convert(one, data[one.first : one.last], out[one.begin : one.end])
            moved += one.src.layout.size
        return moved

    def views(self, source_cell: Index, target_cell: Index, block: Box) -> Iterator[Piece]:
        """What two cells have in common within a block, as views of both."""
        for piece in pieces(self.source, source_cell, self.target, target_cell, block):
            src, first, last = _view(self.source.desc, _within(piece, self.source.box(source_cell)))
            dst, begin, end = _view(self.target.desc, _within(piece, self.target.box(target_cell)))
            yield Piece(piece, src, first, last, dst, begin, end)

    def prepare(self, piece: Piece) -> None:
        """Have what converts such a piece planned and compiled."""
        _conversion(piece.src, piece.dst, self.attributes.part(piece.box), self._family)

    def convert(self, piece: Piece, data: Bytes, out: Bytes) -> None:
        """Write a piece; both buffers are nothing but what it reaches over."""
        _conversion(piece.src, piece.dst, self.attributes.part(piece.box), self._family)(data, out)


def _within(piece: Box, cell: Box) -> Box:
    """A box, counted from where a cell begins."""
    return tuple((start - low, stop - low) for (start, stop), (low, _) in zip(piece, cell, strict=True))
