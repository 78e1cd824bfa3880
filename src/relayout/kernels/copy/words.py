"""Packed filters written line by line, without a buffer: ``words``.

Four channels of nine taps lie together in the source, and a line of the destination has one tap of four
channels (a *word*) of 16 outputs::

    s8 oihw          o0: i0t0 i0t1 .. i0t8  i1t0 ..  i3t8  |  i4t0 ..       a row for each output
    s8 OIhw4i16o4i   t0: o0 i0 i1 i2 i3   o1 i0 i1 i2 i3   ..   o15 ..      a line for each tap

Eight words that follow each other are picked out of 62 bytes of a row, so that one instruction with two
registers puts those of two outputs beside each other. Eight such registers are a square of eight by eight
pairs, and turned over they are eight lines::

    o0 and o1     t0: o0 o1   t1: o0 o1   ..   t7: o0 o1          t0: o0 o1   o2 o3   ..   o14 o15
    o2 and o3     t0: o2 o3   t1: o2 o3   ..   t7: o2 o3    ->    t1: o0 o1   o2 o3   ..   o14 o15
    ..                                                            ..

That is 4 shuffles for a line. A transpose moves such filters byte by byte; :mod:`.regroup` does it in two
steps, with whatever transposes words best, and needs no whole lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2

from relayout.ir.builder import Operand, table
from relayout.ir.types import I64, PTR, Value
from relayout.kernels.copy.base import Kernel, Place, writes
from relayout.kernels.copy.cost import STRADDLING_CYCLES, instructions
from relayout.kernels.copy.network import square
from relayout.kernels.copy.plan import (
    LINE_BITS,
    UNUSUAL_CYCLES,
    Facts,
    Plan,
    Run,
    costing,
    rest_of,
    runs,
    shared_of,
)
from relayout.kernels.copy.problem import WIDEST, Move, moves_bits
from relayout.kernels.copy.regroup import ORDER_INSTRUCTIONS, following
from relayout.loops.nest import Loop
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Words", "WordsPlan", "plans"]

GROUPS = 8  # of channels that are done together: so many of nine taps each are nine squares
PERMUTES = {8: "qi", 16: "hi", 32: "d"}  # what the instruction is called that picks out of two registers


@dataclass(frozen=True)
class WordsPlan(Plan):
    """Words of several rows, put together to lines."""

    kind = "words"
    short: Loop = Loop(1, ())
    """The elements of a word."""
    long: Loop = Loop(1, ())
    """The words of a group: its taps."""
    on: tuple[Loop, ...] = ()
    """The groups that follow each other in the source and are done together."""
    across: Loop = Loop(1, ())
    """The rows whose words are a line."""
    unrolled: bool = False
    """Whether each square has code of its own, which is faster, and takes many times as long to compile."""

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.count} words of {self.short.extent} elements from {self.across.extent} rows"

    def at_length(self) -> Plan | None:
        """Every square with code of its own."""
        return None if self.unrolled else replace(self, unrolled=True)

    def choices(self) -> Iterator[str]:
        """Code for each square, or one for all."""
        yield "unrolled" if self.unrolled else "looped"

    @property
    def count(self) -> int:
        """Words of a row."""
        return Run((self.long, *self.on)).extent

    @property
    def side(self) -> int:
        """Words of two rows in a register, which is the side of a square."""
        return self.across.extent // 2

    @property
    def targets(self) -> list[int]:
        """Where the line of each word begins, in bits."""
        return Run((self.long, *self.on)).places("dst")

    def squares(self) -> Iterator[tuple[int, int, list[int]]]:
        """The first word of each square, from which bit on rows are loaded, and which elements are taken.

        The last square ends with the last word. Nothing is loaded that lies outside of the words of a row.
        """
        bits, each, side = self.nest.read, self.short.extent, self.side
        places = Run((self.short, self.long, *self.on)).places("src")
        for word in range(0, self.count, side):
            first = min(word, self.count - side)
            used = places[each * first : each * (first + side)]
            start = min(*used, len(places) * bits - LINE_BITS)
            yield first, start, [(place - start) // bits for place in used]

    @property
    def loads_at_once(self) -> bool:
        """Whether the words of every square lie within a register's length of each row."""
        bits = self.nest.read
        if self.count < self.side or self.count * self.short.extent * bits < LINE_BITS:
            return False
        return all(max(takes) < LINE_BITS // bits for _, _, takes in self.squares())

    def completes(self, machine: Machine) -> bool:
        """Lines, wherever they begin on one."""
        return not any(place % LINE_BITS for place in self.targets)


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Short runs of the destination, words, that with a run of the source make a group; rows of groups."""
    inner, outer = runs(nest)
    bits = nest.write
    plain = moves_bits(nest) and bits >= 8 and not (nest.zero or nest.fill or nest.pair)
    if not plain or inner is None or outer is None or inner is outer or not facts.machine.permutes(bits):
        return
    word = outer.extent * bits
    if outer.src != inner.extent * bits or word & (word - 1) or not bits < word <= WIDEST:
        return
    rows = LINE_BITS // word
    others = (loop for loop in nest.loops if loop is not outer and loop is not inner)
    across = next((loop for loop in others if loop.dst == word and loop.extent % rows == 0), None)
    if across is None:
        return
    across = across.taking(rows)
    group = word * inner.extent
    on = following(nest, "src", group, GROUPS * group, across)
    around = _around(nest, (outer, inner, *on, across))
    parts = nest, Run((inner,)), Run((outer,)), around, shared_of(around)
    made = WordsPlan(*parts, short=outer, long=inner, on=on, across=across)
    squares = -(-made.count // made.side)
    again = squares * made.side / made.count  # the last square steps back
    cost = again * instructions(2, ORDER_INSTRUCTIONS / 2 + log2(made.side)) + STRADDLING_CYCLES
    if not facts.hopeless(cost) and made.loads_at_once:
        yield from costing(made, facts, cost)
        yield from costing(replace(made, unrolled=True), facts, cost + UNUSUAL_CYCLES)


def _around(nest: Move, taken: Sequence[Loop]) -> tuple[Loop, ...]:
    """The loops that are left, the outermost first."""
    around = nest.loops
    for part in taken:
        around = tuple(rest_of(loop, part) for loop in around)
    return tuple(loop for loop in around if loop.extent > 1)


@writes(WordsPlan)
class Words(Kernel):
    """A square after the other: pairs of rows, each put in order by one instruction, and turned over.

    Squares differ in where rows are loaded, in what is picked, and in where lines go. All of that stands in a
    table; where squares are unrolled, the code knows all but what is picked.
    """

    plan: WordsPlan

    def prepare(self) -> None:
        """Write down the table: for each square its picks, where rows are loaded, and where lines go."""
        plan, bits, targets = self.plan, self.nest.read, self.plan.targets
        self.entry = -(-(LINE + 8 * (1 + plan.side)) // LINE) * LINE
        self.numbers: list[int] = []
        for first, start, takes in plan.squares():
            whole = sum(pick << k * bits for k, pick in enumerate(self._beside(takes)))
            entry = [whole >> 64 * k & (1 << 64) - 1 for k in range(LINE // 8)]
            entry += [place // 8 for place in (start, *targets[first : first + plan.side])]
            self.numbers += entry + [0] * (self.entry // 8 - len(entry))
        name = f"{self.name}_squares"
        self.routines[name] = table(name, self.numbers)
        self.squares = Value(f"@{name}", PTR)

    def _beside(self, takes: Sequence[int]) -> list[int]:
        """What a register of two rows picks out of two registers, of one row each: word by word."""
        each, count = self.plan.short.extent, LINE_BITS // self.nest.read
        words = [takes[at : at + each] for at in range(0, len(takes), each)]
        return [half * count + take for word in words for half in (0, 1) for take in word]

    def body(self, place: Place) -> None:
        """All words of so many rows."""
        b, plan = self.b, self.plan
        whole = plan.count // plan.side
        for k in range(whole) if plan.unrolled else ():
            self._square(place, k)
        if not plan.unrolled:
            b.loop(0, whole, 1, lambda k: self._square(place, k))
        if plan.count % plan.side:  # over lines that are there already
            self.unstreamed(lambda: self._square(place, whole))

    def _square(self, place: Place, number: Operand) -> None:
        b, plan, bits = self.b, self.plan, self.nest.read
        kind = self.vector(LINE_BITS // bits, bits)
        entry = b.gep(self.squares, number, self.entry)
        picks = b.load(kind, entry, LINE)
        start, *targets = (self._told(number, entry, k) for k in range(1 + plan.side))
        pairs = []
        for k in range(0, plan.across.extent, 2):
            one, two = (self.moved(place, row, plan.across).src for row in (k, k + 1))
            given = b.load(kind, b.gep(one, start), 1), picks, b.load(kind, b.gep(two, start), 1)
            pairs.append(b.call_value(kind, f"llvm.x86.avx512.vpermi2var.{PERMUTES[bits]}.512", *given))
        lines = square(b, pairs, 2 * plan.short.extent * bits)
        for line, at in zip(lines, targets, strict=True):
            self.store_raw(line, b.gep(place.dst, at))

    def _told(self, number: Operand, entry: Value, k: int) -> Operand:
        """What the table says of a square behind its picks; a number where the square is known."""
        if isinstance(number, int):
            return self.numbers[(number * self.entry + LINE) // 8 + k]
        return self.b.load(I64, self.b.gep(entry, LINE + 8 * k))
