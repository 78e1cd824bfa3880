"""What others do, for comparison: greedy propagation, and one format everywhere.

Both choose options only. The conversions that these need are found as for any plan, the cheapest ones, so a
baseline costs no more than it has to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayout.graph.planning.conversions import shortest
from relayout.graph.planning.problem import Infeasible
from relayout.graph.planning.solution import evaluate, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from relayout.graph.planning.problem import Format, Operation, Option, Problem
    from relayout.graph.planning.solution import Solution

__all__ = ["greedy", "uniform"]


def greedy(problem: Problem) -> Solution:
    """The plan of the propagation that the oneDNN specification describes.

    Operations that compute much (:attr:`Operation.intensive`) take the formats in which they are cheapest,
    whatever conversions cost. All others read each value as the operation before wrote it, and write what is
    cheapest then; where they can't, they take the option that costs least together with its conversions.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    Solution
        Not known to be best.

    Raises
    ------
    Infeasible
        Where an operation can't go on from what was chosen before it.

    References
    ----------
    oneAPI Deep Neural Network Library, specification: "Memory format propagation".
    """

    def rank(operation: Operation, option: Option, converted: float) -> tuple[float, ...]:
        if operation.intensive:
            return (option.cost, converted)
        return (float(converted > 0), converted + option.cost)

    return _propagated(problem, rank)


def uniform(problem: Problem, format: Format | Callable[[str], Format]) -> Solution:
    """The plan with one format everywhere where an operation has it.

    Where an operation has it for some of its values only, it is used for as many as possible.

    Parameters
    ----------
    problem : Problem
    format : format, or callable
        The format; or what tells it for a value, if it has another name for each rank.

    Returns
    -------
    Solution
        Not known to be best.

    Raises
    ------
    Infeasible
        Where an operation can't go on from what was chosen before it.
    """

    def rank(operation: Operation, option: Option, converted: float) -> tuple[float, ...]:
        values, formats = operation.inputs + operation.outputs, option.inputs + option.outputs
        others = sum(
            own != (format(value) if callable(format) else format)
            for value, own in zip(values, formats, strict=True)
        )
        return (others, converted + option.cost)

    return _propagated(problem, rank)


def _propagated(problem: Problem, rank: Callable[[Operation, Option, float], tuple[float, ...]]) -> Solution:
    """The plan that takes for each operation, in their order, the possible option that comes first.

    An option's rank may depend on what conversions from what is written cost, each by itself.
    """
    written: dict[str, tuple[Format, ...]] = {value: use.given for value, use in problem.uses.items()}
    lengths: dict[str, dict[tuple[Format, Format], float]] = {}

    def conversion(value: str, there: Iterable[Format], format: Format) -> float:
        if format in there:
            return 0.0
        if value not in lengths:
            lengths[value] = _lengths(problem, value)
        return min(lengths[value][src, format] for src in there)

    choices = []
    for operation in problem.operations:
        ranked = []
        for index in problem.possible(operation):
            option = operation.options[index]
            pairs = zip(operation.inputs, option.inputs, strict=True)
            converted = math.fsum(conversion(value, written[value], format) for value, format in pairs)
            after = [
                conversion(value, (format,), problem.pins[value])
                for value, format in zip(operation.outputs, option.outputs, strict=True)
                if value in problem.pins
            ]
            if math.isfinite(converted) and math.isfinite(sum(after)):
                ranked.append((rank(operation, option, converted), index))
        if not ranked:
            there = [f"{value!r} as {listed(written[value])}" for value in operation.inputs]
            raise Infeasible(
                f"operation {operation.name!r} can't go on from what was chosen before it: "
                f"{' and '.join(there)}"
            )
        choices.append(min(ranked)[1])
        for value, format in zip(operation.outputs, operation.options[choices[-1]].outputs, strict=True):
            written[value] = (format,)
    return evaluate(problem, choices)


def _lengths(problem: Problem, value: str) -> dict[tuple[Format, Format], float]:
    """What it costs to make one format of a value of another."""
    formats = problem.uses[value].formats
    direct = [[problem.conversion(value, src, dst) for dst in formats] for src in formats]
    path = shortest(direct)[0] if problem.through else direct
    return {(src, dst): path[i][j] for i, src in enumerate(formats) for j, dst in enumerate(formats)}
