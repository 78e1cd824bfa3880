"""Averages of bytes whose windows keep the size of a picture, where that is one piece of memory.

In ``nchw`` a row of 35 pixels fills half of a register, and one of 14 a fifth. But where stride is 1 and what
is padded on both sides is what a window loses there, results lie in a picture as elements do: result p is the
sum of the elements at ``p + dy w + dx``. So rows need not be told apart, and registers are full ::

    w = 5      a b c d e f g h i j k l m n o ...
    p          sums of columns first:    b + g + l,  c + h + m,  ...        elements w apart
               then of three of them:    those at the edges have no neighbour on one side: a mask

Columns are elements above, here and below. A copy of the picture with zeros in front and behind it gives
those of the first and the last row. They are widened to 16 bits and kept as a second picture. Where padding
is not counted, sums at the edges are divided by other numbers: factors of all results are a table, as masks
are, for pictures of up to a few thousand bytes.

Divisions are those of :mod:`~.rounding`. Of bytes with a sign sums have one, too, and 128 for each element is
added before they are divided.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from relayout.ir.builder import Function, numbers_of, table
from relayout.ir.kernel import kernel
from relayout.ir.types import I1, I8, I16, I32, I64, PTR, Value, constant, vector
from relayout.kernels.reduce.axis import within
from relayout.kernels.reduce.blocks import in_tasks
from relayout.kernels.reduce.rounding import Divisor, divided, divisor
from relayout.kernels.reduce.separable import MOST_BLOCKS, Separable
from relayout.loops.nest import Nest
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "elements", "module", "suits"]

ENTRY = "planes"
STEPS = "steps"  # the name of a table
RESULTS = 32  # whose sums fill a register; a step has twice as many
MOST_TAPS = 7  # of a window along an axis
MOST_BYTES = 1 << 12  # of a picture
MOST_CHANNELS = 8  # that are neighbours


def suits(made: Separable, machine: Machine) -> bool:
    """Whether results lie as elements do, in pictures that are neither too large nor too small."""
    y, x = made.height, made.width
    same = (x.stride, y.stride, x.out, y.out) == (1, 1, x.size, y.size)
    if machine.vector != LINE or made.columns or not same or not 0 < len(made.blocks) <= MOST_BLOCKS:
        return False
    if not made.divisor or max(x.kernel, y.kernel) > MOST_TAPS or 0 in elements(made, 1):
        return False
    for block in made.blocks:
        each = block.length
        row = x.size * each
        dense = (x.src, x.dst, y.src, y.dst) == (each, each, row, row)
        if not dense or each > MOST_CHANNELS or not LINE <= y.size * row <= MOST_BYTES:
            return False
        if row % LINE == 0:  # rows fill registers by themselves
            return False
    return True


def elements(made: Separable, each: int) -> list[int]:
    """For each result how many elements its window has."""
    counts = product(made.height.counts, made.width.counts)
    return [rows * columns for rows, columns in counts for _ in range(each)]


def module(made: Separable, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    f, texts = kernel(ENTRY, machine), []
    for k, block in enumerate(made.blocks):
        written = _Block(f, made, block, f"{STEPS}{k}")
        texts.append(written.text())
        written.write()
    return "".join([*texts, f.text()])


class _Block:
    """Writes the loops of one block, and its table.

    For each step the table has masks of columns, and then the numbers of divisors if there are several.
    """

    def __init__(self, b: Function, made: Separable, block: Nest, name: str) -> None:
        self.b, self.made, self.block, self.name = b, made, block, name
        self.signed = made.kind.is_signed
        y, x, each = made.height, made.width, block.length
        self.row = x.size * each
        self.size = y.size * self.row
        self.count = -(-self.size // LINE)
        self.down = [offset * self.row for offset in y.offsets]
        self.along = [offset * each for offset in x.offsets]
        self.elements = elements(made, each)
        self.several = made.divisor == "elements" and len(set(self.elements)) > 1
        self.first = self.elements[0] if made.divisor == "elements" else made.taps
        shifts = any(by.shift for by in map(divisor, self.elements) if by is not None)
        numbers = (3 + shifts) if self.several else 0  # of a divisor
        self.masks = -(-8 * x.kernel // LINE) * LINE  # bytes of an entry
        self.places = [self.masks + 2 * RESULTS * k for k in range(numbers)]
        self.entry = self.masks + 2 * RESULTS * numbers

    def text(self) -> str:
        """The text of the table."""
        numbers: list[int] = []
        steps = [min(k * LINE, self.size - LINE) for k in range(self.count)]
        for first in (step + half for step in steps for half in (0, RESULTS)):
            places, row = range(first, first + RESULTS), self.row
            masks = [
                sum(1 << k for k, place in enumerate(places) if within(row, place % row + offset, 1))
                for offset in self.along
            ]
            numbers += [*masks, *[0] * (self.masks // 8 - len(masks))]
            several = list(zip(*(self._numbers(self.elements[place]) for place in places), strict=True))
            for values in several[: len(self.places)]:
                numbers += numbers_of(b"".join(value.to_bytes(2, "little") for value in values))
        return table(self.name, numbers)

    def _numbers(self, d: int) -> tuple[int, int, int, int]:
        """What a sum of so many elements is divided with; d is 0 where there are no ties to look for."""
        by = divisor(d)
        assert by is not None
        half, factor, shift, even = map(int, (by.half, by.factor, by.shift, by.even))
        return half + self._moved(d), factor, d * even, shift

    def _moved(self, d: int) -> int:
        """By how much a sum of bytes with a sign differs from that of bytes that are 128 more."""
        return 128 * d if self.signed else 0

    def write(self) -> None:
        """All tasks: pictures."""
        b, block = self.b, self.block
        above, below = max(0, -self.down[0]), max(0, self.down[-1])
        left, right = max(0, -self.along[0]), max(0, self.along[-1])
        copies, self.lead = above + below > 0, -(-above // LINE) * LINE
        self.before = -(-left // RESULTS) * RESULTS
        whole = -(-(self.lead + self.size + below) // LINE) * LINE
        room = b.alloca(whole, LINE) if copies else None
        self.columns = b.alloca(2 * (self.before + self.size + right + RESULTS), LINE)
        if room is not None:
            zeros = constant(vector(LINE, I8), 0)
            b.loop(0, whole, LINE, lambda i: b.store(zeros, b.gep(room, i), LINE))

        def task(src: Value, dst: Value) -> None:
            if room is not None:
                src = self._copied(src, b.gep(room, self.lead))
            self._steps(lambda step, first: self._added(b.gep(src, first), first))
            self._steps(lambda step, first: self._averaged(step, first, b.gep(dst, first)))

        in_tasks(b, block.starts, block.around, task)

    def _copied(self, src: Value, room: Value) -> Value:
        """A picture between zeros."""
        b, whole = self.b, self.size // LINE * LINE

        def turn(i: Value | int) -> None:
            b.store(b.load(vector(LINE, I8), b.gep(src, i), 1), b.gep(room, i), 1)

        b.loop(0, whole, LINE, turn)
        if self.size > whole:  # the last ones once more
            turn(self.size - LINE)
        return room

    def _steps(self, body: Callable[[Value, Value], None]) -> None:
        """All steps of a picture, with their numbers and their first results; the last one steps back."""
        b = self.b
        b.loop(0, self.count, 1, lambda k: body(k, b.smin(b.mul(k, LINE), constant(I64, self.size - LINE))))

    def _added(self, src: Value, first: Value) -> None:
        """The sums of columns."""
        b = self.b
        to = b.gep(b.gep(self.columns, 2 * self.before), first, 2)
        for half in (0, RESULTS):
            total = None
            for offset in self.down:
                x = b.load(vector(RESULTS, I8), b.gep(src, half + offset), 1)
                wide = b.resize(x, 16, self.signed)
                total = wide if total is None else b.add(total, wide)
            assert total is not None
            b.store(total, b.gep(to, 2 * half), 2)

    def _averaged(self, step: Value, first: Value, to: Value) -> None:
        """Results of a step."""
        b = self.b
        at = b.gep(b.gep(self.columns, 2 * self.before), first, 2)
        entries = b.gep(Value(f"@{self.name}", PTR), step, 2 * self.entry)
        words = [
            self._divided(self._combined(b.gep(at, 2 * RESULTS * half), entry), entry)
            for half, entry in ((half, b.gep(entries, half * self.entry)) for half in (0, 1))
        ]
        low, high = (b.bitcast(x, vector(LINE, I8)) for x in words)
        found = b.shuffle(low, range(0, 2 * LINE, 2), high)
        b.store(b.xor(found, -128) if self.signed else found, to, 1)

    def _combined(self, at: Value, entry: Value) -> Value:
        """The sums of windows, of those of columns."""
        b, total = self.b, None
        for k, offset in sorted(enumerate(self.along), key=lambda one: abs(one[1])):
            x = b.load(vector(RESULTS, I16), b.gep(at, 2 * offset), 2)
            if offset:
                inside = b.bitcast(b.load(I32, b.gep(entry, 8 * k), 8), vector(RESULTS, I1))
                x = b.select(inside, x, 0)
            total = x if total is None else b.add(total, x)
        assert total is not None
        return total

    def _divided(self, n: Value, entry: Value) -> Value:
        b, d = self.b, self.first
        if not self.several:
            by = divisor(d)
            assert by is not None
            return divided(b, b.add(n, self._moved(d)), d, by)
        half, factor, ties, *shift = (b.load(n.type, b.gep(entry, place), LINE) for place in self.places)
        return divided(b, n, ties, Divisor(half, factor, shift[0] if shift else 0, 1))
