"""Chunks as what they are: digits, of which the outer ones stand in the name of a file.

A store keeps an array of *physical* shape, one axis for each digit of its format
(:mod:`relayout.files.arrays`), and cuts that array into chunks of one shape. A cut makes two digits of one:
which chunk, and where in it::

    nChw16c, 8x64x56x56          n     c//16    h    w     c%16        an array [8, 4, 56, 56, 16]
    in chunks of 1,2,56,56,16    n//1  c//32    ----                   in the name: n, c//32
                                       c//16%2  h    w     c%16        in the file

So what is known of layouts is known of chunks. A :class:`Grid` is the cut, in numbers of the physical array.
A :class:`Cells` says it in logical indices: a *cell* is the smallest box of elements that is made of whole
chunks. Nearly always it is one chunk; it is several where inner digits (``c%16``) or fused axes are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import prod

from relayout.errors import LayoutError, Unsupported
from relayout.files.arrays import physical_shape
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import letters, spell_digit
from relayout.layout.layout import Digit, Layout

__all__ = [
    "Box",
    "Cells",
    "Grid",
    "Index",
    "chunk_layout",
    "digit_names",
    "intersection",
    "size_of",
    "stored_shape",
    "touched",
]

Index = tuple[int, ...]
"""A chunk, a cell or a block by its number along every axis."""

Box = tuple[tuple[int, int], ...]
"""A part of an array: (start, stop) along every axis."""


def size_of(box: Box) -> int:
    """How many elements a box has.

    >>> size_of(((0, 2), (3, 6)))
    6
    """
    return prod(stop - start for start, stop in box)


def intersection(one: Box, two: Box) -> Box | None:
    """What two boxes have in common; None: nothing.

    >>> intersection(((0, 4), (0, 4)), ((2, 6), (1, 3)))
    ((2, 4), (1, 3))
    """
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, two, strict=True))
    return None if any(start >= stop for start, stop in both) else both


def touched(start: int, stop: int, step: int) -> range:
    """The chunks of a size, along one axis, that a part lies in.

    >>> touched(3, 9, 4), touched(3, 3, 4)
    (range(0, 3), range(0, 0))
    """
    return range(start // step, -(-stop // step)) if stop > start else range(0)


def stored_shape(desc: MemoryDesc) -> tuple[int, ...]:
    """The shape of the physical array that is kept in chunks: an axis for each digit.

    Raises
    ------
    Unsupported
        There is none.

    Examples
    --------
    >>> stored_shape(MemoryDesc((8, 40, 6, 6), "f32", "nChw16c"))
    (8, 3, 6, 6, 16)
    """
    shape = physical_shape(desc)
    if shape is None:
        raise Unsupported(
            f"{desc} has no array with an axis for each digit (4-bit elements and layouts with holes have "
            "none), so it can't be kept in chunks"
        )
    return shape


class Grid:
    """An array cut into chunks of one shape; those at the ends may reach beyond it.

    Parameters
    ----------
    shape : sequence of int
        The sizes of the array.
    chunks : sequence of int
        The sizes of a chunk, 1 or more.

    Examples
    --------
    >>> grid = Grid((10, 6), (4, 6))
    >>> grid.counts, grid.total, grid.box((2, 0))
    ((3, 1), 3, ((8, 10), (0, 6)))
    """

    def __init__(self, shape: Sequence[int], chunks: Sequence[int]) -> None:
        self.shape, self.chunks = tuple(shape), tuple(chunks)
        if len(self.shape) != len(self.chunks) or any(chunk < 1 for chunk in self.chunks):
            raise LayoutError(
                f"chunks {list(self.chunks)} of an array of shape {list(self.shape)}: one size of 1 or more "
                "is needed for each axis"
            )
        self.counts = tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def total(self) -> int:
        """How many chunks there are."""
        return prod(self.counts)

    def box(self, chunk: Index) -> Box:
        """The part of the array that a chunk holds."""
        return tuple(
            (k * step, min((k + 1) * step, size))
            for k, step, size in zip(chunk, self.chunks, self.shape, strict=True)
        )

    def index(self, number: int) -> Index:
        """The chunk of a number, counted with the last axis fastest.

        >>> Grid((10, 6), (4, 3)).index(3)
        (1, 1)
        """
        found = []
        for count in reversed(self.counts):
            number, k = divmod(number, count)
            found.append(k)
        return tuple(reversed(found))

    def touched(self, box: Box) -> list[range]:
        """The chunks along every axis that a box lies in."""
        return [touched(start, stop, step) for (start, stop), step in zip(box, self.chunks, strict=True)]

    def __iter__(self) -> Iterator[Index]:
        """All chunks, the last axis fastest."""
        return product(*map(range, self.counts))

    def __repr__(self) -> str:
        return f"Grid({self.shape}, {self.chunks})"


class Cells:
    """The chunks of a descriptor's physical array as boxes of logical indices.

    Parameters
    ----------
    desc : MemoryDesc
        Logical sizes, data type and format; it must have a physical array.
    chunks : sequence of int
        The sizes of a chunk of that array.
    plain : bool
        Whether files have chunks as they are (:attr:`relayout.stores.store.Stored.plain`), so that nothing
        has to be decoded or encoded.

    Examples
    --------
    >>> cells = Cells(MemoryDesc((8, 64, 56, 56), "f32", "nChw16c"), (1, 2, 56, 56, 16))
    >>> cells.grid.chunks, cells.grid.counts, cells.box((3, 1, 0, 0))
    ((1, 32, 56, 56), (8, 2, 1, 1), ((3, 4), (32, 64), (0, 56), (0, 56)))
    >>> cells.desc
    MemoryDesc('f32:nChw16c:1x32x56x56')
    """

    def __init__(self, desc: MemoryDesc, chunks: Sequence[int], plain: bool = False) -> None:
        self.stored = Grid(stored_shape(desc), chunks)
        self.plain = plain
        format = desc.format
        assert format is not None  # it has a physical shape
        sizes, units = [max(1, size) for size in desc.dims], [0] * desc.rank
        self._open: list[int | None] = [None] * desc.rank  # the physical axis that an axis is cut along
        for position, digit in enumerate(desc.layout.digits):
            term = desc.layout.terms[digit.term]
            if len(term) > 1 or desc.layout.ladders[digit.term][0].weight != digit.weight:
                continue
            if desc.layout.order[position][1] != 0:
                continue
            sizes[term[0]] = self.stored.chunks[position] * digit.weight
            units[term[0]] = digit.weight
            self._open[term[0]] = position
        self.whole = desc
        self.weights: tuple[tuple[int, ...], ...] = tuple(
            tuple(d.weight for d in desc.layout.ladders[t] if d.weight > 1)
            for axis in range(desc.rank)
            for t, term in enumerate(desc.layout.terms)
            if axis in term
        )
        """For each axis what one step of its digits is worth, but for 1: where blocks begin."""
        self.units = tuple(units)
        """For each axis the multiples at which it can be cut; 0: not at all (fused axes)."""
        self.grid = Grid(desc.dims, sizes)
        self.desc = MemoryDesc(sizes, desc.dtype, format)
        """A full cell, as it lies in memory: that of one chunk, where a cell is one."""

    def box(self, cell: Index) -> Box:
        """The elements of a cell."""
        return self.grid.box(cell)

    @property
    def nbytes(self) -> int:
        """Bytes of a full cell."""
        return self.desc.nbytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of a chunk, decoded."""
        return prod(self.stored.chunks) * self.whole.dtype.bits // 8

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """For each physical axis how many chunks of a cell lie along it."""
        cut = set(self._open)
        return tuple(1 if position in cut else count for position, count in enumerate(self.stored.counts))

    @cached_property
    def direct(self) -> bool:
        """Whether a cell is one chunk, byte by byte."""
        return self.per_cell == 1 and physical_shape(self.desc) == self.stored.chunks

    @cached_property
    def cuts(self) -> dict[int, tuple[int, int]]:
        """The physical axes that logical axes are cut along: which axis, and what a step of it is worth."""
        found = enumerate(self._open)
        return {position: (axis, self.units[axis]) for axis, position in found if position is not None}

    @property
    def coding_bytes(self) -> int:
        """Bytes that decoding or encoding a chunk takes beside the cell itself, at most."""
        return 0 if self.plain and self.direct else self.nbytes

    @property
    def per_cell(self) -> int:
        """How many chunks a cell is made of."""
        return prod(self.inner)

    def chunks_of(self, cell: Index) -> Iterator[tuple[Index, tuple[slice, ...]]]:
        """The chunks of a cell, each with its place in the cell's physical array."""
        base = [0] * len(self.stored.shape)
        for axis, position in enumerate(self._open):
            if position is not None:
                base[position] = cell[axis]
        for inner in product(*map(range, self.inner)):
            chunk = tuple(b + k for b, k in zip(base, inner, strict=True))
            yield (
                chunk,
                tuple(
                    slice(k * step, (k + 1) * step) for k, step in zip(inner, self.stored.chunks, strict=True)
                ),
            )


def chunk_layout(desc: MemoryDesc, chunks: Sequence[int]) -> tuple[Layout, int]:
    """Write chunks as digits: the layout of the elements if all chunks, full ones, lay one behind the other.

    Returns
    -------
    Layout, int
        The layout, with two digits for each that is cut; and how many of its digits, the outer ones, stand
        in the name of a chunk rather than within one.

    Examples
    --------
    >>> layout, outer = chunk_layout(MemoryDesc((8, 64, 56, 56), "f32", "nChw16c"), (1, 2, 56, 56, 16))
    >>> outer, [(d.weight, d.extent) for d in layout.digits]
    (2, [(1, 8), (32, 2), (16, 2), (1, 56), (1, 56), (1, 16)])
    """
    layout = desc.layout
    grid = Grid(stored_shape(desc), chunks)
    names: list[tuple[int, int, int]] = []  # term, weight, extent
    within: list[tuple[int, int, int]] = []
    for digit, step, count in zip(layout.digits, grid.chunks, grid.counts, strict=True):
        extent = min(step, digit.extent) if count == 1 else step
        if count > 1:
            names.append((digit.term, digit.weight * step, count))
        if extent > 1 or count == 1:
            within.append((digit.term, digit.weight, extent))
    strides, room = {}, 1
    for term, weight, extent in reversed([*names, *within]):
        strides[term, weight, extent] = room
        room *= max(1, extent)
    ladders, padded, order = [], [], []
    for term in range(len(layout.terms)):
        own = sorted((d for d in [*names, *within] if d[0] == term), key=lambda d: -d[1])
        ladders.append(tuple(Digit(w, e, strides[t, w, e]) for t, w, e in own))
        padded.append(max(layout.padded[term], prod(e for _, _, e in own)))
    for term, weight, extent in [*names, *within]:
        order.append((term, ladders[term].index(Digit(weight, extent, strides[term, weight, extent]))))
    made = Layout._make(
        layout.dims, layout.terms, tuple(ladders), tuple(order), tuple(padded), 0, None, layout.roles
    )
    return made, len(names)


def digit_names(desc: MemoryDesc) -> tuple[str, ...]:
    """What the axes of a physical array are called: the digits of the format.

    >>> digit_names(MemoryDesc((8, 64, 56, 56), "f32", "nChw16c"))
    ('n', 'c//16', 'h', 'w', 'c%16')
    """
    layout = desc.layout
    axes = layout.roles or letters(layout.rank)
    names = []
    for position, digit in enumerate(layout.digits):
        own = tuple(axes[a] for a in layout.terms[digit.term])
        extent = None if layout.order[position][1] == 0 else digit.extent
        names.append(spell_digit(own, digit.weight, extent))
    return tuple(names)
