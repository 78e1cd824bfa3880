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

from relayout.codegen.ir import Writer

__all__ = ["Network"]

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
        wide = self.bits << stage
        total = self.bits * self.elements // wide
        places = self.places >> stage
        own, other = f"<{self.elements} x i{self.bits}>", f"<{total} x i{wide}>"
        if stage:
            one, two = (w.value(f"bitcast {own} {value} to {other}") for value in (one, two))
        picks = [
            half * total + lane + upper * places // 2 + k
            for lane in range(0, total, places)
            for k in range(places // 2)
            for half in (0, 1)
        ]
        made = w.shuffle(one, two, other, picks)
        return w.value(f"bitcast {other} {made} to {own}") if stage else made


def _log2(number: int) -> int:
    return number.bit_length() - 1


def _number(bits: list[tuple[str, int]], parts: dict[str, int]) -> int:
    """A row from its bits, each a bit of another number."""
    return sum((parts[what] >> bit & 1) << place for place, (what, bit) in enumerate(bits))
