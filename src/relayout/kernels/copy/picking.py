"""Packed filters by AVX2's picks of bytes within lanes: what :mod:`.apart` and :mod:`.together` share.

On one side a group of a few channels of all taps lies together, on the other words of these channels, outputs
beside each other. Both kernels go through eight outputs at a time, four in each lane of a register.

The picks stand in a table that the kernel reads, since of a shuffle that it knows LLVM looks for something
better: it took seconds for some kernels, and for one ten minutes did not do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import TypeVar

from relayout.ir.builder import numbers_of, table
from relayout.ir.types import PTR, Value
from relayout.ir.vectors import picked_in_lanes
from relayout.kernels.copy.base import Kernel, Place
from relayout.kernels.copy.plan import LANE_BITS, WORD_BITS, Facts, Plan, Run, rest_of, runs, shared_of
from relayout.kernels.copy.problem import Move, moves_bits
from relayout.loops.nest import Loop
from relayout.records import dataclass
from relayout.targets.machine import LINE

__all__ = ["FOUR", "LANE", "WORD", "Picking", "PickingPlan", "planned"]

WORD, LANE = WORD_BITS // 8, LANE_BITS // 8
FOUR = LANE // WORD  # words of a lane, and outputs that are turned over
ZERO = 0x80  # where a byte is picked from that is to be zero


@dataclass(frozen=True)
class PickingPlan(Plan):
    """Groups of short rows on one side, of words on the other."""

    short: Loop = Loop(1, ())
    """The elements of a word."""
    long: Loop = Loop(1, ())
    """The words of a group: its taps."""
    across: Loop = Loop(1, ())
    """The words beside each other: outputs, each of which is a row on the other side."""


Made = TypeVar("Made", bound=PickingPlan)
Side = Callable[[Loop], int]
"""A loop's step on one side."""


def planned(
    kind: type[Made],
    nest: Move,
    facts: Facts,
    loops: tuple[Loop | None, Loop | None],
    sides: tuple[Side, Side],
    most: int,
) -> Made | None:
    """The plan of a nest of such groups; None: it is none, or the processor has more than AVX2, or less.

    Parameters
    ----------
    kind : type
        Of the plan.
    nest, facts : Move, Facts
        What is moved, and for whom.
    loops : tuple of Loop or None
        Through the elements of a word, and the words of a group.
    sides : tuple of callable
        Steps where groups lie together, and where words do.
    most : int
        Words of a group.
    """
    (short, long), (whole, words), bits = loops, sides, nest.write
    plain = moves_bits(nest) and 8 <= bits < WORD_BITS and not (nest.zero or nest.fill or nest.pair)
    if not plain or short is None or long is None or short is long or not facts.machine.is_avx2:
        return None
    group = whole(short) == long.extent * bits and short.extent * bits == WORD_BITS
    if not group or not FOUR <= long.extent <= most:
        return None
    vectors = 8 * facts.machine.vector // WORD_BITS
    across = next((x for x in nest.loops if words(x) == WORD_BITS and x.extent % vectors == 0), None)
    if across is None or across.steps in (short.steps, long.steps):
        return None
    across = across.taking(gcd(across.extent, LINE // WORD))
    around = tuple(loop for loop in nest.loops if loop not in (short, long))
    around = tuple(rest for loop in around if (rest := rest_of(loop, across)).extent > 1)
    columns, rows = (Run((loop,)) for loop in runs(nest) if loop is not None)
    return kind(nest, columns, rows, around, shared_of(around), short=short, long=long, across=across)


class Picking(Kernel):
    """A kernel with a table of picks, which is written down when all of them are known."""

    plan: PickingPlan

    def prepare(self) -> None:
        """Name the table; it has no picks yet."""
        self.picks: dict[bytes, int] = {}
        self.picks_at = Value(f"@{self.name}_picks", PTR)

    def body(self, place: Place) -> None:
        """Eight outputs after the other, and the table of what was picked."""
        step, across = self.machine.vector // WORD, self.plan.across
        self.b.loop(0, across.extent, step, lambda first: self.some(self.moved(place, first, across)))
        name = self.picks_at.removeprefix("@")
        self.routines[name] = table(name, numbers_of(b"".join(self.picks)))

    def some(self, place: Place) -> None:
        """All taps of eight outputs."""
        raise NotImplementedError

    def picked(self, x: Value, given: Mapping[int, int]) -> Value:
        """Bytes of every lane: where each one goes, and where it comes from; all others are zero."""
        lane = bytes(given.get(at, ZERO) for at in range(LANE))
        number = self.picks.setdefault(lane * (x.type.bytes // LANE), len(self.picks))
        picks = self.b.load(x.type, self.b.gep(self.picks_at, number * x.type.bytes), x.type.bytes)
        return picked_in_lanes(self.b, x, picks)
