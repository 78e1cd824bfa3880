"""All plans for a nest, the cheapest first, and those of them that are worth measuring.

Each kind of kernel is a file with a function ``plans``. For a nest it yields every plan that it has to offer,
complete and with a cost, or none; :data:`KINDS` lists these functions. So adding a kind is writing a file.
Where only the cheapest is asked for, it may leave out what is too dear already (:attr:`.Facts.hopeless`).

A plan is told from the others for its nest by *words* (:attr:`~.plan.Plan.words`): the kernel, and what else
there was to choose. A few of them are a *wish*, the way in which a reorder is asked for another plan than the
cheapest by estimate: each of its nests gets the cheapest one that has all these words, if there is any.

>>> from relayout.layout.descriptor import MemoryDesc
>>> from relayout.kernels.copy.problem import moves
>>> found = moves(*(MemoryDesc((2, 64, 56, 56), "f32", format) for format in ("nchw", "nhwc")))
>>> from relayout.targets.machine import machine
>>> for wish in ("estimate", "staged, 32 rows"):
...     print([plan.words[:3] for plan in lowered(found, wish, machine("x86-64-v3"))])
[('transpose', 'direct', '64 rows')]
[('staged', 'staged', '32 rows')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from relayout.kernels.copy import (
    ESTIMATE,
    apart,
    blocks,
    deinterleave,
    elements,
    interleave,
    lines,
    packing,
    padded,
    patches,
    regroup,
    rows,
    squares,
    tiling,
    together,
    words,
)
from relayout.kernels.copy.plan import LINE_BITS, Facts, Plan
from relayout.kernels.copy.problem import Move, order, simplified
from relayout.loops.nest import Loop, split
from relayout.targets.machine import Machine, host

__all__ = ["KINDS", "candidates", "cheapest", "cost", "lowered", "wishes"]

KINDS: list[Callable[[Move, Facts], Iterator[Plan]]] = [
    *(
        lines.plans,
        rows.plans,
        blocks.plans,
        padded.plans,
        deinterleave.plans,
        interleave.plans,
        packing.plans,
        words.plans,
    ),
    *(apart.plans, together.plans, regroup.plans, tiling.plans, patches.plans, squares.plans, elements.plans),
]
"""What offers plans for a nest; where costs are equal, the first."""

WORTH = 4.0  # times the least cost: plans that cost more are not measured
MEMORY_CYCLES = 8.0  # cycles to fetch and to write a line, beside which the difference in costs is seen
LONGEST_FILL_BYTES = 1024  # of a row and the zeros behind it that are written together


def candidates(nest: Move, machine: Machine | None = None, streaming: bool = False) -> list[Plan]:
    """All plans for a nest, the cheapest first; none where kernels can't take its 4-bit elements."""
    facts = Facts(machine or host(), streaming, partial(_best, machine=machine))
    offered = chain.from_iterable(plans(nest, facts) for plans in KINDS)
    return sorted((plan for plan in offered if plan.is_feasible), key=lambda plan: plan.cost)


def cheapest(nest: Move, machine: Machine | None = None, streaming: bool = False) -> list[Plan]:
    """The first of all plans, in a third of the time: those that can't be it are not made."""
    best: list[Plan] = []

    def hopeless(cost: float) -> bool:
        return bool(best) and cost >= best[0].cost

    facts = Facts(machine or host(), streaming, partial(_best, machine=machine), hopeless)
    for plans in KINDS:
        for plan in plans(nest, facts):
            if not hopeless(plan.cost) and plan.is_feasible:
                best[:] = [plan]
    return best


def _best(nest: Move, machine: Machine | None) -> Plan:
    (plan,) = cheapest(nest, machine)
    return plan


def lowered(
    found: Sequence[Move], wish: str = ESTIMATE, machine: Machine | None = None, streaming: bool = False
) -> tuple[Plan, ...] | None:
    """The plans of nests, zeros and leftovers as nests of their own where need be; None: NumPy does it."""
    offered = _offered(found, machine, streaming, cheapest if wish == ESTIMATE else candidates)
    return None if offered is None else _chosen(offered, wish)


def wishes(
    found: Sequence[Move],
    machine: Machine | None = None,
    streaming: bool = False,
    tried: bool | None = None,
) -> dict[tuple[Plan, ...], str]:
    """What is worth measuring, the estimate first: plans, and the wish that they are.

    For every word, the cheapest plans that have it, of every kind, through the caches and around them: so
    each way to do something takes part in the contest, together with what suits it best.

    Not around the caches, though, where tensors fit them (``tried`` is false, or it is not given, and
    ``streaming``, what the estimate prefers, is): a contest would not see what that costs whoever reads the
    destination next. Where some do and some do not, those that do as the estimate does come first, and then
    those that do half of it: in a contest, whatever follows one that writes around the caches finds them
    empty, and that should be few.
    """
    offered = _offered(found, machine, streaming)
    if offered is None:
        return {}
    first = _chosen(offered, ESTIMATE)
    known, most = {first: ESTIMATE}, WORTH * cost(first)
    words = dict.fromkeys(word for some in offered for plan in some for word in plan.words)
    kinds = dict.fromkeys(plan.kind for some in offered for plan in some)
    tried = streaming if tried is None else tried
    ways = (*kinds, "cached", "streamed")
    for wish in (*words, *(f"{word}, {way}" for way in ways for word in words if word != way)):
        made = _chosen(offered, wish)
        if cost(made) <= most and (tried or not _stores(made)):
            known.setdefault(made, wish)
    usual = _stores(first)
    return dict(sorted(known.items(), key=lambda entry: abs(_stores(entry[0]) - usual)))


def _stores(plans: Sequence[Plan]) -> int:
    return max(plan.stores for plan in plans)


def cost(plans: Sequence[Plan]) -> float:
    """The cost of all nests, each by its size, at the pace of memory."""
    return sum((MEMORY_CYCLES + plan.cost) * plan.nest.bytes for plan in plans)


def _chosen(offered: Sequence[Sequence[Plan]], wish: str) -> tuple[Plan, ...]:
    wanted = {*wish.split(", ")}
    return tuple(next((plan for plan in some if wanted <= {*plan.words}), some[0]) for some in offered)


def _offered(
    found: Sequence[Move],
    machine: Machine | None,
    streaming: bool,
    offer: Callable[[Move, Machine | None, bool], list[Plan]] = candidates,
) -> list[list[Plan]] | None:
    """The candidates, or the first of them, of each nest that is left after cutting; None: one has none."""
    offered: list[list[Plan]] = []
    for nest in found:
        for part in _separable(nest, machine):
            small = simplified(part)
            offered += _even(small, machine, streaming) if small.adds else [offer(small, machine, streaming)]
    return offered if all(offered) else None


def _separable(nest: Move, machine: Machine | None) -> tuple[Move, ...]:
    """A nest whose zeros can't be written together with its data as two: the data, and the zeros."""
    if not nest.fill:
        return (nest,)
    made = cheapest(simplified(nest), machine)
    # Tiles with zeros in them are written out one by one.
    short = bool(made) and made[0].total * nest.write <= 8 * LONGEST_FILL_BYTES
    return (nest,) if short and not nest.adds else nest.apart()


def _even(nest: Move, machine: Machine | None, streaming: bool) -> Iterator[list[Plan]]:
    """The candidates of a nest that adds to the destination, of all of its parts where it has to be cut.

    Tails are done by stepping back, and what is written twice must not be added twice. So such a nest
    is cut until the cheapest plans have no tails, and those that have some are left out.
    """
    offered = candidates(nest, machine, streaming)
    for loop in offered[0].even if offered else ():
        whole = _whole(nest, loop)
        if loop in nest.loops and whole != loop.extent:
            for half in split(nest, loop, whole):
                yield from _even(order(half), machine, streaming)
            return
    yield [plan for plan in offered if all(_whole(nest, loop) == loop.extent for loop in plan.even)]


def _whole(nest: Move, loop: Loop) -> int:
    """The turns of a loop that fill tiles or vectors of any kernel."""
    even = LINE_BITS // max(8, min(nest.read, nest.write))
    while even > loop.extent:
        even //= 2
    return loop.extent // even * even
