"""Packed filters: pairs or fours of channels move as words, and are put in order in registers: ``regrouped``.

Four channels of nine taps are 36 bytes that lie together on both sides, in another order::

    s8 oihw          i0: t0 t1 .. t8   i1: t0 t1 .. t8   i2: ..   i3: ..
    s8 OIhw4i16o4i   t0: i0 i1 i2 i3   t1: i0 i1 i2 i3   ..   t8: i0 i1 i2 i3    (16 outputs between two)

A transpose moves such filters byte by byte, and stores nine at a time. Here one instruction puts all of a
group in order, for processors that have one, and words of four bytes are transposed, a quarter as many.
Between the two steps lies a buffer of a few KiB. Groups are put in order where they are whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from relayout.ir.types import Value
from relayout.kernels.copy.base import Kernel, Place, writes
from relayout.kernels.copy.cost import STRADDLING_CYCLES, instructions
from relayout.kernels.copy.packing import STEP_BUFFER_BITS, Converted, ConvertedPlan
from relayout.kernels.copy.plan import LINE_BITS, Facts, Plan, Run, costing, part_of, rest_of, runs, shared_of
from relayout.kernels.copy.problem import WIDEST, Move, moves_bits, simplified
from relayout.loops.nest import Loop
from relayout.records import dataclass, replace

__all__ = ["ORDER_INSTRUCTIONS", "Order", "OrderPlan", "Regrouped", "RegroupedPlan", "following", "plans"]

ORDER_INSTRUCTIONS = 3  # of a shuffle that picks bytes or half words out of two registers


@dataclass(frozen=True)
class OrderPlan(Plan):
    """Groups that are whole on both sides, each put in another order by one shuffle."""

    kind = "order"
    group: tuple[Loop, ...] = ()
    """The loops of a group."""
    groups: Loop | None = None
    """The groups, one behind the other on both sides."""

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.groups.extent if self.groups else 1} groups of {self.piece // 8} bytes"

    @property
    def piece(self) -> int:
        """Bits of a group."""
        return Run(self.group).extent * self.nest.write


class RegroupedPlan(ConvertedPlan):
    """Groups put in order and words transposed, or the reverse."""

    kind = "regrouped"


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Short runs of one side, words, that with a run of the other side make a group of a line at most."""
    inner, outer = runs(nest)
    bits = nest.write
    plain = moves_bits(nest) and bits >= 8 and not (nest.zero or nest.fill or nest.pair)
    if not plain or inner is None or outer is None or inner is outer or not facts.machine.permutes(bits):
        return
    for whole, short, long in (("src", outer, inner), ("dst", inner, outer)):
        other = "dst" if whole == "src" else "src"
        word = short.extent * bits
        group = word * long.extent
        if getattr(short, whole) != long.extent * bits or word & (word - 1) or not bits < word <= WIDEST:
            continue
        rest = [loop for loop in nest.loops if loop is not short and loop is not long]
        across = next((loop for loop in rest if getattr(loop, other) == word), None)
        if group > LINE_BITS or across is None:
            continue
        across = part_of(across, LINE_BITS // word)
        on = following(nest, whole, group, STEP_BUFFER_BITS // across.extent, across)
        if Run(on).extent * group < LINE_BITS or across.extent * word < LINE_BITS // 4:
            continue
        made = _made(nest, facts, whole, (short, long, *on, across))
        yield from costing(made, facts, made.cost)


def following(nest: Move, side: str, step: int, most: int, across: Loop) -> tuple[Loop, ...]:
    """The loops that follow each other on a side from a step on, or parts of them, of so many bits."""
    found: list[Loop] = []
    while True:
        loop = next((loop for loop in nest.loops if getattr(loop, side) == step), None)
        if loop is None or loop.steps == across.steps or step > most // 2:
            return tuple(found)
        part = part_of(loop, most // step)
        found += [part] * (part.extent > 1)
        if part.extent < loop.extent:
            return tuple(found)
        step *= loop.extent


def _made(nest: Move, facts: Facts, whole: str, loops: tuple[Loop, ...]) -> RegroupedPlan:
    short, long, *on, across = loops
    bits = nest.write
    word = short.extent * bits
    places, size = [bits, word], word * long.extent  # in the buffer
    for loop in (*on, across):
        places.append(size)
        size *= loop.extent
    kept = [Loop(loop.extent, (loop.src, place)) for loop, place in zip(loops, places, strict=True)]
    given = [Loop(loop.extent, (place, loop.dst)) for loop, place in zip(loops, places, strict=True)]
    first, last = (Move((0, 0), tuple(part), nest.widths) for part in (kept, given))
    ordered, moved = (first, last) if whole == "src" else (last, first)
    groups = ordered.loops[2].taking(Run(tuple(on)).extent)
    one, two, *_, ends = ordered.loops
    order = OrderPlan(ordered, Run((one,)), Run((two,)), (ends,), group=(one, two), groups=groups)
    move = replace(facts.cheapest(simplified(moved)), shared=None, stream=False, claims=False)
    around = nest.loops
    for part in loops:
        around = tuple(rest_of(loop, part) for loop in around)
    around = tuple(loop for loop in around if loop.extent > 1)
    columns, rows = (Run((loop,)) for loop in runs(nest) if loop is not None)
    steps = (order, move) if whole == "src" else (move, order)
    cost = move.cost + instructions(2, ORDER_INSTRUCTIONS) + 2 * STRADDLING_CYCLES
    return RegroupedPlan(nest, columns, rows, around, shared_of(around), steps=steps, cost=cost)


@writes(OrderPlan)
class Order(Kernel):
    """Groups put in order, a line at a time, each picked out of two vectors."""

    plan: OrderPlan

    def body(self, place: Place) -> None:
        """A run of groups."""
        b, groups, bits = self.b, self.plan.groups, self.nest.write
        assert groups is not None
        takes = self._takes()
        total, most = len(takes) * groups.extent, LINE_BITS // bits
        picks = [len(takes) * (k // len(takes)) + takes[k % len(takes)] for k in range(total)]
        loaded: dict[int, Value] = {}

        def load(at: int) -> Value:
            if at not in loaded:
                loaded[at] = b.load(self.vector(most), self.step(place.src, at, bits), 1)
            return loaded[at]

        done = 0
        while done < total:
            count = min(most, 1 << ((total - done).bit_length() - 1))
            first = min(*picks[done : done + count], total - most)
            second = min(first + most, total - most)
            while max(picks[done : done + count]) >= second + most:  # three groups, and more than two vectors
                count //= 2
            part = picks[done : done + count]
            one = [take - first if take - first < most else most + take - second for take in part]
            x = b.shuffle(load(first), [*one, *one[:1] * (most - count)], load(second))
            self.store_raw(
                b.shuffle(x, range(count)) if count < most else x, self.step(place.dst, done, bits)
            )
            done += count

    def _takes(self) -> list[int]:
        """For each element of a group in the destination, which one it is in the source."""
        group, bits = Run(self.plan.group), self.nest.write
        found = dict(zip(group.places("dst"), group.places("src"), strict=True))
        return [found[place] // bits for place in sorted(found)]


@writes(RegroupedPlan)
class Regrouped(Converted):
    """Both steps, with the buffer between them."""
