"""The shuffles that transpose a tile in registers.

Every 128-bit lane of a register is shuffled by itself, with one kind of shuffle: *unpack*, which takes two
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

from collections.abc import Callable, Iterable, Iterator, Sequence

from relayout.ir.builder import Builder
from relayout.ir.types import Value, integer, vector
from relayout.ir.vectors import cut, join_lanes
from relayout.kernels.copy.plan import LANE_BITS

__all__ = ["Network", "beside", "in_turn", "interleaved", "interleaved_at_once", "square", "squared"]


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
        self.places = min(LANE_BITS // bits, elements)  # in a lane
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

    def transposed(self, b: Builder, load: Callable[[int], Value]) -> list[Value]:
        """Write the shuffles, stage by stage; return the registers of all columns, in order."""
        registers = [load(k) for k in range(self.columns)]
        for stage, bit in enumerate(self.stages):
            after = list(registers)
            for one in range(self.columns):
                if one >> bit & 1:
                    continue
                two = one | 1 << bit
                after[one], after[two] = (
                    _unpacked(b, registers[one], registers[two], self.bits << stage, upper)
                    for upper in (0, 1)
                )
            registers = after
        return [registers[self._column_of.index(column)] for column in range(self.columns)]

    def in_depth(self, b: Builder, load: Callable[[int], Value]) -> Iterator[tuple[int, Value]]:
        """The same, one column after the other with its number, each as soon as it can be.

        ``load`` is asked for a register when it is wanted. No more values than there are columns are alive at
        a time, and those that have been given away are not: a tile of 16 columns fits 16 registers.
        Stage by stage, LLVM keeps twice as many.
        """
        known: dict[tuple[int, int], Value] = {}

        def value(stage: int, register: int) -> Value:
            """What a register holds behind so many stages."""
            if not stage:
                return load(register)
            if (stage, register) not in known:
                bit = self.stages[stage - 1]
                pair = register & ~(1 << bit), register | 1 << bit
                one, two = (value(stage - 1, other) for other in pair)
                for upper in (0, 1):
                    known[stage, pair[upper]] = _unpacked(b, one, two, self.bits << stage - 1, upper)
            return known.pop((stage, register))

        last = self.stages[-1] if self.stages else 0
        for register in sorted(range(self.columns), key=lambda k: (k & ~(1 << last), k)):
            yield self._column_of[register], value(len(self.stages), register)


def interleaved_at_once(bits: int, rows: int, columns: int, vector: int) -> int:
    """How many columns :func:`interleaved` takes of so many; 0 where it can't.

    They are a power of two, 16 bytes of each row where a vector does not hold so much of all rows, otherwise
    what it holds.

    >>> [interleaved_at_once(8, rows, 64, vector) for rows, vector in ((4, 16), (4, 64), (2, 64), (3, 64))]
    [16, 16, 32, 0]
    """
    if rows & (rows - 1) or rows * bits > 8 * vector:
        return 0
    return min(columns & -columns, max(LANE_BITS, 8 * vector // rows) // bits)


def interleaved(b: Builder, rows: list[Value], width: int) -> list[Value]:
    """Rows of a few columns each, their elements in turn: ``a0 b0 c0 d0 a1 b1 ...``, as vectors in order.

    Registers take several rows side by side, as many as they hold. First registers are unpacked, until every
    row has met its neighbours in a lane; then what the lanes of a register hold is put in order, by one
    shuffle of larger pieces across lanes and one within each. Four rows of 16 bytes in one register of 64::

        a0 .. a15 | b0 .. b15 | c0 .. c15 | d0 .. d15               rows side by side
        a0-3 b0-3 c0-3 d0-3 | a4-7 b4-7 c4-7 d4-7 | ...             pieces of four across lanes
        a0 b0 c0 d0 a1 b1 c1 d1 a2 b2 c2 d2 a3 b3 c3 d3 | ...       bytes within lanes
    """
    row = rows[0].type
    count = beside(row.bits, len(rows), row.count, width)
    return in_turn(b, [join_lanes(b, rows[k::count]) for k in range(count)], len(rows), width)


def beside(bits: int, rows: int, columns: int, width: int) -> int:
    """In how many registers :func:`interleaved` has its rows: of n each n-th one, side by side.

    >>> beside(8, 16, 16, 64), beside(8, 4, 16, 64)
    (4, 1)
    """
    row = columns * bits
    room = 8 * width if row >= LANE_BITS else rows * row
    return max(1, rows * row // room)


def in_turn(b: Builder, registers: list[Value], rows: int, width: int) -> list[Value]:
    """Interleave so many rows that lie :func:`beside` each other in registers."""
    unit, count = registers[0].type.bits, len(registers)
    streams, whole = [[x] for x in registers], 8 * width // unit
    while len(streams) > 1:
        streams = [
            [_unpacked(b, x, y, unit, upper) for x, y in zip(one, two, strict=True) for upper in (0, 1)]
            for one, two in zip(streams[::2], streams[1::2], strict=True)
        ]
        unit *= 2
    made = [_in_order(b, x, unit, rows // count) for x in streams[0]]
    return [part for x in made for part in cut(b, x, min(x.type.count, whole))]


def square(b: Builder, registers: Iterable[Value], unit: int) -> list[Value]:
    """A square of units, of so many bits, turned over: register ``k`` becomes the ``k``-th units of all.

    Registers have four lanes, and as many units as there are registers. Units are unpacked first, until a
    lane is a piece of a column; then four times four lanes are turned over, in two steps. Eight registers
    ``a`` to ``h`` of eight units::

        a0 a1 | a2 a3 | ..      a0 b0 | a2 b2 | a4 b4 | a6 b6        a0 b0 | c0 d0 | e0 f0 | g0 h0
        b0 b1 | b2 b3 | ..      a1 b1 | a3 b3 | a5 b5 | a7 b7   ..   a1 b1 | c1 d1 | e1 f1 | g1 h1

    """
    return [x for _, x in sorted(squared(b, registers, unit), key=lambda made: made[0])]


def squared(b: Builder, registers: Iterable[Value], unit: int) -> Iterator[tuple[int, Value]]:
    """The same, one after the other with its number: ``k`` and the ``k``-th units of all.

    A quarter of the registers is unpacked after the other, and is only asked for then; what comes out first
    needs no register any more when the next is made.
    """
    per = LANE_BITS // unit
    given = iter(registers)
    streams = [_unpacked_lanes(b, [next(given) for _ in range(per)], unit) for _ in range(4)]
    for k, (one, two, three, four) in enumerate(zip(*streams, strict=True)):
        for half in (0, 2):  # two lanes of each
            lanes = half, half + 1, half + 4, half + 5
            above, below = _lanes(b, one, two, lanes), _lanes(b, three, four, lanes)
            for lane in (0, 1):
                picks = lane, lane + 2, lane + 4, lane + 6
                yield (half + lane) * per + k, _lanes(b, above, below, picks)


def _unpacked_lanes(b: Builder, registers: Sequence[Value], unit: int) -> list[Value]:
    """As many registers as a lane has units, unpacked until each lane has a unit of every register."""
    streams = [[x] for x in registers]
    while len(streams) > 1:
        streams = [
            [_unpacked(b, x, y, unit, upper) for x, y in zip(one, two, strict=True) for upper in (0, 1)]
            for one, two in zip(streams[::2], streams[1::2], strict=True)
        ]
        unit *= 2
    return streams[0]


def _lanes(b: Builder, one: Value, two: Value, picks: Sequence[int]) -> Value:
    """Lanes of two registers."""
    half = LANE_BITS // 2  # elements are no wider than a word of the processor
    return _shuffled(b, one, two, half, [2 * lane + part for lane in picks for part in (0, 1)])


def _in_order(b: Builder, x: Value, unit: int, rows: int) -> Value:
    """Rows that lie side by side in a register, their units in turn."""
    total = 8 * x.type.bytes
    piece = max(min(total, LANE_BITS) // rows, unit)  # of a row, in one lane
    lanes = total // rows // piece
    across = [row * lanes + lane for lane in range(lanes) for row in range(rows)]
    few = piece // unit
    within = [
        (lane * rows + row) * few + k for lane in range(lanes) for k in range(few) for row in range(rows)
    ]
    return _shuffled(b, _shuffled(b, x, x, piece, across), x, unit, within)


def _unpacked(b: Builder, one: Value, two: Value, unit: int, upper: int) -> Value:
    """The lower or upper halves of every lane of two registers, interleaved, in units of so many bits."""
    total = 8 * one.type.bytes
    units, places = total // unit, min(total, LANE_BITS) // unit
    picks = [
        half * units + lane + upper * places // 2 + k
        for lane in range(0, units, places)
        for k in range(places // 2)
        for half in (0, 1)
    ]
    return _shuffled(b, one, two, unit, picks)


def _shuffled(b: Builder, one: Value, two: Value, unit: int, picks: list[int]) -> Value:
    """Units of one or two registers."""
    if picks == list(range(len(picks))):
        return one
    units = vector(8 * one.type.bytes // unit, integer(unit))
    other = b.bitcast(two, units) if max(picks) >= units.count else None
    return b.bitcast(b.shuffle(b.bitcast(one, units), picks, other), one.type)


def _log2(number: int) -> int:
    return number.bit_length() - 1


def _number(bits: list[tuple[str, int]], parts: dict[str, int]) -> int:
    """A row from its bits, each a bit of another number."""
    return sum((parts[what] >> bit & 1) << place for place, (what, bit) in enumerate(bits))
