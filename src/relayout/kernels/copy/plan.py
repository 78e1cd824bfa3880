"""How a nest is moved: a kernel with all that is decided for it, as plain data that prints itself.

Every kind of kernel has a plan of its own, derived from :class:`Plan`, in its file. A plan is complete:
its kernel reads nothing else, and two plans that are equal are the same code. It also knows what it costs
(:attr:`Plan.cost`), so that several of them can be held against each other (:mod:`.candidates`).

Sizes and strides are bits, as in :mod:`.problem`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeVar

from relayout.kernels.copy.problem import Move
from relayout.loops.nest import Loop
from relayout.processors import count
from relayout.records import dataclass, field, replace
from relayout.targets.machine import LINE, Machine

__all__ = [
    *(
        "BUFFER_BITS",
        "DIVIDED",
        "JOINED_BITS",
        "LANE_BITS",
        "LINE_BITS",
        "LONG_ROW_BITS",
        "SHARED_BYTES",
        "UNUSUAL_CYCLES",
        "WAYS",
        "WHOLE",
        "WORD_BITS",
        "Facts",
        "Plan",
        "Run",
    ),
    *(
        "along",
        "costing",
        "in_lines",
        "left_of",
        "one_of",
        "outside",
        "part_of",
        "read_on",
        "rest_of",
        "runs",
        "shared_of",
        "waiting",
        "width_of",
    ),
]

LANE_BITS = 128  # of a lane: shuffles that stay within one are cheap on every processor
LINE_BITS = 8 * LINE
WORD_BITS = 32  # that bytes are widened to before they are converted to floats
OWNERSHIP_CYCLES = (
    8  # cycles to read a line from memory only to write it; or to write to memory what is read next
)
LONG_ROW_BITS = 1 << 18  # a row as long as that is shared by threads
UNUSUAL_CYCLES = 0.2  # cycles for a line by which the choice costs more that suits a processor less
WHOLE = 4  # quarters
SHARED_BYTES = 1 << 17  # from which on threads may share a reorder
DIVIDED = 4  # units of the shared loop, at least, of which some quarters may be written around the caches
WAYS = {0: "cached", 1: "a quarter streamed", 2: "half streamed", WHOLE: "streamed"}  # quarters around them
JOINED_BITS = 4 * LINE_BITS  # of the destination that short rows complete before their source is read on
BUFFER_BITS = 8 * (16 << 10)  # of a buffer from which whole lines leave: half of the smallest L1 cache


@dataclass(frozen=True)
class Run:
    """Elements that neighbour each other on one side: one loop, or several of which each continues the next.

    ``loops`` has the innermost first.
    """

    loops: tuple[Loop, ...]

    @property
    def extent(self) -> int:
        """Elements."""
        total = 1
        for loop in self.loops:
            total *= loop.extent
        return total

    @property
    def loop(self) -> Loop:
        """The only loop."""
        (loop,) = self.loops
        return loop

    @property
    def is_straight(self) -> bool:
        """Whether the run has one stride on the other side, too."""
        return len(self.loops) == 1

    def places(self, side: str) -> list[int]:
        """Where every element lies on a side, ``"src"`` or ``"dst"``, in bits."""
        found = [0]
        for loop in self.loops:
            stride: int = getattr(loop, side)
            found = [turn * stride + place for turn in range(loop.extent) for place in found]
        return found

    def strides(self, side: str) -> list[int]:
        """All strides on a side, in bits."""
        return [getattr(loop, side) for loop in self.loops]


class Facts(NamedTuple):
    """What a plan and its cost depend on besides the nest."""

    machine: Machine
    """What code is made for."""
    streaming: bool
    """Whether the tensors are so large that it pays to write around the caches."""
    cheapest: Callable[[Move], Plan]
    """The best plan of another nest: for kernels that are made of several."""
    hopeless: Callable[[float], bool] = lambda cost: False
    """Whether a plan that costs so much, or more, can't be the best, so that there is no need to make it."""


@dataclass(frozen=True)
class Plan:
    """How a nest is moved: the kernel, its loops, and the loop that threads share."""

    nest: Move
    columns: Run
    """I: contiguous in the source."""
    rows: Run
    """O: contiguous in the destination (for ``rows`` the same as I)."""
    around: tuple[Loop, ...]
    """The loops around, outermost first."""
    shared: Loop | None = None
    """The loop that threads share: one of ``around``, or I of a transpose; None: too small to share."""
    unit: int = 1
    """Where the shared loop may be cut: at multiples of this."""
    blocked: Loop | None = None
    """The loop that is worked through in blocks, around the others; None: no need."""
    outer: int = 0
    """So many of the loops around stay outside of the blocks: they step over all that these touch."""
    inside: int = -1
    """When streaming: what so many of the innermost loops write passes through a buffer; -1: nothing."""
    block: int = 64
    """Rows that are worked on together, of a transpose or of short ones in blocks."""
    stream: bool = False
    """Whether whole lines are written by streaming (non-temporal) stores, around the caches."""
    quarters: int = WHOLE
    """For how many quarters of the shared loop that holds; the caches hold what is written by the others."""
    claims: bool = False
    """Whether lines are asked for some time before they are written through the caches."""
    narrow: bool = False
    """Whether vectors are half a line at most, even if registers are wider."""
    cost: float = field(default=0.0, compare=False)
    """What is estimated, in cycles for a line of the destination: to be compared with other plans' only."""

    kind: ClassVar[str]
    """The word for its kernel."""
    can_claim: ClassVar[bool] = False
    """Whether its kernel is one that may ask for lines before it writes them."""
    puts_together: ClassVar[bool] = False
    """Whether its kernel puts vectors together from lanes, so that narrower ones may be faster."""

    def __str__(self) -> str:
        words = [self.kind, *self.described()]
        if self.nest.conversion is not None:
            words += self.conversion()
        if self.around:
            words.append("within " + " ".join(f"{loop.extent}x" for loop in self.around))
        if self.shared is not None:
            words.append(f"threads share {self.shared.extent}x")
        return ", ".join(words)

    def described(self) -> Iterator[str]:
        """What the innermost part does, in words."""
        return iter(())

    def conversion(self) -> Iterator[str]:
        """Where values are converted, in words."""
        yield f"moved as u{self.mid}, converted {'before stores' if self.late else 'behind loads'}"

    @property
    def words(self) -> tuple[str, ...]:
        """What there was to choose, a word for each: other candidates for the nest differ in one at least."""
        claim = ("claimed" if self.claims else "unclaimed",) if self.can_claim and not self.stream else ()
        width = ("narrow" if self.narrow else "wide",) if self.puts_together else ()
        return self.kind, *self.choices(), WAYS[self.stores], *claim, *width

    def choices(self) -> Iterator[str]:
        """The words that only this kind of kernel has."""
        return iter(())

    @property
    def stores(self) -> int:
        """In which of the :data:`WAYS` lines are written: how many quarters of them around the caches."""
        return self.quarters if self.stream else 0

    @property
    def extent(self) -> int:
        """Turns of the shared loop."""
        return self.shared.extent if self.shared is not None else 1

    @property
    def total(self) -> int:
        """Elements of a row of the destination, zeros included."""
        return self.rows.extent + self.nest.fill

    @property
    def late(self) -> bool:
        """Whether values are converted before stores rather than behind loads."""
        what = self.nest.conversion
        return what is not None and (what.accumulates or self.widens)

    @property
    def widens(self) -> bool:
        """Whether values are moved about as they are in the source, because that takes fewer bits."""
        return self.nest.read <= self.nest.write

    @property
    def mid(self) -> int:
        """Bits of an element while it is moved about in registers."""
        return max(8, self.nest.read if self.late else self.nest.write)

    @property
    def footprint(self) -> int:
        """Bits of the destination that the loops :attr:`inside` (or the body alone) write side by side."""
        total = self.piece
        for loop in self.around[len(self.around) - max(self.inside, 0) :]:
            total *= loop.extent
        return total

    @property
    def piece(self) -> int:
        """Bits of the destination that the body writes side by side."""
        return self.total * self.nest.write

    def streams(self, machine: Machine) -> bool:
        """Whether the kernel completes whole lines of the destination, if that begins on a line."""
        nest = self.nest
        outside = self.around[: len(self.around) - max(self.inside, 0)]
        if nest.adds or nest.dst % LINE_BITS or any(loop.dst % LINE_BITS for loop in outside):
            return False
        return self.inside >= 0 or self.completes(machine)

    def completes(self, machine: Machine) -> bool:
        """Whether the body completes whole lines, wherever the loops around step by whole ones."""
        return False

    def can_narrow(self, machine: Machine) -> bool:
        """Whether narrow vectors are worth trying: not where values are converted, which takes wide ones."""
        return self.puts_together and machine.vector == LINE and self.nest.conversion is None

    def narrows(self, machine: Machine) -> bool:
        """Whether narrow vectors are estimated to be faster."""
        return machine.halves and self.can_narrow(machine)

    def at_length(self) -> Plan | None:
        """The same with more code, which runs faster and takes longer to compile; None: there is none."""
        return None

    @property
    def even(self) -> tuple[Loop, ...]:
        """The loops whose tails are done by stepping back: they must divide evenly where values are added."""
        return ()

    @property
    def halves(self) -> tuple[tuple[int, Run, str, int], ...]:
        """The runs that 4-bit elements are taken from in pairs: bits, run, side, zeros; none: one by one."""
        return ()

    @property
    def is_feasible(self) -> bool:
        """Whether all addresses are whole bytes: 4-bit elements are taken in pairs."""
        nest = self.nest
        if nest.pair and any(bits % 8 for bits in (nest.src, nest.pair, *(loop.src for loop in nest.loops))):
            return False
        if min(nest.read, nest.write) >= 8 or not self.halves:
            return min(nest.read, nest.write) >= 8
        for bits, run, side, more in self.halves:
            if bits >= 8 or (side == "src" and nest.zero):
                continue
            strides = [getattr(loop, side) for loop in nest.loops if loop not in run.loops]
            contiguous = run.is_straight and getattr(run.loop, side) == bits
            odd = (run.extent + more) % 2 or (self.columns is self.rows and run.extent % 2)
            if not contiguous or odd or getattr(nest, side) % 8 or any(stride % 8 for stride in strides):
                return False
        return True


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def costing(made: AnyPlan, facts: Facts, cost: float) -> Iterator[AnyPlan]:
    """A plan with its cost: through the caches and, where it completes whole lines, around them, or half so.

    Where the kernel can, also with vectors of another width than suits the processor; and through the caches
    with lines that are asked for, or without.
    """
    if facts.hopeless(cost):
        return
    machine = facts.machine
    halved, claimed = made.narrows(machine), made.can_claim and machine.claims
    for narrow in (halved, not halved)[: 1 + made.can_narrow(machine)]:
        vectors = width_of(machine, narrow)
        for stores in _ways(made, vectors):
            stream = stores > 0
            for claims in (claimed, not claimed)[: 1 + (made.can_claim and not stream)]:
                unusual = (narrow != halved) + (claims != claimed)
                away = abs(stores - WHOLE * facts.streaming) / WHOLE
                whole = cost + OWNERSHIP_CYCLES * away + UNUSUAL_CYCLES * unusual
                if not facts.hopeless(whole):
                    yield replace(
                        made,
                        stream=stream,
                        quarters=stores or WHOLE,
                        claims=claims and not stream,
                        narrow=narrow,
                        cost=whole,
                    )


def _ways(made: Plan, machine: Machine) -> tuple[int, ...]:
    """The :data:`WAYS` in which a plan may write."""
    if not made.streams(machine):
        return (0,)
    return tuple(WAYS) if made.extent >= DIVIDED * made.unit else (0, WHOLE)


def width_of(machine: Machine, narrow: bool) -> Machine:
    """The processor with vectors of half a line at most, or as it is."""
    return machine._replace(vector=min(machine.vector, LINE // 2)) if narrow else machine


def along(nest: Move, run: Run) -> list[int]:
    """The strides of a run in the tables of operands."""
    return [stride for loop in run.loops for stride in loop.tables]


def runs(nest: Move) -> tuple[Loop | None, Loop | None]:
    """The loops that walk through neighbouring elements of the source (I), and of the destination (O)."""
    inner = next((loop for loop in nest.loops if loop.src == nest.read and not nest.zero), None)
    return inner, next((loop for loop in nest.loops if loop.dst == nest.write), None)


def one_of(nest: Move) -> Run:
    """A run of a single element."""
    return Run((Loop(1, (0,) * len(nest.widths)).stepping(nest.read, nest.write),))


# -- which loop threads share, and what is left around ------------------------------------------------------


def shared_of(around: Sequence[Loop]) -> Loop | None:
    """The loop that threads share: the outermost with turns enough for all, else that of most equal shares.

    All nests of a reorder are then cut alike, and no two threads write to one line.
    """
    enough = 4 * count()
    outer = next((loop for loop in around if loop.extent >= enough), None)
    return outer or min(around, key=lambda loop: waiting(loop, 1), default=None)


def waiting(loop: Loop | None, unit: int) -> float:
    """How much longer than with equal shares it takes to share a loop, cut at multiples of a unit."""
    threads = count()
    units = -(-loop.extent // unit) if loop is not None else 1
    return -(-units // threads) * threads / units


def rest_of(loop: Loop, part: Loop) -> Loop:
    """What is left around of a loop whose inner ``part`` a run has taken."""
    if loop.steps != part.steps or loop.extent % part.extent:
        return loop
    return loop.outside(part.extent)


def left_of(nest: Move, *taken: Run) -> tuple[Loop, ...]:
    """The loops around runs: those that they have not taken, or what is left of them."""
    left = list(nest.loops)
    for part in dict.fromkeys(loop for run in taken for loop in run.loops):
        if part in left:
            left.remove(part)
        else:
            left = [rest_of(loop, part) for loop in left]
    return tuple(left)


def part_of(loop: Loop, most: int) -> Loop:
    """The innermost turns of a loop, as many of them as divide it."""
    return loop.taking(next(n for n in range(max(1, min(most, loop.extent)), 0, -1) if not loop.extent % n))


def outside(around: Sequence[Loop], inside: Sequence[Loop]) -> int:
    """How many loops around step over all that the ones behind and those ``inside`` touch, on both sides."""
    for k in range(len(around), 0, -1):
        loop = around[k - 1]
        rest = (*around[k:], *inside)
        spans = [sum(abs(getattr(x, side)) * (x.extent - 1) for x in rest) for side in ("src", "dst")]
        if abs(loop.src) > spans[0] and abs(loop.dst) > spans[1]:
            return k
    return 0


def in_lines(made: AnyPlan) -> AnyPlan:
    """A plan whose innermost loops write a dense piece of the destination, which leaves in whole lines."""
    around = list(made.around)
    size, inside = made.footprint, 0
    while around[: len(around) - inside]:
        at = len(around) - inside - 1
        loop = around[at]
        if loop.dst != size:
            break
        enough = next(
            (n for n in range(min(BUFFER_BITS // size, loop.extent), 1, -1) if not loop.extent % n), 0
        )
        if not enough:
            break
        inside, size = inside + 1, size * enough
        if enough != loop.extent:
            around[at : at + 1] = [loop.outside(enough), loop.taking(enough)]
            break
    outer = around[: len(around) - inside]
    whole = not any(bits % LINE_BITS for bits in (size, made.nest.dst, *(loop.dst for loop in outer)))
    if not whole or size > BUFFER_BITS:
        return made
    shared = shared_of(outer)
    if made.shared is not None and (shared is None or shared.extent < min(made.shared.extent, 8)):
        return made
    return replace(made, around=tuple(around), shared=shared, inside=inside)


def read_on(made: AnyPlan) -> AnyPlan:
    """A plan for short rows with the loop that reads on in the source nearly innermost.

    A line of each row is used up at once, then those of the rows that follow in the destination, until that
    has some lines in one place. Only then the same rows are read on. Where a turn does not even complete a
    line, the turns that do come first.
    """
    nest, around, size = made.nest, list(made.around), made.footprint
    on = next((loop for loop in around if loop.src == made.columns.extent * nest.read), None)
    meets = next((loop for loop in around if loop.dst == size), None)
    if on is None or on is meets:
        return made
    whole = size % LINE_BITS == 0
    line = part_of(on, LINE_BITS // on.src) if whole else None
    lines = part_of(meets, (JOINED_BITS if whole else LINE_BITS) // size) if meets is not None else None
    if not whole and (lines is None or lines.extent * size % LINE_BITS):
        return made
    around = [rest_of(loop, lines) if loop is meets and lines else loop for loop in around if loop is not on]
    rest = on if line is None else rest_of(on, line)
    around = [loop for loop in (*around, rest, lines, line) if loop is not None and loop.extent > 1]
    return replace(made, around=tuple(around), shared=shared_of(around))
