"""Averages of bytes in small windows over pictures that are one piece of memory: columns slide in registers.

Where windows keep the size of a picture, as :mod:`~.planes` says, the whole picture is one row. Here it
slides as :mod:`~.sliding` lets rows slide: a register has 64 elements, whatever rows they belong to, and of
the sums of columns no more than three registers are kept. What is different from a row:

* neighbours beyond the edge of the picture are masked: a table has 32 bits for each tap, and for even and odd
  elements of each register;
* the factors of a division are of this table, too, where padding is not counted;
* elements above the first row and below the last one are padding: the first registers and the last ones have
  code of their own, which reads what is inside, by a mask. Copies with padding around them took longer: what
  has just been stored is not loaded at other places before it has left the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from relayout.ir.builder import Function, numbers_of, table
from relayout.ir.kernel import kernel
from relayout.ir.types import I1, I32, PTR, Value, constant, vector
from relayout.ir.vectors import pieces_of, store_pieces
from relayout.kernels.reduce import planes, sliding
from relayout.kernels.reduce.axis import within
from relayout.kernels.reduce.blocks import in_tasks
from relayout.kernels.reduce.rounding import nearest, rounded
from relayout.kernels.reduce.separable import Separable
from relayout.kernels.reduce.sliding import BYTES, LANES, WORDS, Sums
from relayout.loops.nest import Nest
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "module", "suits"]

ENTRY = "pictures"
STEPS = "steps"  # the name of a table
MOST_ENDS = 16  # registers with code of their own


def suits(made: Separable, machine: Machine) -> bool:
    """Whether pictures are as :mod:`~.planes` wants them, and there are factors for all divisors."""
    if not machine.triple.startswith("x86_64") or not planes.suits(made, machine):
        return False
    return all(_Picture(made, block).slides for block in made.blocks)


def module(made: Separable, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    f, texts = kernel(ENTRY, machine), []
    for k, block in enumerate(made.blocks):
        written = _Block(f, _Picture(made, block), f"{STEPS}{k}")
        texts.append(written.text())
        written.write()
    return "".join([*texts, f.text()])


class _Picture(sliding.Row):
    """A picture as a row."""

    def __init__(self, made: Separable, block: Nest) -> None:
        super().__init__(made, block)
        y, each = made.height, block.length
        self.row = made.width.size * each
        self.down = [offset * self.row for offset in y.offsets]
        self.above, self.below = max(0, -self.down[0]), max(0, self.down[-1])

    @property
    def size(self) -> int:
        """Bytes."""
        return self.made.height.size * self.row

    @property
    def registers(self) -> int:
        """All of them, the last of which may have fewer elements."""
        return -(-self.size // LINE)

    @property
    def distances(self) -> list[int]:
        """How far the columns of a window lie from its result, in bytes."""
        x = self.made.width
        return [offset * self.block.length for offset in x.offsets]

    def has(self, number: int) -> int:
        """How many bytes of a register may be read."""
        return LINE if 0 <= number < self.registers else 0

    @cached_property
    def between(self) -> range:
        """The registers all of whose columns are elements."""
        first, end = -(-self.above // LINE), (self.size - self.below) // LINE
        return range(first, end) if first < end else range(self.registers, self.registers)

    @cached_property
    def inside(self) -> range:
        """The registers of results whose last columns are of those."""
        more = self.reach[-1]
        found = range(max(0, self.between.start - more), self.between.stop - more)
        return found if len(found) > 1 else range(0)

    @property
    def elements(self) -> list[int]:
        """For each result by what it is divided."""
        if self.made.divisor != "elements":
            return [self.made.taps] * self.size
        return planes.elements(self.made, self.block.length)

    @property
    def slides(self) -> bool:
        """Whether there is code for such pictures."""
        ends = self.registers - len(self.inside)
        if max(map(abs, self.distances)) > LINE or ends > MOST_ENDS:
            return False
        return all(nearest(d) is not None for d in set(self.elements))


class _Block(sliding.Block):
    """Writes the loops of one block, and its table.

    For each register the table has masks, and then the factors of divisors if there are several.
    """

    def __init__(self, b: Function, row: _Picture, name: str) -> None:
        super().__init__(b, row)
        self.picture, self.name, self.odd = row, name, True
        self.divisors = row.elements
        self.several = len(set(self.divisors)) > 1
        self.masks = -(-8 * len(row.distances) // LINE) * LINE  # bytes of an entry
        self.entry = self.masks + 4 * LINE * self.several

    def text(self) -> str:
        """The text of the table."""
        picture, numbers, row = self.picture, [], self.picture.row
        for register in range(picture.registers):
            places = range(register * LINE, (register + 1) * LINE)
            for d in picture.distances:
                masks = (
                    sum(1 << k for k, place in enumerate(some) if within(row, place % row + d, 1))
                    for some in (places[::2], places[1::2])
                )
                numbers += numbers_of(b"".join(mask.to_bytes(4, "little") for mask in masks))
            numbers += [0] * (self.masks // 8 - len(picture.distances))
            if self.several:
                by = [nearest(self.divisors[min(place, picture.size - 1)]) for place in places]
                for parity, k in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    words = [one[k] for one in by[parity::2] if one is not None]
                    numbers += numbers_of(b"".join(word.to_bytes(2, "little") for word in words))
        return table(self.name, numbers)

    def write(self) -> None:
        """All tasks: pictures."""
        b, block = self.b, self.block

        def task(src: Value, dst: Value) -> None:
            self._slide([b.gep(src, offset) for offset in self.picture.down], dst)

        in_tasks(b, block.starts, block.around, task)

    def _words(self, at: Value, tap: int, number: Value) -> Value:
        """A register of a row of the columns: of one that reaches beyond the picture what is inside."""
        picture = self.picture
        if isinstance(number.number, int):
            first = number.number * LINE + picture.down[tap]
            inside = within(picture.size, first, LINE)
            if len(inside) < LINE:
                return self._masked(at, [k in inside for k in range(LINE)])
        return super()._words(at, tap, number)

    def _masked(self, at: Value, inside: Sequence[bool]) -> Value:
        """The bytes that are inside; in place of others padding, and what lies there is not touched."""
        b, pad = self.b, constant(BYTES, self.pad ^ (128 if self.signed else 0))
        if not any(inside):
            return b.bitcast(pad, WORDS)
        mask = Value(f"<{', '.join(f'i1 {str(one).lower()}' for one in inside)}>", vector(LINE, I1))
        given = at, constant(I32, 1), mask, pad
        return b.bitcast(b.call_value(BYTES, f"llvm.masked.load.{BYTES.mangled}.p0", *given), WORDS)

    def _results(
        self, dst: Value, number: Value, columns: Sequence[list[Sums]], end: int | None = None
    ) -> None:
        """A register of results; ``end``: its number, if it is known."""
        b, picture = self.b, self.picture
        entry = b.gep(Value(f"@{self.name}", PTR), number, self.entry)
        found = []
        for parity in (0, 1):
            total = None
            for k, x in self._crossed([one[0] for one in columns], parity):
                if picture.distances[k]:
                    mask = b.load(I32, b.gep(entry, 8 * k + 4 * parity), 4)
                    x = b.select(b.bitcast(mask, vector(LANES, I1)), x, self.pad * self.rows)
                total = x if total is None else b.add(total, x)
            assert total is not None
            found.append(rounded(b, total, *self._factors(entry, parity)))
        words = b.or_(found[0], b.shl(found[1], 8))
        words = b.xor(words, -0x7F80) if self.signed else words
        left = LINE if end is None else min(LINE, picture.size - end * LINE)
        store_pieces(b, b.bitcast(words, BYTES), b.gep(dst, number, LINE), pieces_of(0, left, 0, 1))

    def _factors(self, entry: Value, parity: int) -> tuple[Value, Value]:
        """What even or odd sums are multiplied with."""
        if not self.several:
            by = nearest(self.divisors[0])
            assert by is not None
            return constant(WORDS, by.down), constant(WORDS, by.up)
        at = self.b.gep(entry, self.masks + 2 * LINE * parity)
        return self.b.load(WORDS, at, LINE), self.b.load(WORDS, self.b.gep(at, LINE), LINE)
