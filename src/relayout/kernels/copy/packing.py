"""What becomes narrower and changes its format, in two steps with a buffer between them: ``converted``.

Nine taps of a filter are a short run. A transpose that takes such runs one by one converts nine values at a
time, each run with operands of its own; but the taps of all inputs of an output follow each other, and they
have one scale. So values are converted in one step and moved in the other, with a buffer in the L1 cache
between them that holds values of the narrower type::

    f32 oihw      16 x 144 floats   -> converted, whole vectors ->   16 x 144 bytes
    the buffer    16 x 144 bytes    -> transposed              ->    s8 OIhw4i16o4i, whole lines

The rows of a piece are far apart, and short: a processor that fetches what follows has hardly begun when a
row ends, and comes back to it only after all others. So each row may ask for that part of itself that the
next piece will want, and pieces may be longer. Or rows are read as a whole, through a buffer in the L2 cache:
then the processor sees them. That pays for long runs, too: f32 `nchw` to s8 `nhwc` are rows of floats that
become rows of bytes, and a transpose of bytes, which is four times as small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from relayout.kernels.copy.base import Kernel, Place, writer, writes
from relayout.kernels.copy.cost import PASS_CYCLES, converting
from relayout.kernels.copy.plan import (
    LANE_BITS,
    LINE_BITS,
    SHARED_BYTES,
    UNUSUAL_CYCLES,
    Facts,
    Plan,
    Run,
    costing,
    part_of,
    rest_of,
    runs,
    shared_of,
    waiting,
)
from relayout.kernels.copy.problem import Move, simplified
from relayout.kernels.copy.rows import Rows
from relayout.loops.nest import Loop
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Converted", "ConvertedPlan", "plans"]

STEP_BUFFER_BITS = 8 * (8 << 10)  # of the buffer between the two steps
LONG_BUFFER_BITS = 8 * (20 << 10)  # of one where rows ask for what follows them
WHOLE_SHARE = 4  # of the L2 cache that a buffer for whole rows may take, one in so many
WIDE = 4  # times as wide as the destination: what is worth a pass through a buffer on any processor
MANY_PLANES = 16  # that are more streams than a processor sees
FEW_SHARES = 1.25  # times what equal shares take: so long nobody should wait for the last of them
CODE = "looped", "unrolled"  # words for how much code there is


@dataclass(frozen=True)
class ConvertedPlan(Plan):
    """Two kernels with a buffer between them."""

    kind = "converted"
    steps: tuple[Plan, ...] = ()
    """What is done one after the other; both are whole, nobody shares them."""
    asks: bool = False
    """Whether rows are asked for before they are wanted."""
    long: bool = False
    """Whether the buffer is in the L2 cache, so that rows are read from end to end, or nearly so."""

    def described(self) -> Iterator[str]:
        """Both steps."""
        yield f"{self.between // self.mid} elements at a time: {'; '.join(map(str, self.steps))}"

    def choices(self) -> Iterator[str]:
        """Whether it asks for rows; and what its steps have to choose that is about their code."""
        yield "prefetched" if self.asks else "not prefetched"
        if self.long:
            yield "long rows"
        yield from (word for step in self.steps for word in step.choices() if word in CODE)

    def conversion(self) -> Iterator[str]:
        """That is said of the steps."""
        return iter(())

    @property
    def between(self) -> int:
        """Bits of the buffer between the steps."""
        return 8 * self.steps[0].nest.bytes

    def completes(self, machine: Machine) -> bool:
        """Whether the second step does."""
        return self.steps[-1].streams(machine)


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Runs that become narrower by so much that it pays to convert long ones.

    To half of the width that is with AVX2 alone; elsewhere f32 to bf16 gained nothing.
    """
    avx2 = facts.machine.is_avx2  # where the others were measured
    short = _made(nest, facts, STEP_BUFFER_BITS)
    asking = _made(nest, facts, LONG_BUFFER_BITS, asks=True)
    long = _made(nest, facts, 8 * facts.machine.l2 // WHOLE_SHARE, whole=True) if avx2 else None
    offered: list[tuple[ConvertedPlan | None, float]]
    if long is not None and short is None:
        offered = [(long, _more_of_planes(long, facts))]
    elif long is not None and short is not None and long.between > short.between:
        offered = [(long, 0), (asking, UNUSUAL_CYCLES), (short, 2 * UNUSUAL_CYCLES)]
    else:
        offered = [(short, UNUSUAL_CYCLES * avx2), (asking, UNUSUAL_CYCLES * (not avx2))]
    for made, more in offered:
        if made is None or more == math.inf:
            continue
        cost = made.steps[1].cost + PASS_CYCLES + converting(nest, LINE) + more
        yield from costing(made, facts, cost)
        if (longer := made.steps[1].at_length()) is not None:
            longest = replace(made, steps=(made.steps[0], longer))
            yield from costing(longest, facts, cost + UNUSUAL_CYCLES)


def _more_of_planes(made: ConvertedPlan, facts: Facts) -> float:
    """How much more it costs to convert runs that are long anyway; infinite: it is not worth trying.

    Sixteen planes side by side are many streams for a processor, and rows are read better from end to end
    than in tiles. So beyond the L2 cache that is worth a pass. But planes that are put together around the
    caches leave as fast as they come, and threads want something to share.
    """
    planes, far = made.steps[1].kind == "interleave", made.nest.bytes > facts.machine.l2
    alone = made.nest.bytes >= SHARED_BYTES and waiting(made.shared, made.unit) > FEW_SHARES
    if alone or (planes and facts.streaming):
        return math.inf
    if facts.streaming and made.nest.read < WIDE * made.nest.write:  # memory's, whatever is done
        return 2 * PASS_CYCLES
    pays = far and not (planes and made.steps[1].rows.extent < MANY_PLANES)
    return -PASS_CYCLES - UNUSUAL_CYCLES if pays else 0


def _made(
    nest: Move, facts: Facts, most: int, asks: bool = False, whole: bool = False
) -> ConvertedPlan | None:
    """The plan whose buffer has so many bits at most, if there is one; ``whole``: and one row of each."""
    inner, outer = runs(nest)
    bits = nest.write
    wide = nest.conversion is not None and bits >= 8 and nest.read >= (2 if whole else WIDE) * bits
    if not wide or inner is None or outer is None or inner is outer or nest.fill or nest.adds:
        return None
    if inner.extent >= LANE_BITS // 8 and not whole:
        return None
    ends = Run((inner,)), Run((outer,))
    line = _in_turn(nest, "dst", bits, LINE_BITS // bits)
    if whole and not line:  # nothing lies beside anything
        return None
    if whole:
        apart = max(abs(loop.src) for loop in line) // nest.read  # elements from row to row
        rows = math.prod(loop.extent for loop in line if abs(loop.src) == apart * nest.read)
        most = min(most, apart * rows * bits)
    run = _in_turn(nest, "src", nest.read, most // bits, line)
    others = [loop for loop in line if all(loop.steps != part.steps for part in run)]
    into, out, size = [], [], bits
    for loop in (*run, *sorted(others, key=lambda loop: abs(loop.src))):
        into.append(loop.stepping(dst=size))
        out.append(Loop(loop.extent, (size, loop.dst)))
        size *= loop.extent
    first = simplified(replace(nest, starts=(0,) * len(nest.starts), loops=tuple(into)))
    last = simplified(Move((0, 0), tuple(out), (bits, bits)))
    inner, outer = runs(first)
    if not run or inner is not outer:  # a source may have two runs, if it reads elements twice
        return None
    steps = tuple(replace(facts.cheapest(step), shared=None, stream=False) for step in (first, last))
    if steps[0].rows.extent < LANE_BITS // 8:
        return None
    around = nest.loops
    for part in (*run, *others):
        around = tuple(rest_of(loop, part) for loop in around)
    around = tuple(loop for loop in around if loop.extent > 1)
    follows = steps[0].rows.extent * nest.read
    if asks and not (steps[0].kind == "rows" and any(loop.src == follows for loop in around)):
        return None
    return ConvertedPlan(nest, *ends, around, shared_of(around), steps=steps, asks=asks, long=whole)


def _in_turn(nest: Move, side: str, bits: int, most: int, box: Sequence[Loop] = ()) -> list[Loop]:
    """Loops that follow each other on a side, or parts of them, of so many elements at most with a box.

    Those that are in the box already count once; there may be more of one here.
    """
    found: list[Loop] = []
    while True:
        step = bits * math.prod(loop.extent for loop in found)
        loop = next((loop for loop in nest.loops if getattr(loop, side) == step), None)
        if loop is None or any(x.steps == loop.steps for x in found):
            return found
        others = {x.steps: x.extent for x in (*box, *found) if x.steps != loop.steps}
        part = part_of(loop, most // math.prod(others.values()))
        if part.extent > 1:
            found.append(part)
        if part.extent < loop.extent:
            return found


@writes(ConvertedPlan)
class Converted(Kernel):
    """Two kernels, one after the other, with a buffer between them, a few KiB at a time."""

    plan: ConvertedPlan

    def prepare(self) -> None:
        """Make the buffer, and both kernels: parts of this one, they write where it writes."""
        convert, move = self.plan.steps
        self.between = self.b.alloca(self.plan.between // 8, LINE)
        self.convert = writer(convert, self.machine, False, f"{self.name}_convert")
        self.move = writer(move, self.machine, self.stream, f"{self.name}_move")
        self.convert._numbers = self._numbers
        if self.plan.asks and isinstance(self.convert, Rows):
            self.convert.asks = convert.rows.extent * convert.nest.read // 8
        for part in (self.convert, self.move):
            part.b, part.shared, part.routines = self.b, self.shared, self.routines
            part.prepare()

    def body(self, place: Place) -> None:
        """Both steps."""
        for part, at in (
            (self.convert, place._replace(dst=self.between)),
            (self.move, Place(self.between, place.dst)),
        ):
            part.whole(at)
