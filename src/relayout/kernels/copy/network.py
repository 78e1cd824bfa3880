"""The shuffles that turn over a tile in registers.

Every 128-bit lane of a register is turned over by itself, with one kind of shuffle: *unpack*, which takes two
registers and interleaves their lower halves, or their upper halves. It is one instruction on every processor
(punpckl/punpckh, zip1/zip2), for elements of 1, 2, 4 and 8 bytes.

Think of bits. The number of a register is some bits, the place of an element in its lane is some more. One
stage of unpacking takes pairs of registers that differ in one bit of their number. It makes the top bit of
the place (lower half or upper half) that bit of the number, and pushes the bit that was there into the place,
from below. With four registers of four floats, rows ``a`` to ``d``::

    register  lane            pairs differ in bit 0      pairs differ in bit 1
    0         a0 a1 a2 a3     a0 b0 a1 b1                a0 b0 c0 d0    column 0
    1         b0 b1 b2 b3     a2 b2 a3 b3                a2 b2 c2 d2           2
    2         c0 c1 c2 c3     c0 d0 c1 d1                a1 b1 c1 d1           1
    3         d0 d1 d2 d3     c2 d2 c3 d3                a3 b3 c3 d3           3

After as many stages as a place has bits, all of them have been replaced: places are rows now, and registers
columns. Later stages interleave what is together already, so their elements are twice as wide each time,
which is the same to the processor and easier on the compiler.

Where a row has fewer columns than a lane has places, several rows share a lane, side by side. The bits that
tell them apart take part like any others: they are first swapped into the number, and then pushed back as row
bits. Only which row is loaded where is affected.
"""

from __future__ import annotations

from relayout.ir.writer import Writer

__all__ = ["Network", "interleaved", "interleaved_at_once", "joined"]

LANE = 128  # bits


class Network:
    """The transposition of ``elements`` rows by ``columns`` columns, both powers of two.

    Parameters
    ----------
    bits : int
        Width of an element: 8, 16, 32 or 64.
    columns : int
        Columns, which is also the number of registers; at most a lane's elements.
    elements : int
        Elements of a register, which is also the number of rows; at least ``columns``.

    Attributes
    ----------
    rows : list of list of int
        For each register the rows that lie side by side in it, each with ``columns`` elements.

    Examples
    --------
    >>> Network(32, 4, 16).rows[1]  # four lanes
    [1, 5, 9, 13]
    >>> Network(32, 2, 4).rows  # two rows in a lane
    [[0, 2], [1, 3]]
    """

    def __init__(self, bits: int, columns: int, elements: int) -> None:
        self.bits, self.columns, self.elements = bits, columns, elements
        self.places = min(LANE // bits, elements)  # in a lane
        if columns == 1:
            self.rows = [list(range(elements))]
            self.stages: list[int] = []
            self._column_of = [0]
            return
        places, across = _log2(self.places), _log2(columns)
        leaving = [("row", bit) for bit in range(places - across)] + [
            ("column", bit) for bit in range(across)
        ]
        leaving = [*reversed(leaving[: places - across]), *reversed(leaving[places - across :])]
        number = [("register", bit) for bit in range(across)]
        row_bits = []
        self.stages = []
        for stage in range(places):
            bit = next(
                b for b in (*range(stage % across, across), *range(across)) if number[b][0] != "column"
            )
            self.stages.append(bit)
            row_bits.append(number[bit])
            number[bit] = leaving[stage]
        self._column_of = [
            sum((register >> b & 1) << number[b][1] for b in range(across)) for register in range(columns)
        ]
        side_by_side = self.places // columns
        self.rows = [
            [
                lane + _number(row_bits, {"register": register, "row": part})
                for lane in range(0, elements, self.places)
                for part in range(side_by_side)
            ]
            for register in range(columns)
        ]

    def transposed(self, w: Writer, registers: list[str]) -> list[str]:
        """Write the shuffles; return the registers of all columns, in order."""
        for stage, bit in enumerate(self.stages):
            after = list(registers)
            for one in range(self.columns):
                if one >> bit & 1:
                    continue
                two = one | 1 << bit
                after[one] = self._unpacked(w, registers[one], registers[two], stage, 0)
                after[two] = self._unpacked(w, registers[one], registers[two], stage, 1)
            registers = after
        columns = [""] * self.columns
        for register, column in enumerate(self._column_of):
            columns[column] = registers[register]
        return columns

    def _unpacked(self, w: Writer, one: str, two: str, stage: int, upper: int) -> str:
        """The lower or upper halves of every lane of two registers, interleaved."""
        return _unpacked(w, one, two, (self.bits * self.elements, self.bits, self.bits << stage), upper)


def interleaved_at_once(bits: int, rows: int, columns: int, vector: int) -> int:
    """How many columns :func:`interleaved` takes of so many; 0 where it can't.

    They are a power of two, 16 bytes of each row where a vector does not hold so much of all rows, otherwise
    what it holds.

    >>> [interleaved_at_once(8, rows, 64, vector) for rows, vector in ((4, 16), (4, 64), (2, 64), (3, 64))]
    [16, 16, 32, 0]
    """
    if rows & (rows - 1) or rows * bits > 8 * vector:
        return 0
    return min(columns & -columns, max(LANE, 8 * vector // rows) // bits)


def interleaved(w: Writer, rows: list[str], bits: int, columns: int, vector: int) -> list[str]:
    """Rows of a few columns each, their elements in turn: ``a0 b0 c0 d0 a1 b1 ...``, as vectors in order.

    Registers take several rows side by side, as many as they hold. First registers are unpacked, until every
    row has met its neighbours in a lane; then what the lanes of a register hold is put in order, by one
    shuffle of larger pieces across lanes and one within each. Four rows of 16 bytes in one register of 64::

        a0 .. a15 | b0 .. b15 | c0 .. c15 | d0 .. d15               rows side by side
        a0-3 b0-3 c0-3 d0-3 | a4-7 b4-7 c4-7 d4-7 | ...             pieces of four across lanes
        a0 b0 c0 d0 a1 b1 c1 d1 a2 b2 c2 d2 a3 b3 c3 d3 | ...       bytes within lanes
    """
    room = 8 * vector // bits if columns * bits >= LANE else len(rows) * columns
    count = max(1, len(rows) * columns // room)  # registers
    total = len(rows) * columns * bits // count
    streams = [[joined(w, rows[k::count], columns, bits)] for k in range(count)]
    unit = bits
    while len(streams) > 1:
        widths = (total, bits, unit)
        streams = [
            [_unpacked(w, x, y, widths, upper) for x, y in zip(a, b, strict=True) for upper in (0, 1)]
            for a, b in zip(streams[::2], streams[1::2], strict=True)
        ]
        unit *= 2
    made = [_in_order(w, value, (total, bits, unit), len(rows) // count) for value in streams[0]]
    return (
        made
        if total <= 8 * vector
        else [part for value in made for part in _cut(w, value, total, bits, vector)]
    )


def _cut(w: Writer, value: str, total: int, bits: int, vector: int) -> list[str]:
    """The vectors of a value that is longer than those."""
    every, few = total // bits, 8 * vector // bits
    return [
        w.shuffle(value, "poison", f"<{every} x i{bits}>", range(first, first + few))
        for first in range(0, every, few)
    ]


Widths = tuple[int, int, int]
"""Bits of a register, of an element, and of what is moved together."""


def _in_order(w: Writer, value: str, widths: Widths, rows: int) -> str:
    """Rows that lie side by side in a register, their units in turn."""
    total, bits, unit = widths
    piece = max(min(total, LANE) // rows, unit)  # of a row, in one lane
    lanes = total // rows // piece
    across = [row * lanes + lane for lane in range(lanes) for row in range(rows)]
    value = _shuffled(w, value, "poison", (total, bits, piece), across)
    few = piece // unit
    within = [
        (lane * rows + row) * few + k for lane in range(lanes) for k in range(few) for row in range(rows)
    ]
    return _shuffled(w, value, "poison", widths, within)


def _unpacked(w: Writer, one: str, two: str, widths: Widths, upper: int) -> str:
    """The lower or upper halves of every lane of two registers, interleaved."""
    total, _, unit = widths
    units, places = total // unit, min(total, LANE) // unit
    picks = [
        half * units + lane + upper * places // 2 + k
        for lane in range(0, units, places)
        for k in range(places // 2)
        for half in (0, 1)
    ]
    return _shuffled(w, one, two, widths, picks)


def _shuffled(w: Writer, one: str, two: str, widths: Widths, picks: list[int]) -> str:
    """Units of one or two registers."""
    total, bits, unit = widths
    if picks == list(range(len(picks))):
        return one
    own, other = f"<{total // bits} x i{bits}>", f"<{total // unit} x i{unit}>"
    if own == other:
        return w.shuffle(one, two, own, picks)
    one = w.value(f"bitcast {own} {one} to {other}")
    if two != "poison":
        two = w.value(f"bitcast {own} {two} to {other}")
    return w.value(f"bitcast {other} {w.shuffle(one, two, other, picks)} to {own}")


def joined(w: Writer, parts: list[str], count: int, bits: int) -> str:
    """Vectors of ``count`` elements side by side in one.

    Lanes are inserted one after the other: from memory, that takes no shuffle. Pairs of pairs would.
    """
    while len(parts) > 1 and count * bits < LANE:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [w.shuffle(a, b, f"<{count} x i{bits}>", range(2 * count)) for a, b in pairs]
        count *= 2
    if len(parts) == 1:
        return parts[0]
    whole, part = f"<{count * len(parts)} x i{bits}>", f"<{count} x i{bits}>"
    insert = f"call {whole} @llvm.vector.insert.v{count * len(parts)}i{bits}.v{count}i{bits}"
    made = "poison"
    for k, value in enumerate(parts):
        made = w.value(f"{insert}({whole} {made}, {part} {value}, i64 {k * count})")
    return made


def _log2(number: int) -> int:
    return number.bit_length() - 1


def _number(bits: list[tuple[str, int]], parts: dict[str, int]) -> int:
    """A row from its bits, each a bit of another number."""
    return sum((parts[what] >> bit & 1) << place for place, (what, bit) in enumerate(bits))
