"""Packed filters put together with AVX2: bytes become words, and words are turned over: ``together``.

The reverse of :mod:`.apart`. In the source a group of four channels of all taps lies together; in the
destination words of four bytes do, the same tap of these channels, of all outputs beside each other::

    s8 oihw          o0: i0t0 i0t1 .. i0t8  i1t0 ..  i3t8       |  o1: ..                      |
    s8 OIhw4i16o4i   t0: o0 i0 i1 i2 i3   o1 i0 i1 i2 i3   ..   |  t1: o0 i0 i1 i2 i3  o1 ..   |  ..  t8: ..

A transpose moves bytes one by one, 64 rows of nine taps, for each of which 16 are loaded. Here a lane gets 16
bytes of the group of an output, from wherever the most of them is wanted: of nine taps that is bytes 0, 18, 4
and 20. Each is shuffled within its lane, and two of them are four words of an output::

    bytes 0 to 15       i0t0-3 .. i1t0-3 .. ..    ->   i0t0 i1t0 .... .... | i0t1 i1t1 .... .... | ..
    bytes 18 to 33      i2t0-3 .. i3t0-3 .. ..    ->   .... .... i2t0 i3t0 | .... .... i2t1 i3t1 | ..

Four outputs of four words are turned over, in both lanes of a register, which is half a line of each tap. A
tap that is left over is picked into the word of its output at once: of nine, the ninth comes from lanes that
the four before it were loaded from. So nine lines take 80 shuffles and 64 loads, 21 instructions a line where
a transpose takes 40.

Sixteen rows that are read 36 bytes at a time are more streams than a processor sees, so each asks for what it
goes on with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import attrgetter

from relayout.ir.types import I8, Value, vector
from relayout.ir.vectors import join_lanes
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import INSTRUCTION_CYCLES
from relayout.kernels.copy.network import Network
from relayout.kernels.copy.picking import FOUR, LANE, WORD, Picking, PickingPlan, planned
from relayout.kernels.copy.plan import UNUSUAL_CYCLES, WORD_BITS, Facts, Plan, costing, runs
from relayout.kernels.copy.problem import Move
from relayout.records import dataclass, replace

__all__ = ["Together", "TogetherPlan", "plans"]

MOST_TAPS = 32  # of a group


@dataclass(frozen=True)
class TogetherPlan(PickingPlan):
    """Groups of several rows, each of which becomes a word of several lines."""

    kind = "together"
    asks: bool = False
    """Whether rows ask for what follows: so many are no streams that a processor sees."""

    def choices(self) -> Iterator[str]:
        """Whether rows ask for what follows."""
        yield from super().choices()
        if self.asks:
            yield "prefetched"

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.long.extent} words of {self.short.extent} elements from {self.across.extent} rows"

    @property
    def size(self) -> int:
        """Bytes of a group."""
        return WORD * self.long.extent

    def wanted(self, taps: Sequence[int]) -> list[int]:
        """Which bytes of a group the words of some taps have, in their order."""
        size = self.nest.write // 8
        places = [self.long.src * tap + self.short.src * k for tap in taps for k in range(self.short.extent)]
        return [place // 8 + byte for place in places for byte in range(size)]

    def parts(self) -> Iterator[tuple[list[int], int | None, list[int]]]:
        """Four taps at a time, perhaps a single one that is left over, and from where lanes are loaded.

        The last four may begin before the others end.
        """
        taps = self.long.extent
        for first in range(0, taps - 1, FOUR):
            start = min(first, taps - FOUR)
            four = list(range(start, start + FOUR))
            single = taps - 1 if start + FOUR == taps - 1 else None
            yield four, single, self._windows(self.wanted(range(start, start + FOUR + (single is not None))))

    def _windows(self, wanted: Sequence[int]) -> list[int]:
        """Where lanes begin that have all these bytes of a group, and nothing outside of it."""
        left = set(wanted)
        found: list[int] = []
        while left:
            found.append(min(min(left), self.size - LANE))
            left -= {*range(found[-1], found[-1] + LANE)}
        return found


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Words of four bytes of the destination, of which groups of four or more lie together in the source."""
    inner, outer = runs(nest)
    sides = attrgetter("src"), attrgetter("dst")
    made = planned(TogetherPlan, nest, facts, (outer, inner), sides, MOST_TAPS)
    if made is None:
        return
    lanes = [len(windows) * (3 if single is None else 4) for _, single, windows in made.parts()]
    each = FOUR * sum(lanes) + 3 * made.long.extent  # instructions for half a line of each tap
    cost, far = INSTRUCTION_CYCLES * 2 * each / made.long.extent, 2 * nest.bytes > facts.machine.l2
    yield from costing(replace(made, asks=True), facts, cost + UNUSUAL_CYCLES * (not far))
    yield from costing(made, facts, cost + UNUSUAL_CYCLES * far)


@writes(TogetherPlan)
class Together(Picking):
    """A group of taps at a time, of all outputs."""

    plan: TogetherPlan

    def some(self, place: Place) -> None:
        """All taps of eight outputs."""
        b, plan = self.b, self.plan
        net = Network(WORD_BITS, FOUR, 2 * FOUR)
        groups = [[self.moved(place, row, plan.across).src for row in rows] for rows in net.rows]
        if plan.asks:
            for row in dict.fromkeys(row for group in groups for row in group):
                self.prefetch(row)
        done = 0
        for four, single, windows in plan.parts():
            words: list[Value] = []
            alone: list[Value] = []
            for number, group in enumerate(groups):
                lanes = [self._lanes(group, start) for start in windows]
                words.append(self._together(lanes, windows, plan.wanted(four)))
                if single is not None:
                    alone.append(self._together(lanes, windows, plan.wanted([single]), WORD * number))
            for number, line in net.in_depth(b, words.__getitem__):
                if four[number] >= done:
                    self._put(line, place, four[number])
            if single is not None:
                self._put(reduce(b.or_, alone), place, single)
            done = four[-1] + 1

    def _lanes(self, group: Sequence[Value], start: int) -> Value:
        """The same 16 bytes of two outputs."""
        b = self.b
        return join_lanes(b, [b.load(vector(LANE, I8), b.gep(output, start), 1) for output in group])

    def _together(
        self, lanes: Sequence[Value], windows: Sequence[int], wanted: Sequence[int], to: int = 0
    ) -> Value:
        """Bytes of a group, one behind the other from a byte of each lane on, and zeros elsewhere."""
        parts: list[Value] = []
        left = dict(enumerate(wanted, to))
        for x, start in zip(lanes, windows, strict=True):
            here = {at: byte - start for at, byte in left.items() if start <= byte < start + LANE}
            left = {at: byte for at, byte in left.items() if at not in here}
            if here:
                parts.append(self.picked(x, here))
        return reduce(self.b.or_, parts)

    def _put(self, line: Value, place: Place, tap: int) -> None:
        """Half a line of a tap."""
        self.store_raw(line, self.moved(place, tap, self.plan.long).dst, False)
