"""Averages of bytes whose windows overlap, with the sums of columns in registers.

A window of 3x3 at every pixel shares two of its columns with the next one. So the sums of columns slide along
a row of results, and nothing but elements is read, and nothing but results is written ::

    pixel 0     a b c
    pixel 1       b c d            a letter: the sum of a column of three elements, 64 of them in a register
    pixel 2         c d e

(Registers of 64 bytes are described here. Those of 32 do the same, with half as many elements.)

What a register holds depends on how many bytes of a pixel are neighbours:

*whole pixels* of 64 bytes and more (``nhwc``)
    a register is a part of one pixel, and neighbours are registers. Several parts slide at once.
*several pixels* of fewer bytes (``nChw16c``: four of them)
    a row is registers one after the other, and neighbours are lanes of these: of the one before and the one
    behind as well, which a permutation of words puts in their places ::

        pixels      0 1 2 3 | 4 5 6 7 | 8 ...
        left        - 0 1 2 | 3 4 5 6 | 7 ...      16 bytes further: words of two registers

Bytes are widened as :mod:`~.separable_text` does it: words of two are added up as they are, their upper
halves are added up, too, and what is left of the former are the sums of even bytes. Where neighbours lie an
odd number of bytes away (``nchw``), even results take odd bytes.

Rows of a window that are padding are not read: rows of results have code for each number of rows that are
elements. Pixels at the ends of a row have code of their own, too, so that divisors are constants. How sums
are divided: :func:`relayout.kernels.reduce.rounding.rounded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from math import prod

from relayout.ir.builder import Function, table
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.types import I1, I8, I16, I64, PTR, Value, constant, vector
from relayout.ir.vectors import load_pieces, pieces_of, store_pieces
from relayout.kernels.reduce.axis import PADDING, within
from relayout.kernels.reduce.rounding import nearest, rounded
from relayout.kernels.reduce.separable import MOST_BLOCKS, Separable
from relayout.kernels.reduce.space import Cover, cover
from relayout.loops.nest import Loop, Nest
from relayout.targets.machine import LINE, Machine

__all__ = ["BYTES", "ENTRY", "LANES", "WORDS", "Block", "Row", "Sums", "module", "suits"]

ENTRY = "sliding"
ROWS = "rows"  # the name of a table
LANES = LINE // 2  # words of a register
LEAST = 32  # bytes of a register
MOST_TAPS = 7  # of a window along an axis
MOST_ENDS = 16  # results of a row that have code of their own
MOST_VARIANTS = 4  # numbers of rows that are elements
CARRIED = {64: 16, 32: 8}  # registers of columns that slide, by their bytes: half of all there are
TASK = 1 << 12  # bytes of results that a task has, if a row is shorter
BYTES, WORDS = vector(LINE, I8), vector(LANES, I16)

Sums = tuple[Value, Value]
"""Of a register of columns: of words as they are, or of even bytes; and of odd bytes."""


def suits(made: Separable, machine: Machine) -> bool:
    """Whether the processor has the instructions, and rows are as described above."""
    x86 = machine.vector >= LEAST and machine.triple.startswith("x86_64")
    if not x86 or made.columns or made.weighted or not made.divisor:
        return False
    if not 0 < len(made.blocks) <= MOST_BLOCKS or max(len(made.rows[0]), made.width.kernel) > MOST_TAPS:
        return False
    if made.width.dilation != 1 or 0 in _counts(made) or len(set(_counts(made))) > MOST_VARIANTS:
        return False
    rows = [Row(made, block, machine.vector) for block in made.blocks]
    return all(row.suits for row in rows)


def _counts(made: Separable) -> list[int]:
    """For each row of results how many rows of its windows are elements."""
    return [sum(place != PADDING for place, _ in row) for row in made.rows]


class Row:
    """A row of results, cut into registers, which are numbered along it; and the registers it is made of."""

    def __init__(self, made: Separable, block: Nest, wide: int = LINE) -> None:
        self.made, self.block, self.wide = made, block, wide  # bytes of a register
        self.taps = made.width.counts

    @property
    def whole(self) -> bool:
        """Whether a register is a part of one pixel: then a number is that of a pixel."""
        return self.block.length >= self.wide

    @property
    def src(self) -> int:
        """Bytes from one register of the source to the next."""
        return self.made.width.src if self.whole else self.wide

    @property
    def dst(self) -> int:
        """The same of results."""
        return self.made.width.dst if self.whole else self.wide

    @property
    def size(self) -> int:
        """Bytes of a row of the source that slides, and of one of results where there are several pixels."""
        return self.made.width.size * self.block.length

    @property
    def registers(self) -> int:
        """Those of results."""
        x = self.made.width
        return x.out if self.whole else -(-x.out * self.block.length // self.wide)

    @property
    def step(self) -> int:
        """Registers of the source from one register of results to the next."""
        return self.made.width.stride if self.whole else 1

    @property
    def distances(self) -> list[int]:
        """How far the columns of a window lie from its result, in pixels or in bytes."""
        x, each = self.made.width, 1 if self.whole else self.block.length
        return [offset * each for offset in x.offsets]

    @property
    def reach(self) -> range:
        """The registers that a register of results is made of, counted from its own number."""
        first, last = self.distances[0], self.distances[-1]
        return range(first, last + 1) if self.whole else range(-(-first > 0), 1 + (last > 0))

    def has(self, number: int) -> int:
        """How many bytes a register of the source has."""
        if self.whole:
            return self.wide if 0 <= number < self.made.width.size else 0
        return len(within(self.size, number * self.wide, self.wide))

    def needed(self, number: int) -> list[int]:
        """The registers that a register of results is made of."""
        return [number * self.step + more for more in self.reach]

    def columns(self, number: int) -> list[int]:
        """For each byte of a register of results how many columns of its window are elements."""
        each, last = self.block.length, self.made.width.out - 1
        if self.whole:
            return [self.taps[number]] * self.wide
        return [self.taps[min(last, (number * self.wide + k) // each)] for k in range(self.wide)]

    @cached_property
    def inside(self) -> range:
        """The registers of results that are made of whole ones, and whose windows have all columns.

        None are where a row has few registers: each of these has code of its own.
        """
        if not self.whole and self.registers <= MOST_ENDS:
            return range(0)
        full = [self.made.width.kernel] * self.wide

        def plain(number: int) -> bool:
            return all(self.has(n) == self.wide for n in self.needed(number)) and self.columns(number) == full

        first = next((k for k in range(self.registers) if plain(k)), None)
        if first is None:
            return range(0)
        last = next(k for k in range(self.registers - 1, first - 1, -1) if plain(k))
        return range(first, last + 1)

    @property
    def suits(self) -> bool:
        """Whether there is code for such rows."""
        x, each = self.made.width, self.block.length
        if not self.whole and ((x.src, x.dst, x.stride) != (each, each, 1) or self.size < self.wide):
            return False
        if not self.whole and max(map(abs, self.distances)) > self.wide:
            return False
        if len(self.inside) == 1 or self.registers - len(self.inside) > MOST_ENDS:
            return False
        along = {*self.taps, x.kernel}
        if self.made.divisor != "elements":
            return nearest(self.made.taps) is not None
        return all(n and nearest(n * rows) is not None for n in along for rows in set(_counts(self.made)))


def module(made: Separable, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its table."""
    step, numbers = made.height.src, []
    for row, count in zip(made.rows, _counts(made), strict=True):
        numbers += [min(place for place, _ in row if place != PADDING) * step, count]
    f = kernel(ENTRY, machine)
    for block in made.blocks:
        Block(f, Row(made, block, machine.vector)).write()
    return table(ROWS, numbers) + f.text()


class Block:
    """Writes the loops of one block."""

    def __init__(self, b: Function, row: Row) -> None:
        self.b, self.row, self.made, self.block, self.wide = b, row, row.made, row.block, row.wide
        self.lanes = row.wide // 2  # words of a register
        self.bytes, self.words = vector(row.wide, I8), vector(self.lanes, I16)
        self.signed = self.made.kind.is_signed
        self.odd = not row.whole and any(d % 2 for d in row.distances)
        self.rows = len(self.made.rows[0])  # of the windows of a row of results that are elements

    @property
    def pad(self) -> int:
        """What an element of the padding adds: that of s8 is 128 if it counts."""
        return 128 if self.signed and self.made.divisor == "window" else 0

    @cached_property
    def parts(self) -> Cover:
        """The registers of a pixel: so many of them slide at once."""
        if not self.row.whole:
            return Cover(self.wide, (0,), self.wide, 1)
        slides = max(1, len(self.row.reach) - self.row.step)
        return cover(self.block.length, self.wide, max(1, CARRIED[self.wide] // (2 * slides)))

    def write(self) -> None:
        """All tasks: some rows of results."""
        b, made, block = self.b, self.made, self.block
        results = len(made.rows)
        some = max(1, min(results, TASK // (made.width.out * block.length)))
        around = [*block.around, Loop(-(-results // some), (0, some * made.height.dst))]
        order = sorted(range(len(around)), key=lambda k: -abs(around[k].dst))

        def task(number: Value) -> None:
            found = digits(b, number, [around[k].extent for k in order])
            src, dst = (b.gep(at, start) for at, start in zip(b.arguments[:2], block.starts, strict=True))
            for k, index in zip(order, found, strict=True):
                src, dst = b.gep(src, index, around[k].src), b.gep(dst, index, around[k].dst)
            first = b.mul(found[order.index(len(around) - 1)], some)
            left = b.smin(constant(I64, some), b.sub(results, first))
            b.loop(0, left, 1, lambda k: self._row(src, b.gep(dst, k, made.height.dst), b.add(first, k)))

        tasks(b, prod(loop.extent for loop in around), task)

    def _row(self, src: Value, dst: Value, row: Value) -> None:
        """A row of results: the code for as many rows of elements as it has."""
        b, counts = self.b, _counts(self.made)
        entry = b.gep(Value(f"@{ROWS}", PTR), row, 16)
        place, count = (b.load(I64, b.gep(entry, 8 * k)) for k in (0, 1))
        apart = self.made.height.dilation * self.made.height.src

        def some(rows: int) -> None:
            self.rows = rows
            pointers = [b.gep(b.gep(src, place), k * apart) for k in range(rows)]
            parts = self.parts
            if parts.times == 1:
                self._slide(pointers, dst)
                return

            def chunk(k: Value) -> None:
                first = b.smin(b.mul(k, parts.chunk), constant(I64, self.block.length - parts.chunk))
                self._slide([b.gep(at, first) for at in pointers], b.gep(dst, first))

            b.loop(0, parts.times, 1, chunk)

        for rows in sorted(set(counts), key=counts.count, reverse=True):
            condition = b.icmp("eq", count, rows) if len(set(counts)) > 1 else constant(I1, 1)
            b.when(condition, partial(some, rows))

    def _slide(self, rows: Sequence[Value], dst: Value) -> None:
        """The results of some parts of a row: those at its ends by themselves, the others in a loop."""
        b, row, inside = self.b, self.row, self.row.inside
        known: dict[int, list[Sums]] = {}

        def end(number: int) -> None:
            for n in row.needed(number):
                if n not in known:
                    known[n] = self._columns(rows, constant(I64, n), row.has(n))
            self._results(dst, constant(I64, number), [known[n] for n in row.needed(number)], number)

        for number in range(inside.start if inside else row.registers):
            end(number)
        if not inside:
            return
        begin = row.needed(inside.start)
        new = min(row.step, len(begin))
        for n in begin[:-new]:
            if n not in known:
                known[n] = self._columns(rows, constant(I64, n), row.has(n))

        def turn(i: Value, given: list[Value]) -> list[Value]:
            columns = self._apart(given)
            first = b.add(b.mul(i, row.step), row.reach[-1] - new + 1)
            columns += [self._columns(rows, b.add(first, k), self.wide) for k in range(new)]
            self._results(dst, i, columns)
            return self._flat(columns[new:])

        carried = [known[n] for n in begin[:-new]]
        last = b.repeat(inside.start, inside.stop, 1, self._flat(carried), turn, True)
        known.update(zip(row.needed(inside.stop)[:-new], self._apart(last), strict=True))
        for number in range(inside.stop, row.registers):
            end(number)

    @staticmethod
    def _flat(columns: Sequence[list[Sums]]) -> list[Value]:
        return [one for parts in columns for sums in parts for one in sums]

    def _apart(self, given: list[Value]) -> list[list[Sums]]:
        pairs = [(given[k], given[k + 1]) for k in range(0, len(given), 2)]
        many = len(self.parts.offsets)
        return [pairs[k : k + many] for k in range(0, len(pairs), many)]

    # -- columns --------------------------------------------------------------------------------------------

    def _columns(self, rows: Sequence[Value], number: Value, count: int) -> list[Sums]:
        """The sums of columns in a register of each part, which has so many bytes; the others are padding."""
        b, found = self.b, []
        for place in self.parts.offsets:
            words: list[Value] = []
            for tap, row in enumerate(rows if count else ()):
                at = b.gep(b.gep(row, number, self.row.src), place)
                if count < self.wide:
                    rest = constant(self.bytes, self.pad ^ (128 if self.signed else 0))
                    x = load_pieces(b, self.bytes, at, pieces_of(0, count, 0, 1), rest=rest)
                    words.append(b.bitcast(x, self.words))
                else:
                    words.append(self._words(at, tap, number))
            if not words:
                pad = constant(self.words, self.pad * len(rows))
                found.append((pad if self.odd else constant(self.words, self.pad * len(rows) * 257), pad))
                continue
            words = [b.xor(x, -0x7F80) if self.signed else x for x in words]
            both, odd = self._sum(words), self._sum([b.lshr(x, 8) for x in words])
            found.append((b.sub(both, b.shl(odd, 8)) if self.odd else both, odd))
        return found

    def _words(self, at: Value, tap: int, number: Value) -> Value:
        """A register of a row of the columns, a tap of the window, as words."""
        return self.b.load(self.words, at, 1)

    def _sum(self, given: Sequence[Value]) -> Value:
        total, *others = given
        for other in others:
            total = self.b.add(total, other)
        return total

    # -- results --------------------------------------------------------------------------------------------

    def _results(
        self, dst: Value, number: Value, columns: Sequence[list[Sums]], end: int | None = None
    ) -> None:
        """A register of results of each part; ``end``: its number, if it is at an end of the row."""
        b, row, made = self.b, self.row, self.made
        along = [made.width.kernel] * self.wide if end is None else row.columns(end)
        for part, place in enumerate(self.parts.offsets):
            one = [several[part] for several in columns]
            if self.odd:
                even, odd = (self._sum([x for _, x in self._crossed(one, parity)]) for parity in (0, 1))
            else:
                near = one if row.whole else [self._moved(one, d // 2) for d in row.distances]
                both, odd = self._sum([sums[0] for sums in near]), self._sum([sums[1] for sums in near])
                even = b.sub(both, b.shl(odd, 8))
            words = self._averaged(even, odd, along)
            to = b.gep(b.gep(dst, number, row.dst), place)
            if end is None or row.whole:
                b.store(words, to, 1)
            else:
                left = min(self.wide, made.width.out * self.block.length - end * self.wide)
                store_pieces(b, b.bitcast(words, self.bytes), to, pieces_of(0, left, 0, 1))

    def _moved(self, columns: Sequence[Sums], words: int) -> Sums:
        """The columns so many words further, of those of neighbouring registers."""
        even, odd = (self._further([sums[k] for sums in columns], words) for k in (0, 1))
        return even, odd

    def _further(self, registers: Sequence[Value], words: int) -> Value:
        """The words so many lanes further."""
        own = -self.row.reach.start
        if not words:
            return registers[own]
        first = own if words > 0 else own - 1
        picks = [k + words - (first - own) * self.lanes for k in range(self.lanes)]
        return self.b.shuffle(registers[first], picks, registers[first + 1])

    def _crossed(self, columns: Sequence[Sums], parity: int) -> list[tuple[int, Value]]:
        """The columns of the windows of even or odd results, the nearest first, each with its tap."""
        places = [(parity + d, k) for k, d in enumerate(self.row.distances)]
        places.sort(key=lambda one: (one[0] != parity, abs(one[0] // 2), one[0] % 2))
        return [(k, self._further([sums[at % 2] for sums in columns], at // 2)) for at, k in places]

    def _averaged(self, even: Value, odd: Value, along: Sequence[int]) -> Value:
        """Sums divided and rounded: words of two bytes."""
        b, made = self.b, self.made
        pads = self.pad * (len(made.rows[0]) - self.rows) * made.width.kernel
        found = []
        for n, parity in ((even, 0), (odd, 1)):
            counts = along[parity::2] if made.divisor == "elements" else [0] * self.lanes
            by = [nearest(self.rows * count if count else made.taps) for count in counts]
            down, up = (self._lanes([one[k] for one in by if one is not None]) for k in (0, 1))
            found.append(rounded(b, b.add(n, pads), down, up))
        words = b.or_(found[0], b.shl(found[1], 8))
        return b.xor(words, -0x7F80) if self.signed else words

    def _lanes(self, numbers: Sequence[int]) -> Value:
        """A number for each lane."""
        if len(set(numbers)) == 1:
            return constant(self.words, numbers[0])
        return Value(f"<{', '.join(f'i16 {number}' for number in numbers)}>", self.words)
