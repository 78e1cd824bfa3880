"""The schedules of a sum of products that are worth measuring, each with its cost.

A candidate is a direct plan, loops around the tile (:mod:`.direct`), cut into tiles and tasks in any of some
hundred ways, a depthwise plan (:mod:`.depthwise`), one that reads weights as they lie for few rows
(:mod:`.gemv`), one that multiplies magnitudes of bytes (:mod:`.signs`), or one that multiplies transformed
numbers (:mod:`.winograd`). The model (:mod:`.cost`) puts them in order. The first is the estimate. The others
come near it, differ from it in more than a detail, and add up their sums in the same order, so that all give
the same bits.

Transformed bytes give the bits of all others, and are candidates like them. Transformed real numbers don't:
they are candidates among themselves, where a problem asks for them. Where it leaves the choice (``auto``),
that is made by estimates for one thread, so that neither a measurement nor the number of threads changes a
bit of a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from math import inf
from operator import itemgetter
from typing import NamedTuple

from relayout.forking import lock
from relayout.kernels.conv.arithmetic import dots_of
from relayout.kernels.conv.cost import Facts, Model, facts_of
from relayout.kernels.conv.depthwise import Depthwise, depthwise
from relayout.kernels.conv.depthwise import cycles as alone_of
from relayout.kernels.conv.depthwise_bytes import depthwise_bytes
from relayout.kernels.conv.direct import Cut, Direct
from relayout.kernels.conv.gemv import Gemv, gemv
from relayout.kernels.conv.planning import Problem, nests, with_loops
from relayout.kernels.conv.signs import Signs, signs
from relayout.kernels.conv.signs import cycles as signs_of
from relayout.kernels.conv.winograd import Winograd, winograd
from relayout.kernels.conv.winograd import cycles as transformed_of
from relayout.targets.machine import Machine

__all__ = ["Candidate", "Plan", "Problem", "candidates", "cheapest"]

Plan = Direct | Depthwise | Gemv | Signs | Winograd
_Way = Callable[[Problem, Machine, int, Facts], Iterable[tuple[Depthwise | Gemv, float]]]

MOST_CANDIDATES = 6  # schedules that are measured
MOST_ALIKE = 3  # of these with the same tiles, cut into other tasks
COST_LIMIT = 1.3  # estimated cost over the lowest: above that a schedule is not measured


class Candidate(NamedTuple):
    """A plan, and about how many seconds it takes."""

    cost: float
    plan: Plan

    def __str__(self) -> str:
        return str(self.plan)


def candidates(
    problem: Problem, machine: Machine, threads: int, facts: Facts | None = None
) -> tuple[Candidate, ...]:
    """The best few plans, cheapest first; none where there is no kernel.

    Examples
    --------
    >>> from relayout.kernels.conv.arithmetic import FLOATS
    >>> from relayout.kernels.conv.geometry import Geometry
    >>> from relayout.layout.descriptor import MemoryDesc
    >>> from relayout.targets.machine import machine
    >>> sizes = [(1, 28, 28), (1, 28, 28), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1)]
    >>> dims, filters = (1, 64, 28, 28), (64, 64, 3, 3)
    >>> src, weights = MemoryDesc(dims, "f32", "nChw16c"), MemoryDesc(filters, "f32", "Ohwi16o")
    >>> problem = Problem(src, weights, src, Geometry(1, 1, 64, 64, *sizes), FLOATS, False)
    >>> found = candidates(problem, machine("x86-64-v4"), 2)
    >>> 1 < len(found) <= MOST_CANDIDATES, len({str(one) for one in found}) == len(found)
    (True, True)
    """
    facts = facts_of(machine) if facts is None else facts
    narrow, models = _plans(problem, machine, threads, facts)
    found: list[tuple[float, Plan, Cut | None]] = []
    found += [(cycles, plan, None) for cycles, plan in narrow]
    priced = [(model.nest, model.costs(threads)) for model in models]
    if not (found or priced):
        return ()
    least = min([one[0] for one in found] + [cycles for _, costs in priced for cycles, _ in costs])
    limit = COST_LIMIT * least
    found += [(cycles, nest, Cut(*cut)) for nest, costs in priced for cycles, cut in costs if cycles <= limit]
    ranked = sorted(found, key=itemgetter(0))
    chosen: dict[str, Candidate] = {}
    tiles: Counter[object] = Counter()
    for cycles, plan, cut in ranked:
        if cycles > limit or len(chosen) == MOST_CANDIDATES:
            break
        family = id(plan), cut and cut.block
        if tiles[family] < MOST_ALIKE:
            one = _candidate(cycles, plan, cut, facts)
            if chosen.setdefault(str(one.plan), one) is one:
                tiles[family] += 1
    return tuple(chosen.values())


def cheapest(
    problem: Problem, machine: Machine, threads: int, facts: Facts | None = None
) -> Candidate | None:
    """The first of :func:`candidates`, which is all that planning a network asks for; None: there is none."""
    facts = facts_of(machine) if facts is None else facts
    narrow, models = _plans(problem, machine, threads, facts)
    best: tuple[float, Plan, Cut | None] | None = None
    for cycles, plan in narrow:
        if best is None or cycles < best[0]:
            best = cycles, plan, None
    for model in models:
        if best is not None and model.bound(threads) >= best[0]:
            continue
        cycles, cut = model.least(threads)
        if best is None or cycles < best[0]:
            best = cycles, model.nest, Cut(*cut)
    if best is None:
        return None
    return _candidate(*best, facts)


def _candidate(cycles: float, plan: Plan, cut: Cut | None, facts: Facts) -> Candidate:
    """A plan, cut into its tasks, with its seconds."""
    made = with_loops(plan, cut) if isinstance(plan, Direct) and cut is not None else plan
    return Candidate(cycles / facts.clock, made)


def _plans(
    problem: Problem, machine: Machine, threads: int, facts: Facts
) -> tuple[list[tuple[float, Plan]], list[Model]]:
    """The plans that add up their sums in the order of the best one: with their cycles, or not yet cut."""
    packing = 0.0 if problem.given is None else problem.weights.nbytes / facts.copy
    ways: tuple[_Way, ...] = depthwise_bytes, depthwise, gemv
    narrow = [
        (cycles + packing, plan) for way in ways for plan, cycles in way(problem, machine, threads, facts)
    ]
    # Cycles of one thread, and the order in which that adds up.
    least: tuple[float, tuple[object, ...]] | None = None
    if narrow:  # of the first way that has plans: where a later one has some, too, it takes longer
        plan = narrow[0][1]
        least = _alone(plan, problem, facts) + packing, plan.order
    models: list[tuple[Model, tuple[object, ...]]] = []
    for nest in chain.from_iterable(nests(one, machine, threads) for one in _ways(problem, machine)):
        model = (_of_matrices() if nest.arithmetic.tiles else Model)(nest, facts)
        if not model.fits:
            continue
        order = nest.order
        models.append((model, order))
        if least is None or model.bound(1) < least[0]:
            cycles = model.alone()
            if least is None or cycles < least[0]:
                least = cycles, order
    if least is None:
        return [], []
    order = least[1]  # the same for all numbers of threads
    if problem.algorithm != "direct" and order != ():
        alone = list(winograd(problem, machine, 1, facts))
        promised = min((transformed_of(one, 1, facts) + packing for one in alone), default=inf)
        if problem.algorithm == "winograd" or promised < facts.transformed * least[0]:
            transformed = alone if threads == 1 else winograd(problem, machine, threads, facts)
            return [(transformed_of(one, threads, facts) + packing, one) for one in transformed], []
    found: list[tuple[float, Plan]] = [one for one in narrow if one[1].order == order]
    if order == ():
        found += [
            (transformed_of(one, threads, facts), one) for one in winograd(problem, machine, threads, facts)
        ]
        found += [(signs_of(one, threads, facts), one) for one in signs(problem, machine, threads)]
    if problem.algorithm == "winograd":
        return [one for one in found if isinstance(one[1], Winograd)], []
    return found, [model for model, own in models if own == order]


def _alone(plan: Depthwise | Gemv, problem: Problem, facts: Facts) -> float:
    """Cycles of a plan that is no direct one on one thread."""
    if isinstance(plan, Gemv):
        return plan.cycles(problem.weights.nbytes, 1, facts)
    return alone_of(plan, problem.src.nbytes + problem.dst.nbytes, 1, facts)


def _of_matrices() -> type[Model]:
    """What tiles of AMX cost, which few processors have."""
    with lock():
        from relayout.kernels.conv.amx_cost import AmxModel
    return AmxModel


def _ways(problem: Problem, machine: Machine) -> list[Problem]:
    """The problem, and the same by the processor's other instructions."""
    others = dots_of(problem.src.dtype, problem.weights.dtype, problem.geometry, machine, problem.zeros)
    return [problem, *(problem._replace(arithmetic=how) for how in others if how != problem.arithmetic)]
