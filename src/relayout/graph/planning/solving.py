"""From a problem to its best plan, or to the reason why there is none.

The steps, each of which stands in a module of its own::

    problem  ->  tables of two variables  ->  least sum  ->  choices  ->  plan
              model                      elimination    values    baselines.evaluate

1. The problem becomes tables: what an operation costs with each of its options, and what the conversions cost
   between the options of two (:mod:`~.model`).
2. :mod:`~.elimination` finds the least sum exactly. Nearly all networks end here.
3. Where its tables would be too large, options that no best plan needs are left out (:mod:`~.dominance`); if
   that is not enough, :mod:`~.search` finds a good answer, and a bound that no plan undercuts.
4. The choices are evaluated as a plan. If that costs what the bound says it is proven to be best; if not, the
   baselines compete with it, so that no plan is worse than theirs.

That there is no plan is proven in the same way. The message then names the first operation with which it is
so: possible for some number of operations, and not for one more, so bisection finds it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from relayout.graph.planning.baselines import greedy, uniform
from relayout.graph.planning.dominance import needed
from relayout.graph.planning.elimination import eliminate
from relayout.graph.planning.model import build
from relayout.graph.planning.problem import Infeasible
from relayout.graph.planning.search import SAME, search
from relayout.graph.planning.solution import evaluate, listed
from relayout.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayout.graph.planning.problem import Format, Operation, Problem
    from relayout.graph.planning.solution import Solution

T = TypeVar("T")

__all__ = ["LIMIT", "solve"]

LIMIT = 1 << 22
"""The most entries of one sum of tables: 32 MB. Networks need a hundredth, a U-Net++ the half."""


def solve(problem: Problem, limit: int = LIMIT) -> Solution:
    """The plan that costs least.

    Parameters
    ----------
    problem : Problem
    limit : int, optional
        The most entries of a table. Problems that need larger ones get a good plan and a bound.

    Returns
    -------
    Solution
        `exact` says whether it is proven that no plan costs less; if it is not, `gap` says how much less one
        could cost. A plan never costs more than :func:`greedy` and :func:`uniform` ones.

    Raises
    ------
    Infeasible
        Where no choice of options is possible; the message names an operation and a value.
    """
    model = build(problem)
    left = eliminate(model.sizes, model.tables, limit)
    if left.rest and math.isfinite(left.constant):
        model = build(problem, needed(problem))
        left = eliminate(model.sizes, model.tables, limit)
    bound = model.constant + left.constant
    values: dict[int, int] = {}
    if left.rest and math.isfinite(bound):
        found = search(model.sizes, left.rest, max(limit >> 5, 2))
        bound += found.bound
        values = found.values
    if math.isinf(bound):
        raise _reason(problem)
    values = left.values(values)
    choices = model.choices([values.get(variable, 0) for variable in range(len(model.sizes))])
    # The least cost of the model is a bound whatever it left out: a plan that costs the same is best.
    plans = _evaluated(problem, choices, bound)
    if not plans or not plans[0].exact:
        plans += _others(problem, bound)
    if not plans:
        raise Infeasible(
            f"no plan was found for {len(problem.operations)} operations, nor a proof that there is none: "
            "too many formats and readers depend on each other"
        )
    return min(plans, key=lambda plan: plan.cost)


def _evaluated(problem: Problem, choices: Sequence[int], bound: float) -> list[Solution]:
    """The plan, if there is one: where the model is relaxed it may choose what is not possible."""
    try:
        plan = evaluate(problem, choices, bound)
    except Infeasible:
        return []
    if plan.cost <= bound + SAME * (abs(plan.cost) + abs(bound)):
        return [replace(plan, bound=plan.cost, exact=True)]
    return [plan]


def _others(problem: Problem, bound: float) -> list[Solution]:
    """The plans of the baselines."""
    formats: dict[Format, None] = {}
    for use in problem.uses.values():
        formats |= dict.fromkeys(use.formats)
    plans = []
    for format in (None, *formats):
        try:
            plan = greedy(problem) if format is None else uniform(problem, format)
        except Infeasible:
            continue
        plans += _evaluated(problem, plan.choices, bound)
    return plans


def _reason(problem: Problem) -> Infeasible:
    """What makes a problem impossible: the first operation with which it is, and what it reads."""
    for operation in problem.operations:
        if not problem.possible(operation):
            forced = {v: problem.forced[v] for v in operation.inputs if v in problem.forced}
            alone = (v for v in forced if not problem.replaced(forced={v: forced[v]}).possible(operation))
            value = next(alone, next(iter(forced)))
            places = [i for i, name in enumerate(operation.inputs) if name == value]
            read = {option.inputs[place]: None for option in operation.options for place in places}
            return Infeasible(
                f"operation {operation.name!r} reads value {value!r} as {listed(read)}, "
                f"and that value is forced to {forced[value]}"
            )
    everything = len(problem.operations)
    names = [value for value in problem.uses if value in problem.pins]
    if names and _possible(_first(problem, everything, 0)):
        count = _least(len(names), lambda pins: not _possible(_first(problem, everything, pins)))
        return _told(problem, None, names[count - 1])
    count = _least(everything, lambda operations: not _possible(_first(problem, operations, 0)))
    operation = problem.operations[count - 1]
    for place, value in enumerate(operation.inputs):
        if _possible(_first(problem, count, 0, place)):
            return _told(problem, operation, value)
    if operation.inputs:
        return _told(problem, operation, operation.inputs[0])
    return Infeasible(f"no choice of formats is possible with operation {operation.name!r}")


def _least(high: int, holds: Callable[[int], bool]) -> int:
    """The least number for which something holds, if it holds for all larger ones; not for 0."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _first(problem: Problem, count: int, pins: int, without: int = -1) -> Problem:
    """The first operations and pins alone, the last operation perhaps without one of its inputs."""
    operations = list(problem.operations[:count])
    if without >= 0:
        last = operations[-1]
        options = tuple(replace(option, inputs=_but(option.inputs, without)) for option in last.options)
        operations[-1] = replace(last, inputs=_but(last.inputs, without), options=options)
    known = {*problem.sources, *(value for operation in operations for value in operation.outputs)}
    forced = {value: format for value, format in problem.forced.items() if value in known}
    pinned = [value for value in problem.uses if value in problem.pins][:pins]
    some = {value: problem.pins[value] for value in pinned}
    return problem.replaced(operations=tuple(operations), pins=some, forced=forced)


def _but(items: tuple[T, ...], place: int) -> tuple[T, ...]:
    return (*items[:place], *items[place + 1 :])


def _possible(problem: Problem) -> bool:
    """Whether there may be a plan: False is proven."""
    model = build(problem)
    if math.isinf(model.constant):
        return False
    left = eliminate(model.sizes, model.tables, LIMIT)
    if math.isinf(left.constant):
        return False
    return not left.rest or math.isfinite(search(model.sizes, left.rest, LIMIT >> 5).bound)


def _told(problem: Problem, operation: Operation | None, value: str) -> Infeasible:
    """The message: who wants the value how, and how it is written."""
    use = problem.uses[value]
    if use.writer is None:
        origin = f"it is given as {listed(use.given)}"
    else:
        index, place = use.writer
        writer = problem.operations[index]
        written = {writer.options[i].outputs[place]: None for i in problem.possible(writer)}
        origin = f"operation {writer.name!r} writes it as {listed(written)}"
    if operation is None:
        wanted = f"value {value!r} is pinned to {problem.pins[value]}"
    else:
        places = [i for i, name in enumerate(operation.inputs) if name == value]
        read = {operation.options[i].inputs[p]: None for i in problem.possible(operation) for p in places}
        wanted = f"operation {operation.name!r} reads value {value!r} as {listed(read)}"
    return Infeasible(
        f"no choice of formats is possible: {wanted}; {origin}, and conversions do not lead there"
    )
