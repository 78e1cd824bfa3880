"""Averages of bytes in small windows over pictures that are one piece of memory: columns slide in registers.

Where windows keep the size of a picture, as :mod:`~.planes` says, the whole picture is one row. Here it
slides as :mod:`~.sliding` lets rows slide: a register has 64 elements, whatever rows they belong to, and of
the sums of columns no more than three registers are kept. What is different from a row:

* neighbours beyond the edge of the picture are masked: a table has 32 bits for each tap, and for even and odd
  elements of each register;
* the factors of a division are of this table, too, where padding is not counted;
* elements above the first row and below the last one are padding: the first registers and the last ones are
  read from copies, which have padding in front and behind. All others are read where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

from relayout.ir.builder import Function, table
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.types import I1, I32, PTR, Value, constant, vector
from relayout.ir.vectors import pieces_of, store_pieces
from relayout.kernels.reduce import planes, sliding
from relayout.kernels.reduce.rounding import nearest, rounded
from relayout.kernels.reduce.separable import Separable
from relayout.kernels.reduce.sliding import BYTES, LANES, WORDS, Sums
from relayout.loops.nest import Nest
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "module", "suits"]

ENTRY = "pictures"
STEPS = "steps"  # the name of a table
MOST_COPIED = 16  # registers that are read from copies, each with code of its own


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
        self.down = [(k * y.dilation - y.front) * self.row for k in range(y.kernel)]
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
        return [(k * x.dilation - x.front) * self.block.length for k in range(x.kernel)]

    def has(self, number: int) -> int:
        """How many bytes of a register may be read."""
        return LINE if 0 <= number < self.registers else 0

    @cached_property
    def between(self) -> range:
        """The registers all of whose columns are elements, which are read where they are."""
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
        y, each = self.made.height, self.block.length
        down = [len(y.taps(k)) for k in range(y.out)]
        return [rows * columns for rows in down for columns in self.taps for _ in range(each)]

    @property
    def slides(self) -> bool:
        """Whether there is code for such pictures."""
        copied = self.registers - len(self.inside)
        if max(map(abs, self.distances)) > LINE or copied > MOST_COPIED:
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
        self.sources: list[Value] = []  # the picture; copies of its first registers, and of its last ones

    def text(self) -> str:
        """The text of the table."""
        picture, numbers, row = self.picture, [], self.picture.row
        for register in range(picture.registers):
            places = range(register * LINE, (register + 1) * LINE)
            for d in picture.distances:
                masks = (
                    sum(1 << k for k, place in enumerate(places[parity::2]) if 0 <= place % row + d < row)
                    for parity in (0, 1)
                )
                bytes_ = b"".join(mask.to_bytes(4, "little") for mask in masks)
                numbers.append(int.from_bytes(bytes_, "little", signed=True))
            numbers += [0] * (self.masks // 8 - len(picture.distances))
            if self.several:
                by = [nearest(self.divisors[min(place, picture.size - 1)]) for place in places]
                for parity, k in ((0, 0), (0, 1), (1, 0), (1, 1)):
                    words = [one[k] for one in by[parity::2] if one is not None]
                    bytes_ = b"".join(word.to_bytes(2, "little") for word in words)
                    numbers += [
                        int.from_bytes(bytes_[at : at + 8], "little", signed=True) for at in range(0, LINE, 8)
                    ]
        return table(self.name, numbers)

    def write(self) -> None:
        """All tasks: pictures."""
        b, block, picture = self.b, self.block, self.picture
        last, between = picture.registers, picture.between
        pad = self.pad ^ (128 if self.signed else 0)
        head = self._room(-picture.above, between.start * LINE + picture.below, pad)
        start = min(between.stop * LINE - picture.above, picture.size - LINE)
        tail = self._room(start, last * LINE + picture.below, pad) if between.stop < last else None

        def task(number: Value) -> None:
            src, dst = (b.gep(at, start) for at, start in zip(b.arguments[:2], block.starts, strict=True))
            found = digits(b, number, [loop.extent for loop in block.around])
            for loop, k in zip(block.around, found, strict=True):
                src, dst = b.gep(src, k, loop.src), b.gep(dst, k, loop.dst)
            self.sources = [src, head, src if tail is None else tail]
            if between.start:
                self._copy(src, head, 0, between.start * LINE + picture.below)
            if tail is not None:
                self._copy(src, tail, start, picture.size)
            self._slide([], dst)

        tasks(b, prod(loop.extent for loop in block.around), task)

    def _room(self, first: int, end: int, pad: int) -> Value:
        """Room for a copy of these bytes of the picture, full of padding: where its first byte would be."""
        b, lead = self.b, -(-max(0, -first) // LINE) * LINE
        size = -(-(lead + end - max(0, first)) // LINE) * LINE + LINE
        room = b.alloca(size, LINE)
        b.loop(0, size, LINE, lambda i: b.store(constant(BYTES, pad), b.gep(room, i), LINE))
        return b.gep(room, lead - max(0, first))

    def _copy(self, src: Value, to: Value, first: int, end: int) -> None:
        """Some bytes of the picture, from one to before another, and more where there are."""
        b, end = self.b, min(end, self.picture.size)
        for at in range(first, end, LINE):
            place = min(at, self.picture.size - LINE)
            b.store(b.load(BYTES, b.gep(src, place), 1), b.gep(to, place), 1)

    def _columns(self, rows: Sequence[Value], number: Value, count: int) -> list[Sums]:
        """The sums of columns in a register, of where they are read from."""
        picture, which = self.picture, 0
        if isinstance(number.number, int):
            which = (number.number >= picture.between.start) + (number.number >= picture.between.stop)
            which = (1, 0, 2)[which]
        rows = [self.b.gep(self.sources[which], offset) for offset in picture.down]
        return super()._columns(rows, number, count)

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
