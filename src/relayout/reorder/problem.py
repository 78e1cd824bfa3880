"""The problem: what a reorder has to move, as nests of loops.

The common refinement (:mod:`relayout.layout.refine`) gives for every axis the loops that both layouts share.
A *nest* is one choice of pieces, one for each group of axes: a start on either side and loops with two
strides. A tensor without tails is a single nest. Padding of the destination is nests too, which write zeros
and read nothing.

Strides and starts count *bits*, because 4-bit elements lie half bytes apart; they print as bytes::

    u8 to f32 0->0: 2x(150528,602112)  3x(1,200704)  50176x(3,4)
    |         |     |
    |         |     a loop: 2 turns, each 150528 bytes further in the source and 602112 in the destination
    |         the first byte on either side
    what an element is: u8 becomes f32; a pure move shows a width only, u32

Scales and zero points along an axis are *tables*, with an entry for every number of the axis's group. Every
loop says how many entries a turn moves on in each table, so that a table is one more thing with strides.

Everything after that is a *pass*, a function from nests to nests that changes how the work is written down
and not what it is:

``order``    what is near on either side comes soon: loops by the smaller of their strides, then by that of
             the destination
``fuse``     loops of which one continues the other on both sides become one
``widen``    runs that lie together on both sides are moved as wider elements

A nest prints itself, and ``Reorder.explain`` shows it after every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from relayout.convert import arithmetic_types
from relayout.dtypes import DType
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.layout.refine import Group, Piece, refine, self_pieces
from relayout.layout.vectorised import term_offsets

__all__ = [
    "LANES",
    "WIDEST",
    "BitLoop",
    "Conversion",
    "Nest",
    "Table",
    "fuse",
    "nests",
    "order",
    "simplified",
    "widen",
]

MOST_NESTS = 32  # beyond that the NumPy engine's tables are cheaper than a kernel for every nest
RECIPROCAL = "dst_reciprocal"
LANES = 64  # of the longest vector
LINE = 64  # bytes at whose multiples tables begin
READS = 4  # how much further reading may jump than writing
WIDEST = 64  # bits of an element: the widest integer that shuffles move


class BitLoop(NamedTuple):
    """``extent`` turns, each ``src`` and ``dst`` bits and so many entries of each table further."""

    extent: int
    src: int
    dst: int
    tables: tuple[int, ...] = ()


class Table(NamedTuple):
    """The operand of one attribute: where it lies in the block of operands, and how many entries it has.

    ``number`` says which of the strides of a loop are its; None: one entry for all elements.
    """

    name: str
    offset: int
    entries: int
    number: int | None

    @property
    def end(self) -> int:
        """The byte behind it.

        Entries have at most 8 bytes. Behind the last one follow 64 more, the first ones again: for lanes that
        walk through a short table several times, and for lanes that nobody uses.
        """
        return self.offset + (8 * (self.entries + LANES) + LINE - 1) // LINE * LINE


@dataclass(frozen=True)
class Conversion:
    """What becomes of a value between its two places."""

    src: DType
    dst: DType
    tables: tuple[Table, ...] = ()

    @property
    def accumulates(self) -> bool:
        """Whether the old destination takes part."""
        return any(table.name == "beta" for table in self.tables)

    def __str__(self) -> str:
        names = [table.name for table in self.tables if table.name != RECIPROCAL]
        return f"{self.src} to {self.dst}{' with ' if names else ''}{', '.join(names)}"


@dataclass(frozen=True)
class Nest:
    """Loops, outermost first, over elements of ``read`` bits in the source and ``write`` in the destination.

    It begins ``src`` bits behind the one address and ``dst`` bits behind the other.
    """

    src: int
    dst: int
    read: int
    write: int
    loops: tuple[BitLoop, ...]
    conversion: Conversion | None = None
    """None: elements are moved as they are."""
    tables: tuple[int, ...] = ()
    """The first entry in each table that has several."""
    zero: bool = False
    """Nothing is read; zeros are written."""
    fill: int = 0
    """So many zeros follow, in the destination, on every turn of the loop that is contiguous there."""
    pair: int = 0
    """A source element is two 4-bit elements; the second one goes so many bits further (0: it is not)."""

    @property
    def adds(self) -> bool:
        """Whether it adds to the destination, so that nothing may be written twice."""
        return self.conversion is not None and self.conversion.accumulates

    @property
    def bytes(self) -> int:
        """Bytes written."""
        total = self.write
        for loop in self.loops:
            total *= loop.extent + (self.fill if loop.dst == self.write else 0)
        return total // 8

    def apart(self) -> tuple[Nest, Nest]:
        """The data alone, and the zeros that follow it alone."""
        row = next(loop for loop in self.loops if loop.dst == self.write)
        rest = tuple(BitLoop(loop.extent, 0, loop.dst) for loop in self.loops if loop is not row)
        start = self.dst + row.extent * self.write
        zeros = _zero_nest(start, self.write, (*rest, BitLoop(self.fill, 0, self.write)))
        return replace(self, fill=0), zeros

    def __str__(self) -> str:
        what = "zeros" if self.zero else str(self.conversion or f"u{self.write}")
        loops = "  ".join(f"{n}x({in_bytes(s)},{in_bytes(d)})" for n, s, d, _ in self.loops) or "one"
        zeros = f"  then {self.fill} zeros" if self.fill else ""
        return f"{what} {in_bytes(self.src)}->{in_bytes(self.dst)}: {loops}{zeros}"


def in_bytes(bits: int) -> str:
    """Bits as bytes, halves included."""
    return str(bits // 8) if bits % 8 == 0 else f"{bits / 8:g}"


def _zero_nest(start: int, bits: int, loops: tuple[BitLoop, ...]) -> Nest:
    return Nest(0, start, bits, bits, loops, zero=True)


def nests(
    src: MemoryDesc, dst: MemoryDesc, shape: Sequence[tuple[str, int | None]] = ()
) -> tuple[Nest, ...] | None:
    """All nests of a reorder, or None where there would be too many.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors of equal dims.
    shape : sequence of (str, int or None)
        The attributes that take part, in the order of the formula, and the axis along which each has values.

    Examples
    --------
    >>> dims = (2, 3, 224, 224)
    >>> for nest in nests(MemoryDesc(dims, "u8", "nhwc"), MemoryDesc(dims, "f32", "nchw")):
    ...     print(simplified(nest))
    u8 to f32 0->0: 2x(150528,602112)  3x(1,200704)  50176x(3,4)
    """
    groups = refine(src.layout, dst.layout)
    if any(group.pieces is None for group in groups):
        return None
    if prod(len(group.pieces or ()) for group in groups) > MOST_NESTS:
        return None
    tables, owners = _tables(groups, _with_reciprocal(shape, src.dtype, dst.dtype))
    widths = src.dtype.bits, dst.dtype.bits
    conversion = None
    if tables or src.dtype != dst.dtype or 4 in widths:
        conversion = Conversion(src.dtype, dst.dtype, tables)
    start = Nest(src.offset0 * widths[0], dst.offset0 * widths[1], *widths, (), conversion)
    filled = _filled(dst.layout, [(group.axes, group.pieces or ()) for group in groups])
    out = []
    for pieces in product(*(group.pieces or () for group in groups)):
        fill = 0
        for group, piece in zip(groups, pieces, strict=True):
            last = piece is (group.pieces or ())[-1]
            if filled is not None and group.axes == dst.layout.terms[filled[0]] and last:
                fill = filled[1]
                pieces = tuple(_straight(p) if p is piece else p for p in pieces)
        out.append(replace(_over(start, pieces, owners), fill=fill))
    zeros = _zeros(dst.layout, widths[1], None if filled is None else filled[0])
    if len(out) + len(zeros) > MOST_NESTS:
        return None
    return (*zeros, *out)


def _with_reciprocal(
    shape: Sequence[tuple[str, int | None]], src: DType, dst: DType
) -> list[tuple[str, int | None]]:
    """The attributes, and 1 / dst_scale where a kernel may multiply in place of dividing."""
    axes = dict(shape)
    arithmetic, _ = arithmetic_types(src, dst, accumulate="beta" in axes)
    exact = arithmetic.name == "f32" and not dst.is_float
    return [*shape, *([(RECIPROCAL, axes["dst_scale"])] if exact and "dst_scale" in axes else [])]


def _tables(
    groups: Sequence[Group], shape: Sequence[tuple[str, int | None]]
) -> tuple[tuple[Table, ...], tuple[int, ...]]:
    """A table for each attribute, one behind the other; and for those with several entries their group."""
    tables: list[Table] = []
    owners: list[int] = []
    offset = 0
    for name, axis in shape:
        group = None if axis is None else next(k for k, g in enumerate(groups) if axis in g.axes)
        entries = 1 if group is None else groups[group].size
        tables.append(Table(name, offset, entries, None if group is None else len(owners)))
        if group is not None:
            owners.append(group)
        offset = tables[-1].end
    return tuple(tables), tuple(owners)


def _over(start: Nest, pieces: tuple[Piece, ...], owners: tuple[int, ...]) -> Nest:
    """The nest of a choice of pieces."""
    loops = tuple(
        BitLoop(n, s * start.read, d * start.write, tuple(step if owner == k else 0 for owner in owners))
        for k, piece in enumerate(pieces)
        for n, step, s, d in piece.loops
    )
    return replace(
        start,
        src=start.src + sum(piece.src for piece in pieces) * start.read,
        dst=start.dst + sum(piece.dst for piece in pieces) * start.write,
        loops=loops,
        tables=tuple(pieces[owner].start for owner in owners),
    )


def _straight(piece: Piece) -> Piece:
    """A piece of one loop whose zeros follow in the destination.

    Its stride there is one element, also where it has one turn.
    """
    return piece._replace(loops=(piece.loops[0]._replace(dst=1),))


def _filled(
    layout: Layout, groups: list[tuple[tuple[int, ...], tuple[Piece, ...]]]
) -> tuple[int, int] | None:
    """A term whose padding simply continues its last piece, element by element, and how many zeros that are.

    Such zeros are written together with the data: whole blocks, whole cache lines.
    """
    for t, term in enumerate(layout.terms):
        missing = layout.padded[t] - layout.term_size(t)
        pieces = next((p for axes, p in groups if axes == term), ())
        if not missing or not pieces or len(pieces[-1].loops) != 1:
            continue
        last = pieces[-1]
        loop = last.loops[0]
        if loop.extent > 1 and loop.dst != 1:
            continue
        numbers = np.arange(layout.term_size(t), layout.padded[t])
        follows = last.dst + loop.extent + np.arange(missing)
        if (term_offsets(layout.ladders[t], numbers) == follows).all():
            return t, missing
    return None


def _zeros(layout: Layout, bits: int, skip: int | None) -> list[Nest]:
    """Nests that zero the padding, term by term (see the engine of the same purpose in NumPy)."""
    if not layout.has_padding:
        return []
    out = []
    for t, (ladder, room) in enumerate(zip(layout.ladders, layout.padded, strict=True)):
        size = layout.term_size(t)
        if room == size or t == skip:
            continue
        others = [
            self_pieces(other, r)
            for u, (other, r) in enumerate(zip(layout.ladders, layout.padded, strict=True))
            if u != t
        ]
        for start, count, step in _runs(term_offsets(ladder, np.arange(size, room)).tolist()):
            for pieces in product(*others):
                loops = [BitLoop(n, 0, d * bits) for piece in pieces for n, _, _, d in piece.loops]
                place = layout.offset0 + start + sum(piece.dst for piece in pieces)
                out.append(_zero_nest(place * bits, bits, (*loops, BitLoop(count, 0, step * bits))))
    return out


def _runs(places: list[int]) -> list[tuple[int, int, int]]:
    """Places as arithmetic runs: start, count, step."""
    out = []
    start = 0
    while start < len(places):
        end = start + 1
        step = places[end] - places[start] if end < len(places) else 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        out.append((places[start], end - start, step))
        start = end
    return out


# -- passes -------------------------------------------------------------------------------------------------


def order(nest: Nest) -> Nest:
    """Loops by falling smaller stride, then destination stride; loops of one turn are dropped.

    By the destination's alone writing would go forward through memory, and reading come back to each page
    only much later, when it is in no cache any more: reversing the axes of a large tensor took 3.5 times
    ``memcpy``, and 2 in this order.
    """
    kept = [loop for loop in nest.loops if loop.extent > 1 or (nest.fill and loop.dst == nest.write)]
    return replace(nest, loops=tuple(sorted(kept, key=_nearness, reverse=True)))


def _nearness(loop: BitLoop) -> tuple[int, int]:
    """The smaller stride, then the destination's; the source's does not count where nothing moves there.

    Reading from far counts less than writing to far: it is asked for early, and no line is half done.
    """
    src, dst = READS * abs(loop.src), abs(loop.dst)
    return (min(src, dst) if src else dst), dst


def fuse(nest: Nest) -> Nest:
    """Join loops of which the outer continues the inner one on both sides, and in all tables.

    >>> fuse(Nest(0, 0, 32, 32, (BitLoop(3, 640, 640), BitLoop(20, 32, 32)))).loops
    (BitLoop(extent=60, src=32, dst=32, tables=()),)
    """
    loops = list(nest.loops)
    found = True
    while found:
        found = False
        for outer, inner in product(loops, loops):
            if outer is inner or (nest.fill and inner.dst == nest.write):
                continue
            if continues(outer, inner):
                loops[loops.index(inner)] = inner._replace(extent=inner.extent * outer.extent)
                loops.remove(outer)
                found = True
                break
    return replace(nest, loops=tuple(loops))


def continues(outer: BitLoop, inner: BitLoop) -> bool:
    """Whether the next turn of the outer loop goes on where the inner one has ended, everywhere."""
    n = inner.extent
    tables = tuple(n * t for t in inner.tables)
    return (n * inner.src, n * inner.dst, tables) == (outer.src, outer.dst, outer.tables)


def widen(nest: Nest) -> Nest:
    """Move runs that lie together on both sides as wider elements; they need not be aligned.

    >>> print(widen(Nest(0, 0, 8, 8, (BitLoop(9, 512, 128), BitLoop(4, 8, 8)))))
    u32 0->0: 9x(64,16)
    """
    if nest.fill or not moves_bits(nest):
        return nest
    together = (
        loop for loop in nest.loops if loop.dst == nest.write and (nest.zero or loop.src == nest.write)
    )
    run = next(together, None)
    if run is None:
        return nest
    width = nest.write
    while width < WIDEST and run.extent * nest.write % (2 * width) == 0:
        width *= 2
    if nest.write < 8 and any(number % 8 for number in _off_run(nest, run)):
        return nest  # half bytes that begin in the middle of a byte
    extent = run.extent * nest.write // width
    widened = BitLoop(extent, 0 if nest.zero else width, width)
    loops = tuple(
        loop for loop in (widened if loop is run else loop for loop in nest.loops) if loop.extent > 1
    )
    return replace(
        nest, read=width, write=width, loops=loops, conversion=nest.conversion if width == 4 else None
    )


def _off_run(nest: Nest, run: BitLoop) -> list[int]:
    """Starts and strides, but for those of a run."""
    others = [loop for loop in nest.loops if loop is not run]
    return [nest.dst, nest.src, *(loop.dst for loop in others), *(loop.src for loop in others)]


def moves_bits(nest: Nest) -> bool:
    """Whether elements keep their bits."""
    what = nest.conversion
    return what is None or (what.src == what.dst and not what.tables)


PASSES = (order, fuse, widen, order)


def simplified(nest: Nest) -> Nest:
    """All passes."""
    for step in PASSES:
        nest = step(nest)
    return nest
