"""The problem: what a reorder has to move, as nests of loops.

The common refinement (:mod:`relayout.layout.refine`) gives for every axis the loops that both layouts share.
A *nest* is one choice of pieces, one for each group of axes: a start on either side and loops with two
strides. A tensor without tails is a single nest.

Padding of the destination is zeros that follow the data, or nests that write zeros and read nothing. Three
inputs in ``OIhw4i16o4i`` leave most of every block empty::

    i 0 to 3     o0: 0 1 2 .   o1: 0 1 2 .  ...      the zero follows: "3x(49,1) then 1 zeros"
    i 4 to 15    o0: . . . .   o1: . . . .  ...      three rows of 64 bytes in one piece: "192x(0,1)"

The places of the second kind are gathered over the loops around them as long as that makes longer pieces
(:func:`_gathered`). An element or a row of padding at a time, they would be many nests, and each of them goes
over the whole destination.

Strides and starts count *bits*, because 4-bit elements lie half bytes apart; they print as bytes::

    u8 to f32 0->0: 2x(150528,602112)  3x(1,200704)  50176x(3,4)
    |         |     |
    |         |     a loop: 2 turns, each 150528 bytes further in the source and 602112 in the destination
    |         the first byte on either side
    what an element is: u8 becomes f32; a pure move shows a width only, u32

Scales, zero points and shifts along an axis are *tables*, with an entry for every number of the axis's
group. Every loop says how many entries a turn moves on in each table, so that a table is one more thing with
strides.

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

from relayout.dtypes import DType
from relayout.ir.conversions import RECIPROCALS, Steps, encloses
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
    "zeros",
]

MOST_NESTS = 32  # beyond that the NumPy engine's tables are cheaper than a kernel for every nest
LANES = 64  # of the longest vector
LINE = 64  # bytes at whose multiples tables begin
MOST_ROWS = 1 << 12  # rows of padding that are looked at one by one
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
        names = [table.name for table in self.tables if table.name not in RECIPROCALS]
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
    tables, owners = _tables(groups, _with_reciprocals(shape, src.dtype, dst.dtype))
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
            if filled is not None and group.axes == dst.layout.terms[filled.term] and piece is filled.piece:
                fill = filled.zeros
                pieces = tuple(_straight(p) if p is piece else p for p in pieces)
        out.append(replace(_over(start, pieces, owners), fill=fill))
    padding = zeros(dst.layout, widths[1], filled)
    if len(out) + len(padding) > MOST_NESTS:
        return None
    return (*padding, *out)


def _with_reciprocals(
    shape: Sequence[tuple[str, int | None]], src: DType, dst: DType
) -> list[tuple[str, int | None]]:
    """The attributes, and bounds of 1 / dst_scale where a kernel may multiply by these in place of dividing.

    See :func:`relayout.ir.conversions.rescaled`.
    """
    axes = dict(shape)
    if "dst_scale" not in axes or not encloses(src, dst, Steps(**dict.fromkeys(axes, True))):
        return list(shape)
    return [*shape, *((name, axes["dst_scale"]) for name in RECIPROCALS)]


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


class _Fill(NamedTuple):
    """So many numbers of padding of a term, from its size on, directly follow one of its pieces."""

    term: int
    piece: Piece
    zeros: int


def _filled(layout: Layout, groups: list[tuple[tuple[int, ...], tuple[Piece, ...]]]) -> _Fill | None:
    """Padding that simply continues a piece, element by element.

    Such zeros are written together with the data: whole blocks, whole cache lines.
    """
    for t, term in enumerate(layout.terms):
        if layout.term_size(t) == layout.padded[t]:
            continue
        places = term_offsets(layout.ladders[t], np.arange(layout.term_size(t), layout.padded[t]))
        for piece in next((p for axes, p in groups if axes == term), ()):
            if len(piece.loops) != 1 or (piece.loops[0].extent > 1 and piece.loops[0].dst != 1):
                continue
            apart = places != piece.dst + piece.loops[0].extent + np.arange(len(places))
            count = int(apart.argmax()) if apart.any() else len(places)
            if count:
                return _Fill(t, piece, count)
    return None


def zeros(layout: Layout, bits: int, filled: _Fill | None = None) -> list[Nest]:
    """Nests that zero the padding, term by term (see the engine of the same purpose in NumPy)."""
    if not layout.has_padding:
        return []
    out = []
    for t, (ladder, room) in enumerate(zip(layout.ladders, layout.padded, strict=True)):
        first = layout.term_size(t) + (filled.zeros if filled is not None and filled.term == t else 0)
        if room == first:
            continue
        others = [
            self_pieces(other, r)
            for u, (other, r) in enumerate(zip(layout.ladders, layout.padded, strict=True))
            if u != t
        ]
        places = term_offsets(ladder, np.arange(first, room)).tolist()
        for pieces in product(*others):
            start = layout.offset0 + sum(piece.dst for piece in pieces)
            loops = [(n, d) for piece in pieces for n, _, _, d in piece.loops if n > 1]
            rows, around = _gathered(places, loops)
            for row in rows:
                turns = (*around, (row.turns, row.step), (row.size, 1))
                loops_of = tuple(BitLoop(n, 0, d * bits) for n, d in turns if n > 1)
                out.append(_zero_nest((start + row.start) * bits, bits, loops_of))
    return out


class _Rows(NamedTuple):
    """Rows of ``size`` neighbouring places: so many ``turns``, each ``step`` further."""

    start: int
    size: int
    turns: int
    step: int


def _gathered(places: list[int], loops: list[tuple[int, int]]) -> tuple[list[_Rows], list[tuple[int, int]]]:
    """Places, repeated by loops of (extent, stride), as few and long rows; and the loops left around those.

    Inputs 3 to 15 of 16 outputs in ``4i16o4i``, where inputs 0 to 2 are no padding. Input 3 of the last
    output touches what follows; the loop over 9 taps stays as it is:

    >>> numbers = [i // 4 * 64 + i % 4 for i in range(3, 16)]
    >>> _gathered(numbers, [(16, 4), (9, 256)])
    ([_Rows(start=3, size=1, turns=15, step=4), _Rows(start=63, size=193, turns=1, step=193)], [(9, 256)])
    """
    around = sorted(loops, key=lambda loop: abs(loop[1]))
    rows = _joined([(place, place + 1) for place in places])
    groups = _in_steps(rows)
    while around:
        n, d = around[0]
        if all(end - start == d for start, end in rows):
            more = [(start, start + n * d) for start, end in rows]
        elif n * len(rows) <= MOST_ROWS:
            more = [(start + k * d, end + k * d) for start, end in rows for k in range(n)]
        else:
            break
        more = _joined(more)
        found = _in_steps(more)
        if len(found) > len(groups):
            break
        rows, groups = more, found
        del around[0]
    return groups, around


def _joined(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rows of places from start to end in rising order; those that touch become one."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(rows):
        if out and out[-1][1] == start:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return out


def _in_steps(rows: list[tuple[int, int]]) -> list[_Rows]:
    """Rows of one length and one distance together."""
    out: list[_Rows] = []
    for start, end in rows:
        size = end - start
        if out and out[-1].size == size:
            last = out[-1]
            step = start - last.start if last.turns == 1 else last.step
            if start == last.start + last.turns * step:
                out[-1] = last._replace(turns=last.turns + 1, step=step)
                continue
        out.append(_Rows(start, size, 1, size))
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
