"""Packed filters taken apart with AVX2: words are turned over first, and then their bytes: ``apart``.

Packed filters have words of four bytes, the same tap of several channels, those of all outputs beside each
other; here a group of taps is 36 bytes that lie together in the destination, a row for each output::

    s8 OIhw4i16o4i   t0: o0 i0 i1 i2 i3   o1 i0 i1 i2 i3   ..   |  t1: o0 i0 i1 i2 i3  o1 ..   |  ..  t8: ..
    s8 oihw          o0: i0t0 i0t1 .. i0t8  i1t0 ..  i3t8       |  o1: ..                      |

A transpose moves bytes one by one, and stores nine of them at a time, in two pieces. Here four taps of eight
outputs are turned over as words, within lanes, so that a lane has four taps of one output. What a lane of the
result takes of each of these is picked by one instruction, and put together with the others::

    o0 t0-3 | o4 t0-3    ->    i0t0-3 ....  .    i1t0-3 ...       | the same of o4
    o0 t4-7 | o4 t4-7    ->    ....  i0t4-7 .    ....   i1t4-6    |
    o0-3 t8 | o4-7 t8    ->    ....  ....  i0t8  ....   ...       |    16 bytes of the group

That is 10.7 shuffles for a line where taps are nine, and 5.3 stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import attrgetter

from relayout.ir.types import I8, Value, integer, vector
from relayout.ir.vectors import cut
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import INSTRUCTION_CYCLES
from relayout.kernels.copy.network import Network
from relayout.kernels.copy.picking import LANE, WORD, Picking, PickingPlan, planned
from relayout.kernels.copy.plan import WORD_BITS, Facts, Plan, costing, runs
from relayout.kernels.copy.problem import Move
from relayout.records import dataclass
from relayout.targets.machine import LINE

__all__ = ["Apart", "ApartPlan", "plans"]

MOST_TAPS = 16  # of a group: LLVM takes a second for the code of 32


@dataclass(frozen=True)
class ApartPlan(PickingPlan):
    """Words of several outputs, each group of which becomes a piece of a row."""

    kind = "apart"

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.long.extent} words of {self.short.extent} elements to {self.across.extent} rows"


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Words of four bytes, of which groups of four or more lie together in the destination."""
    inner, outer = runs(nest)
    sides = attrgetter("dst"), attrgetter("src")
    made = planned(ApartPlan, nest, facts, (inner, outer), sides, MOST_TAPS)
    if made is None:
        return
    vectors = facts.machine.vector // WORD
    taps, size = made.long.extent, WORD * made.long.extent  # of a group
    lines = size * vectors / LINE
    pieces = [sum(1 for _ in _picked(made, first)) for first in range(0, size, LANE)]
    picks = sum(pieces) * vectors / 2
    shuffles, stores = vectors * (taps // 4 + (taps % 4 > 1)) + picks, vectors * len(pieces)
    yield from costing(made, facts, INSTRUCTION_CYCLES * (taps + shuffles + picks / 2 + stores) / lines)


def _picked(plan: ApartPlan, first: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """What 16 bytes of a group from byte ``first`` on take of each four taps.

    The number of these, and pairs: a byte of the 16, and one of the words: that many bytes behind the first.
    """
    size, taps = plan.nest.write // 8, plan.long.extent
    found: dict[int, list[tuple[int, int]]] = {}
    for at in range(first, min(first + LANE, WORD * taps)):
        (element, tap), byte = divmod(at // size, taps), at % size
        found.setdefault(tap // 4, []).append((at - first, tap % 4 * WORD + element * size + byte))
    yield from sorted(found.items())


@writes(ApartPlan)
class Apart(Picking):
    """A group of taps at a time, of all outputs."""

    plan: ApartPlan

    def some(self, place: Place) -> None:
        """All taps of eight outputs: words turned over four by four, and two outputs stored at a time."""
        b, plan, vectors = self.b, self.plan, self.machine.vector
        net = Network(WORD_BITS, 4, 8)
        taps, kind = plan.long.extent, vector(vectors, I8)

        def load(tap: int) -> Value:
            return b.load(kind, self.moved(place, min(tap, taps - 1), plan.long).src, 1)

        fours: list[list[Value]] = []
        for first in range(0, taps, 4):
            if first + 1 == taps:  # a single one: words are picked where they lie
                fours.append([load(first)])
            else:
                given = [load(first + k) for k in range(4)]
                fours.append(net.transposed(b, given.__getitem__))
        for output in range(4):
            rows = [self.moved(place, output + more, plan.across).dst for more in (0, 4)]
            for first in range(0, WORD * taps, LANE):
                self._store(fours, output, first, rows)

    def _store(self, fours: list[list[Value]], output: int, first: int, rows: list[Value]) -> None:
        """Up to 16 bytes of two rows."""
        b, parts = self.b, []
        left = min(LANE, WORD * self.plan.long.extent - first)
        for number, pairs in _picked(self.plan, first):
            alone = len(fours[number]) == 1
            register, behind = fours[number][0 if alone else output], WORD * output * alone
            parts.append(self.picked(register, {at: behind + byte for at, byte in pairs}))
        made = reduce(b.or_, parts)
        for half, row in zip(cut(b, made, LANE), rows, strict=True):
            done = 0
            while done < left:
                some = 1 << ((left - done).bit_length() - 1)
                part = half if some == LANE else b.shuffle(half, range(done, done + some))
                word = b.bitcast(part, integer(8 * some)) if some <= 8 else part
                b.store(word, b.gep(row, first + done), 1)
                done += some
