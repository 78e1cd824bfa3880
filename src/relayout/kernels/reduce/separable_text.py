"""The text of :mod:`~.separable`: columns of 16 bits in the stack, and results along them.

Bytes become 16 bits without a shuffle, which processors have few ports for. A register of bytes is taken as
words of two; the even bytes are their lower halves, the odd ones their upper halves ::

    words                   b1 b0 | b3 b2 | b5 b4 | ...          as they are loaded
    sum of odd bytes        sum of words >> 8
    sum of even bytes       sum of words - (sum of odd << 8)     modulo 2**16, which holds it

So a row of columns is two rows in the stack, and what comes out are words again: even + (odd << 8).
Neighbours are found by the parity of their distance. Bytes with a sign are those without, with 128 added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from relayout.ir.builder import Function, table
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.types import I8, I16, I64, PTR, Value, constant, integer, vector
from relayout.ir.vectors import load_pieces, pieces_of, store_pieces
from relayout.kernels.reduce.rounding import Divisor, divided, divisor, divisors, looked_up, spread
from relayout.kernels.reduce.separable import WHOLE, Separable
from relayout.loops.nest import Loop, Nest
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "module"]

ENTRY = "separable"
ROWS, COLUMNS, DIVISORS = "rows", "columns", "divisors"  # the names of tables

Finish = Callable[[Value, Value], Value]
"""What makes words of the sums of even and odd elements."""
At = Value | int
"""An address in the even half of the room, or a place among columns that are in registers."""
Sums = Callable[[At, int, int], tuple[Value, Value]]
"""The sums of even and odd elements, in so many words, so many elements behind an address."""


def module(made: Separable, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    step, numbers = made.height.src, []
    for row in made.rows:
        for place, weight in row:
            numbers += [place * step if place >= 0 else -1, weight]
        numbers.append(sum(place >= 0 for place, _ in row))
    texts = [table(ROWS, numbers)]
    if made.columns:
        texts.append(
            table(COLUMNS, [n for (place, one), (_, two) in made.columns for n in (place, one, two)])
        )
    if made.divisor == "elements":
        texts.append(divisors(DIVISORS, made.taps))
    f = kernel(ENTRY, machine)
    for block in made.blocks:
        _Block(f, made, block).write()
    return "".join([*texts, f.text()])


class _Segment(NamedTuple):
    """Pixels of a row from one to before another, whose windows have equally many elements along it."""

    first: int
    end: int
    columns: int


class _Block:
    """Writes the loops of one block."""

    def __init__(self, b: Function, made: Separable, block: Nest) -> None:
        self.b, self.made, self.block = b, made, block
        self.signed = made.kind.is_signed
        self.each, self.step = block.length, b.machine.vector
        self.size = made.width.size * self.each
        self.front, self.reach = made.reach(block)
        self.half = -(-(self.reach + 4 * self.step) // LINE) * LINE  # bytes of the even elements
        self.room = b.alloca(2 * self.half, LINE)
        self.begin: At = self.room
        self.kept: tuple[Value, Value] | None = None  # columns that are in registers
        self.pads = any(place < 0 for row in made.rows for place, _ in row)
        if self.pads:
            self.padding = b.alloca(self.size + self.step, LINE)

    @property
    def pad(self) -> int:
        """What an element of the padding adds: that of s8 is 128 if it counts."""
        return 128 if self.signed and self.made.divisor == "window" else 0

    def write(self) -> None:
        """All tasks: rows of results."""
        b, made, block = self.b, self.made, self.block
        if self.pads:
            byte = self.pad ^ 128 if self.signed else 0
            self._fill(self.padding, self.size + self.step, byte * 257)
        if self.front or self.reach > self.front + self.size:
            self._fill(self.room, 2 * self.half, self.pad * len(made.rows[0]))
        around = [*block.around, Loop(len(made.rows), (0, made.height.dst))]
        order = sorted(range(len(around)), key=lambda k: -abs(around[k].dst))

        def task(number: Value) -> None:
            found = digits(b, number, [around[k].extent for k in order])
            src, dst = (b.gep(at, start) for at, start in zip(b.arguments[:2], block.starts, strict=True))
            for loop, k in zip((around[k] for k in order), found, strict=True):
                src, dst = b.gep(src, k, loop.src), b.gep(dst, k, loop.dst)
            self._row(src, dst, found[order.index(len(around) - 1)])

        tasks(b, prod(loop.extent for loop in around), task)

    def _fill(self, room: Value, size: int, word: int) -> None:
        b, words = self.b, vector(self.step // 2, I16)

        def turn(i: Value) -> None:
            b.store(constant(words, word), b.gep(room, i), 2)

        b.loop(0, size // self.step * self.step, self.step, turn)

    # -- columns --------------------------------------------------------------------------------------------

    def _entry(self, row: Value) -> Value:
        """What the table says of a row of results."""
        return self.b.gep(Value(f"@{ROWS}", PTR), row, 8 * (2 * len(self.made.rows[0]) + 1))

    def _row(self, src: Value, dst: Value, row: Value) -> None:
        """A row of results, whose columns are in registers where one holds them and may be loaded."""
        b, made = self.b, self.made
        entry, pointers, weights, furthest = self._entry(row), [], [], constant(I64, 0)
        for k in range(len(made.rows[0])):
            offset = b.load(I64, b.gep(entry, 16 * k))
            at, furthest = b.gep(src, offset), b.smax(furthest, offset)
            pointers.append(b.select(b.icmp("slt", offset, 0), self.padding, at) if self.pads else at)
            if made.weighted:
                weights.append(self._spread(b.load(I64, b.gep(entry, 16 * k + 8)), self.step // 2))

        def by_way_of_the_stack() -> None:
            self._down(pointers, weights)
            self._along(dst, row)

        def at_once() -> None:
            self.kept, self.begin = self._added(pointers, weights, self.size, True), 0
            self._along(dst, row)
            self.kept, self.begin = None, self.room

        if self.size > self.step or not self._flat:
            by_way_of_the_stack()
            return
        room = b.sub(b.add(b.ptrtoint(b.arguments[0]), self._end()), b.ptrtoint(b.gep(src, furthest)))
        inside = b.icmp("sge", room, self.step)  # what follows is of the source, too
        b.when(inside, at_once)
        b.when(b.not_(inside), by_way_of_the_stack)

    @property
    def _flat(self) -> bool:
        """Whether results are made register by register, whatever pixels they belong to."""
        made, x = self.made, self.made.width
        if made.columns:
            return made.doubles(self.block) and self.each % self.step > 0
        return x.stride == 1 and x.dst == self.each

    def _down(self, pointers: Sequence[Value], weights: Sequence[Value]) -> None:
        """Add up the columns of a row of results."""
        b, step = self.b, self.step

        def turn(i: Value) -> None:
            self._columns([b.gep(at, i) for at in pointers], weights, b.gep(self.room, i), step)

        whole = self.size // step * step
        if whole:
            b.loop(0, whole, step, turn)
        if self.size == whole:
            return
        if whole:  # the last ones once more
            last = self.size - step
            self._columns([b.gep(at, last) for at in pointers], weights, self.room, step, first=last)
            return
        self._columns(pointers, weights, self.room, self.size)

    def _end(self) -> int:
        """The first byte behind all rows of this block, from the source on."""
        loops = sum((loop.extent - 1) * max(0, loop.src) for loop in self.block.around)
        height = self.made.height
        return self.block.src + loops + (height.size - 1) * max(0, height.src) + self.size

    def _spread(self, number: Value, count: int) -> Value:
        return self.b.splat(self.b.trunc(number, I16), count)

    def _columns(
        self,
        pointers: Sequence[Value],
        weights: Sequence[Value],
        to: Value,
        count: int,
        first: int = 0,
    ) -> None:
        """Store those of a register, or of so many bytes and then padding; ``first`` of them are in front."""
        found = self._added(pointers, weights, count)
        for sums, place in zip(found, (self.front + first, self.front + first + 1), strict=True):
            self.b.store(sums, self._place(to, place), 2)

    def _added(
        self, pointers: Sequence[Value], weights: Sequence[Value], count: int, beyond: bool = False
    ) -> tuple[Value, Value]:
        """Even and odd columns of a register; with ``beyond`` more than ``count`` bytes may be read."""
        b, step = self.b, self.step
        bytes_, pad = vector(step, I8), self.pad ^ 128 if self.signed else 0
        some = constant(bytes_, pad) if count < step else None
        even = odd = None
        for k, at in enumerate(pointers):
            if beyond:
                loaded = b.load(bytes_, at, 1)
                loaded = b.shuffle(loaded, [k if k < count else step for k in range(step)], pad)
            else:
                loaded = load_pieces(b, bytes_, at, pieces_of(0, count, 0, 1), rest=some)
            words = b.bitcast(loaded, vector(step // 2, I16))
            words = b.xor(words, -0x7F80) if self.signed else words
            high = b.lshr(words, 8)
            low = b.mul(b.and_(words, 255), weights[k]) if weights else words
            high = b.mul(high, weights[k]) if weights else high
            even = low if even is None else b.add(even, low)
            odd = high if odd is None else b.add(odd, high)
        assert even is not None
        assert odd is not None
        return even if weights else b.sub(even, b.shl(odd, 8)), odd

    def _place(self, at: Value, element: int) -> Value:
        """Where the sum of a column is, from an address in the even half of the room on."""
        return self.b.gep(at, element % 2 * self.half + element // 2 * 2)

    def _ahead(self, at: At, count: Value | int, step: int = 1) -> At:
        """So many steps of elements further."""
        if not isinstance(at, int):
            return self.b.gep(at, count, step)
        number = count if isinstance(count, int) else count.number
        assert isinstance(number, int)
        return at + number * step

    def _sums(self, at: At, element: int, words: int) -> Value:
        """Every other column, so many of them from an element on."""
        if not isinstance(at, int):
            return self.b.load(vector(words, I16), self._place(at, element), 2)
        assert self.kept is not None
        (even, odd), lanes, made = self.kept, self.step // 2, self.made
        columns = [at + element - self.front + 2 * k for k in range(words)]
        if made.columns:  # the first one and the last one are there once more
            inside = [c + self.each * ((c < 0) - (c >= self.size)) for c in columns]
            return self.b.shuffle(
                even, [c // 2 + c % 2 * lanes if 0 <= c < self.size else -1 for c in inside], odd
            )
        picks = [c // 2 if 0 <= c < self.size else lanes for c in columns]
        return self.b.shuffle(odd if columns[0] % 2 else even, picks, self.pad * len(made.rows[0]))

    # -- results --------------------------------------------------------------------------------------------

    def _segments(self) -> list[_Segment]:
        x = self.made.width
        if self.made.divisor != "elements":
            return [_Segment(0, x.out, x.kernel)]
        found, first = [], 0
        for columns, several in groupby(x.counts):
            end = first + len(list(several))
            found.append(_Segment(first, end, columns))
            first = end
        return found

    def _along(self, dst: Value, row: Value) -> None:
        """Write a row of results."""
        b, made = self.b, self.made
        if made.columns:
            (self._twice if made.doubles(self.block) else self._weighted)(dst)
            return
        if made.divisor != "elements":
            self._segments_of(dst, None)
            return
        whole = len(made.rows[0])
        elements = b.load(I64, b.gep(self._entry(row), 16 * whole))
        full = b.icmp("eq", elements, whole)
        b.when(full, lambda: self._segments_of(dst, constant(I64, whole)))
        if self.pads:
            b.when(b.not_(full), lambda: self._segments_of(dst, elements))

    def _segments_of(self, dst: Value, elements: Value | None) -> None:
        """A row of results, of columns of so many elements."""
        b, x = self.b, self.made.width
        for segment in self._segments():
            several = segment.end - segment.first
            finish = self._divided(elements, segment.columns)
            first, to = segment.first * x.stride * self.each, b.gep(dst, segment.first * x.dst)
            at = self._ahead(self.begin, first - first % 2)
            if self._flat:
                self._windows(at, to, several * self.each, finish, first % 2)
                continue

            def pixel(i: Value, at: At = at, to: Value = to, finish: Finish = finish) -> None:
                begin = self._ahead(at, i, x.stride * self.each)
                self._windows(begin, b.gep(to, i, x.dst), self.each, finish)

            b.loop(0, several, 1, pixel)

    def _windows(self, at: At, to: Value, size: int, finish: Finish, odd: int = 0) -> None:
        """So many results, one window each, the first of which begins ``odd`` elements behind an address."""
        b, x = self.b, self.made.width
        places = [odd + k * x.dilation * self.each for k in range(x.kernel)]

        def sums(at: At, words: int, first: int) -> tuple[Value, Value]:
            loaded: dict[int, Value] = {}

            def total(more: int) -> Value:
                for place in places:
                    if place + more not in loaded:
                        loaded[place + more] = self._sums(at, place + more, words)
                first, *others = (loaded[place + more] for place in places)
                for other in others:
                    first = b.add(first, other)
                return first

            return total(first), total(first + 1)

        self._registers(at, to, size, sums, finish)

    def _registers(self, at: At, to: Value, size: int, sums: Sums, finish: Finish) -> None:
        """Results register by register."""
        b, step = self.b, min(self.step, 1 << max(1, (size - 1).bit_length()))

        def store(i: Value | int, count: int, first: int = 0) -> None:
            words = finish(*sums(self._ahead(at, i), step // 2, first))
            found = b.bitcast(words, vector(step, I8))
            store_pieces(b, found, b.gep(b.gep(to, i), first), pieces_of(0, count, 0, 1))

        whole = size // step * step
        if whole:
            b.loop(0, whole, step, lambda i: store(i, step))
        if whole and size > whole:  # the last ones once more
            store(0, step, size - step)
        elif size > whole:
            store(0, size)

    def _divided(self, elements: Value | None, columns: int) -> Finish:
        """How sums of windows become bytes: divided by their size, or by so many columns of elements."""
        b, made = self.b, self.made
        by: Divisor | None
        d: int | Value

        def finish(even: Value, odd: Value) -> Value:
            count = even.type.count
            assert by is not None
            many = b.splat(d, count) if isinstance(d, Value) else d
            low, high = (divided(b, n, many, spread(b, by, count)) for n in (even, odd))
            return self._signed(b.or_(low, b.shl(high, 8)))

        known = made.taps if elements is None else elements.number
        if known is not None:
            d = made.taps if elements is None else int(known) * columns
            by = divisor(d)
        else:
            assert elements is not None
            number = b.mul(elements, columns)
            d, by = b.trunc(number, I16), looked_up(b, DIVISORS, number)
        return finish

    def _signed(self, words: Value) -> Value:
        """Bytes that have been without a sign."""
        return self.b.xor(words, -0x7F80) if self.signed else words

    def _weighted(self, dst: Value) -> None:
        """Pixels that are made of two columns each."""
        b, made, each = self.b, self.made, self.each

        def pixel(i: Value) -> None:
            entry = b.gep(Value(f"@{COLUMNS}", PTR), i, 24)
            place, *weights = (b.load(I64, b.gep(entry, 8 * k)) for k in range(3))
            at = b.gep(self.room, place, each)

            def sums(at: At, words: int, first: int) -> tuple[Value, Value]:
                found = []
                for more in (first, first + 1):
                    one, two = (
                        b.mul(self._sums(at, k * each + more, words), self._spread(weight, words))
                        for k, weight in enumerate(weights)
                    )
                    found.append(b.add(one, two))
                return found[0], found[1]

            self._registers(at, b.gep(dst, i, made.width.dst), each, sums, self._weighed)

        b.loop(0, made.width.out, 1, pixel)

    def _weighed(self, even: Value, odd: Value) -> Value:
        """Sums with weights as bytes."""
        b, whole = self.b, self.made.whole
        if whole == WHOLE:
            return self._rounded(even, odd)
        by = divisor(whole)
        assert by is not None
        low, high = (divided(b, n, whole, by) for n in (even, odd))
        return self._signed(b.or_(low, b.shl(high, 8)))

    def _rounded(self, even: Value, odd: Value) -> Value:
        """Sums with weights of 256: the upper byte, rounded to the nearest, the even one of two."""
        b = self.b
        low, high = (b.add(n, b.add(b.and_(b.lshr(n, 8), 1), 127)) for n in (even, odd))
        return self._signed(b.or_(b.lshr(low, 8), b.and_(high, -256)))

    # -- twice as long --------------------------------------------------------------------------------------

    def _twice(self, dst: Value) -> None:
        """Two pixels of each column: a quarter of the one before or behind, and three of its own."""
        b, each, step, row = self.b, self.each, self.step, self.made.width.dst
        if self.kept is None:
            self._repeat_ends()

        def pair(at: At, words: int = step // 2) -> tuple[Value, Value]:
            before, behind = [], []
            for more in (0, 1):
                left, own, right = (self._sums(at, self.front + more + k * each, words) for k in (-1, 0, 1))
                own = b.mul(own, 3)
                before.append(b.add(left, own))
                behind.append(b.add(own, right))
            bytes_ = vector(2 * words, I8)
            return b.bitcast(self._rounded(*before), bytes_), b.bitcast(self._rounded(*behind), bytes_)

        if each % step:
            self._interleaved(dst, pair)
            return

        def pixel(i: Value) -> None:
            at, to = b.gep(self.room, i, each), b.gep(dst, i, 2 * row)

            def turn(c: Value) -> None:
                for k, x in enumerate(pair(b.gep(at, c))):
                    b.store(x, b.gep(b.gep(to, c), k * row), 1)

            b.loop(0, each, step, turn)

        b.loop(0, self.made.width.size, 1, pixel)

    def _repeat_ends(self) -> None:
        """The first and the last column once more, in front of all and behind them."""
        b, each, last = self.b, self.each, self.front + self.size
        for source, target in ((self.front, self.front - each), (last - each, last)):
            for more in range(min(2, each)):
                words = vector(min(self.step, each) // 2 or 1, I16)
                for k in range(0, max(1, each // 2), words.count):
                    place = more + 2 * k
                    x = b.load(words, self._place(self.room, source + place), 2)
                    b.store(x, self._place(self.room, target + place), 2)

    def _interleaved(self, dst: Value, pair: Callable[[At], tuple[Value, Value]]) -> None:
        """Both pixels of columns that are shorter than a register, in turn."""
        b, each, step = self.b, self.each, self.step
        size = min(each, 8)
        parts, group = vector(step // size, integer(8 * size)), each // size

        def turn(i: Value | int, count: int) -> None:
            found = [b.bitcast(x, parts) for x in pair(self._ahead(self.begin, i))]
            places = [
                p * group + k + side * parts.count
                for p in range(step // each)
                for side in (0, 1)
                for k in range(group)
            ]
            for half in (0, 1):
                picks = places[half * parts.count : (half + 1) * parts.count]
                x = b.bitcast(b.shuffle(found[0], picks, found[1]), vector(step, I8))
                left = min(step, 2 * count - half * step)
                if left > 0:
                    to = b.gep(b.gep(dst, i, 2), half * step)
                    store_pieces(b, x, to, pieces_of(0, left, 0, 1))

        whole = self.size // step * step
        if whole:
            b.loop(0, whole, step, lambda i: turn(i, step))
        if self.size > whole:
            turn(whole, self.size - whole)
