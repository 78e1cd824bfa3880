"""The problem: what a reorder has to move, as nests of loops in bits.

A reorder is a nest (:mod:`relayout.loops`) whose first operand is the source and whose last one is the
destination. What lies between are tables of scales, zero points and shifts, with an entry for every index of
their axis. A :class:`Move` is such a nest with what becomes of a value on the way. Padding of the destination
are nests of one operand, or zeros that follow the data (:mod:`relayout.loops.padding`).

Strides and starts count *bits*, because 4-bit elements lie half bytes apart; they print as bytes::

    u8 to f32 0->0: 2x(150528,602112)  3x(1,200704)  50176x(3,4)
    |         |     |
    |         |     a loop: 2 turns, each 150528 bytes further in the source and 602112 in the destination
    |         the first byte on either side
    what an element is: u8 becomes f32; a pure move shows a width only, u32

Everything after that is a *pass*, which changes how the work is written down and not what it is:

``order``     what is near on either side comes soon: loops by the smaller of their strides, then by that of
              the destination
``coalesce``  loops of which one continues the other on both sides become one
``widen``     runs that lie together on both sides are moved as wider elements

A nest prints itself, and ``Reorder.explain`` shows it after every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relayout.dtypes import DType
from relayout.ir.conversions import (
    LEARNT,
    LINES,
    MIDDLES,
    MISSING,
    RECIPROCALS,
    Steps,
    follows_lines,
    multiplies,
    rounds_up,
)
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.loops import nest as loops
from relayout.loops.nest import Loop, Nest, coalesce
from relayout.loops.padding import padded, padding
from relayout.loops.refine import table_along
from relayout.records import dataclass, replace

__all__ = [
    "LANES",
    "PASSES",
    "WIDEST",
    "Conversion",
    "Move",
    "Table",
    "in_bytes",
    "moves",
    "moves_bits",
    "order",
    "simplified",
    "widen",
    "zeros",
]

LANES = 64  # of the longest vector
LINE = 64  # bytes at whose multiples tables begin
READS = 4  # how much further reading may jump than writing
WIDEST = 64  # bits of an element: the widest integer that shuffles move


class Table(NamedTuple):
    """The values of one attribute: where they lie in the block of operands, and how many there are.

    ``number`` says which of the nest's :attr:`~relayout.loops.nest.Nest.tables` it is; None: one entry for
    all elements.
    """

    name: str
    offset: int
    entries: int
    number: int | None

    @property
    def end(self) -> int:
        """The byte behind it.

        Entries have at most 8 bytes. Behind the last one follow 64 more, the first ones again: for lanes that
        go through a short table several times, and for lanes that are not used.
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
        names = [table.name for table in self.tables if table.name not in (*RECIPROCALS, *LEARNT)]
        return f"{self.src} to {self.dst}{' with ' if names else ''}{', '.join(names)}"


@dataclass(frozen=True)
class Move(Nest):
    """A nest in bits, and what becomes of a value between its source and its destination.

    Attributes
    ----------
    conversion : Conversion, optional
        None: elements are moved as they are.
    pair : int
        A source element is two 4-bit elements; the second one goes so many bits further (0: it is not).
    """

    conversion: Conversion | None = None
    pair: int = 0

    @property
    def read(self) -> int:
        """Bits of an element of the source."""
        return self.widths[0]

    @property
    def write(self) -> int:
        """Bits of an element of the destination."""
        return self.widths[-1]

    @property
    def adds(self) -> bool:
        """Whether it adds to the destination, so that nothing may be written twice."""
        return self.conversion is not None and self.conversion.accumulates

    @property
    def bytes(self) -> int:
        """Bytes written."""
        row = self.row.extent if self.row else 1
        return self.size // row * (row + self.fill) * self.write // 8

    def apart(self) -> tuple[Move, Move]:
        """The data alone, and the zeros that follow it alone."""
        data, zeros = super().apart()
        return data, replace(zeros, conversion=None)

    def __str__(self) -> str:
        what = "zeros" if self.zero else str(self.conversion or f"u{self.write}")
        turns = "  ".join(f"{loop.extent}x({in_bytes(loop.src)},{in_bytes(loop.dst)})" for loop in self.loops)
        more = f"  then {self.fill} zeros" if self.fill else ""
        return f"{what} {in_bytes(self.src)}->{in_bytes(self.dst)}: {turns or 'one'}{more}"


def in_bytes(bits: int) -> str:
    """Bits as bytes, halves included."""
    return str(bits // 8) if bits % 8 == 0 else f"{bits / 8:g}"


def moves(
    src: MemoryDesc,
    dst: MemoryDesc,
    shape: Sequence[tuple[str, int | None]] = (),
    lines: bool = False,
    rounds: bool = False,
) -> tuple[Move, ...] | None:
    """All nests of a reorder, or None where there would be too many.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors of equal dims.
    shape : sequence of (str, int or None)
        The attributes that take part, in the order of the formula, and the axis along which each has values.
    lines : bool
        Whether kernels go by what all bytes become (:mod:`relayout.reorder.lines`).
    rounds : bool
        Whether an instruction rounds to bf16, so that nobody asks which bytes are rounded to even ones.

    Examples
    --------
    >>> dims = (2, 3, 224, 224)
    >>> for move in moves(MemoryDesc(dims, "u8", "nhwc"), MemoryDesc(dims, "f32", "nchw")):
    ...     print(simplified(move))
    u8 to f32 0->0: 2x(150528,602112)  3x(1,200704)  50176x(3,4)
    """
    tables = _tables(src.dims, _with_more(shape, src.dtype, dst.dtype, lines, rounds))
    several = [table_along(src.dims, axis) for _, axis in tables if axis is not None]
    found = padded([src.layout, *several, dst.layout])
    if found is None:
        return None
    conversion = None
    if tables or src.dtype != dst.dtype or src.dtype.bits == 4:
        conversion = Conversion(src.dtype, dst.dtype, tuple(table for table, _ in tables))
    widths = (src.dtype.bits, *(1 for _ in several), dst.dtype.bits)
    made = (nest.scaled(widths) for nest in found.data)
    data = (Move(nest.starts, nest.loops, nest.widths, nest.fill, conversion) for nest in made)
    return (*_zeros(found.zeros, dst.dtype.bits), *data)


def zeros(layout: Layout, bits: int) -> tuple[Move, ...]:
    """Nests that zero the padding of a layout of elements of so many bits."""
    return _zeros(padding(layout), bits)


def _zeros(nests: Sequence[Nest], bits: int) -> tuple[Move, ...]:
    scaled = (nest.scaled((bits,)) for nest in nests)
    return tuple(Move(nest.starts, nest.loops, nest.widths) for nest in scaled)


def _with_more(
    shape: Sequence[tuple[str, int | None]], src: DType, dst: DType, lines: bool, rounds: bool
) -> list[tuple[str, int | None]]:
    """The attributes, and what a kernel may compute with in place of all, or of dividing by dst_scale.

    See :func:`relayout.ir.conversions.on_lines` and :func:`~relayout.ir.conversions.rescale`.
    """
    axes = dict(shape)
    along = {axis for axis in axes.values() if axis is not None}
    steps = Steps(**dict.fromkeys(axes, True))
    if lines and len(along) < 2 and follows_lines(src, dst, steps):
        return [*shape, *((name, next(iter(along), None)) for name in LINES), (MISSING, None)]
    if lines and not rounds and len(along) < 2 and rounds_up(src, dst, steps):
        return [*shape, (MIDDLES, None)]
    if "dst_scale" not in axes or not multiplies(src, dst, steps):
        return list(shape)
    return [*shape, *((name, axes["dst_scale"]) for name in RECIPROCALS)]


def _tables(dims: tuple[int, ...], shape: Sequence[tuple[str, int | None]]) -> list[tuple[Table, int | None]]:
    """A table for each attribute, one behind the other, and its axis."""
    tables: list[tuple[Table, int | None]] = []
    offset = number = 0
    for name, axis in shape:
        table = Table(name, offset, *((1, None) if axis is None else (dims[axis], number)))
        tables.append((table, axis))
        number += axis is not None
        offset = table.end
    return tables


# -- passes -------------------------------------------------------------------------------------------------


def order(move: Move) -> Move:
    """Loops by falling smaller stride, then destination stride; loops of one turn are dropped.

    By the destination's alone writing would go forward through memory, and reading come back to each page
    only much later, when it is in no cache any more: reversing the axes of a large tensor took 3.5 times
    ``memcpy``, and 2 in this order.
    """
    return loops.order(move, _nearness)


def _nearness(loop: Loop) -> tuple[int, int]:
    """The smaller stride, then the destination's; the source's does not count where nothing moves there.

    Large strides count less when reading than when writing: loads are prefetched, and leave no partial lines.
    """
    src, dst = READS * abs(loop.src), abs(loop.dst)
    return (min(src, dst) if src else dst), dst


def widen(move: Move) -> Move:
    """Move runs that lie together on both sides as wider elements; they need not be aligned.

    >>> print(widen(Move((0, 0), (Loop(9, (512, 128)), Loop(4, (8, 8))), (8, 8))))
    u32 0->0: 9x(64,16)
    """
    run = move.run
    if run is None or not moves_bits(move):
        return move
    others = (number for loop in move.without(run) for number in loop.steps)
    if move.write < 8 and any(number % 8 for number in (*move.starts, *others)):
        return move  # half bytes that begin in the middle of a byte
    made = loops.widen(move, WIDEST)
    return made if made.write == 4 else replace(made, conversion=None)


def moves_bits(move: Move) -> bool:
    """Whether elements keep their bits."""
    what = move.conversion
    return what is None or (what.src == what.dst and not what.tables)


PASSES = (order, coalesce, widen, order)


def simplified(move: Move) -> Move:
    """All passes."""
    for step in PASSES:
        move = step(move)
    return move
