"""A plan: an option for each operation, the conversions that they need, and what it costs.

Whatever chose the options, :func:`evaluate` finds the conversions: for each value the cheapest that make the
formats in which it is read. So plans of different origin can be compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayout.errors import LayoutError, counted, spelled_seconds
from relayout.graph.planning.conversions import tree
from relayout.graph.planning.problem import Infeasible
from relayout.layout.images import format_name
from relayout.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relayout.graph.planning.problem import Format, Problem, Use

__all__ = ["Conversion", "Solution", "compared", "evaluate", "listed", "shortened"]


@dataclass(frozen=True)
class Conversion:
    """One format of a value made of another.

    Attributes
    ----------
    value : str
    src, dst : format
    cost : float
        Seconds.
    readers : tuple of str
        The operations that need it, directly or through a further conversion.
    pinned : bool
        Whether the value's pin needs it.
    """

    value: str
    src: Format
    dst: Format
    cost: float
    readers: tuple[str, ...]
    pinned: bool = False

    @property
    def reason(self) -> str:
        """Who needs it.

        >>> Conversion("x", "nchw", "nhwc", 1e-6, ("conv1", "conv2", "pool"), pinned=True).reason
        'for conv1, conv2, pool, the pin'
        """
        return "for " + ", ".join((*self.readers, *(["the pin"] if self.pinned else [])))


@dataclass(frozen=True, eq=False)
class Solution:
    """A choice of formats, and what it costs.

    Attributes
    ----------
    problem : Problem
    choices : tuple of int
        For each operation the index of its option.
    conversions : tuple of Conversion
        In the order of writing; each behind the one whose result it reads.
    cost : float
        Seconds, of operations and conversions.
    bound : float
        No plan costs less.
    exact : bool
        Whether it is proven that no plan costs less than this one.
    """

    problem: Problem
    choices: tuple[int, ...]
    conversions: tuple[Conversion, ...]
    cost: float
    bound: float
    exact: bool

    @property
    def gap(self) -> float:
        """By which part of its cost the plan may be off the best one."""
        if self.exact or self.cost <= self.bound:
            return 0.0
        return (self.cost - self.bound) / max(abs(self.cost), abs(self.bound))

    def written(self, value: str) -> tuple[Format, ...]:
        """The format in which a value is written, or those in which it is given."""
        return _written(self.problem, self.problem.uses[value], self.choices)

    def formats(self, value: str) -> tuple[Format, ...]:
        """All formats in which a value exists, that in which it is written first."""
        made = tuple(conversion.dst for conversion in self.conversions if conversion.value == value)
        return self.written(value) + made

    def __str__(self) -> str:
        spent = spelled_seconds(math.fsum(conversion.cost for conversion in self.conversions))
        chosen, left = counted(len(self.choices), "operation"), counted(len(self.conversions), "conversion")
        lines = [f"{spelled_seconds(self.cost)}: {chosen}, {left} ({spent}); {self.proof}"]
        if self.conversions:
            lines.append(f"{'value':<20} {'from':<12} {'to':<12} {'time':>9}  needed by")
        for one in self.conversions:
            value, src, dst = (
                shortened(one.value, 20),
                shortened(format_name(one.src), 12),
                shortened(format_name(one.dst), 12),
            )
            line = f"{value:<20} {src:<12} {dst:<12} {spelled_seconds(one.cost):>9}  "
            lines.append(line + shortened(one.reason.removeprefix("for "), 80 - len(line)))
        return "\n".join(lines)

    @property
    def proof(self) -> str:
        """What is known about better plans."""
        if self.exact:
            return "no plan costs less"
        return f"none below {spelled_seconds(self.bound)} (gap {self.gap:.1%})"


def evaluate(problem: Problem, choices: Sequence[int], bound: float = -math.inf) -> Solution:
    """The plan of a choice of options: with the cheapest conversions that it needs.

    Parameters
    ----------
    problem : Problem
    choices : sequence of int
        For each operation the index of its option.
    bound : float, optional
        What no plan is known to cost less than.

    Raises
    ------
    Infeasible
        Where a format that is read can't be made.
    LayoutError
        Where an operation has no such option.
    """
    if len(choices) != len(problem.operations):
        raise LayoutError(f"{len(choices)} choices for {len(problem.operations)} operations")
    for operation, choice in zip(problem.operations, choices, strict=True):
        if not 0 <= choice < len(operation.options):
            raise LayoutError(
                f"operation {operation.name!r} has {len(operation.options)} options, and choice {choice}"
            )
    conversions = []
    for use in problem.uses.values():
        conversions += _conversions(problem, use, choices)
    chosen = [operation.options[i].cost for operation, i in zip(problem.operations, choices, strict=True)]
    cost = math.fsum([*chosen, *(conversion.cost for conversion in conversions)])
    least = math.fsum(min(option.cost for option in operation.options) for operation in problem.operations)
    return Solution(problem, tuple(choices), tuple(conversions), cost, min(cost, max(bound, least)), False)


def compared(plans: Mapping[str, Solution]) -> str:
    """Plans of one problem as a table, a line each.

    Parameters
    ----------
    plans : mapping of str to Solution
        The first column has their names.
    """
    lines = [f"{'':<16} {'total':>10} {'operations':>10} {'conversions':>12}"]
    for name, plan in plans.items():
        spent = math.fsum(conversion.cost for conversion in plan.conversions)
        whole, rest = spelled_seconds(plan.cost), spelled_seconds(plan.cost - spent)
        line = f"{shortened(name, 16):<16} {whole:>10} {rest:>10} "
        lines.append(f"{line}{spelled_seconds(spent):>9}{len(plan.conversions):>3}")
    return "\n".join(lines)


def _written(problem: Problem, use: Use, choices: Sequence[int]) -> tuple[Format, ...]:
    if use.writer is None:
        return use.given
    operation, place = use.writer
    return (problem.operations[operation].options[choices[operation]].outputs[place],)


def _conversions(problem: Problem, use: Use, choices: Sequence[int]) -> list[Conversion]:
    """The conversions of one value."""
    if len(use.formats) == 1:
        return []
    written = _written(problem, use, choices)
    wanted: dict[Format, list[str]] = {}
    for index in use.readers:
        operation = problem.operations[index]
        for name, format in zip(operation.inputs, operation.options[choices[index]].inputs, strict=True):
            if name == use.value:
                wanted.setdefault(format, []).append(operation.name)
    if use.pin is not None:
        wanted.setdefault(use.pin, [])
    missing = [format for format in wanted if format not in written]
    if not missing:
        return []
    formats = use.formats if problem.through else tuple(dict.fromkeys((*written, *wanted)))
    at = {format: i for i, format in enumerate(formats)}
    direct = [[problem.conversion(use.value, src, dst) for dst in formats] for src in formats]
    edges = tree(direct, [at[format] for format in written], [at[format] for format in missing])
    if not edges:
        there = " and ".join(map(str, written))
        texts = " and ".join(f"{_or(readers)} as {format}" for format, readers in wanted.items())
        raise Infeasible(
            f"value {use.value!r} is {_origin(problem, use)} as {there} and read by {texts}: "
            "no conversion leads there"
        )
    before = {dst: src for src, dst in edges}
    needed: dict[int, dict[str, None]] = {dst: {} for dst in before}
    pinned = set()
    for format in missing:
        place = at[format]
        while place in before:
            needed[place] |= dict.fromkeys(wanted[format])
            if format == use.pin:
                pinned.add(place)
            place = before[place]
    return [
        Conversion(use.value, formats[src], formats[dst], direct[src][dst], tuple(needed[dst]), dst in pinned)
        for src, dst in edges
    ]


def _origin(problem: Problem, use: Use) -> str:
    return (
        "given" if use.writer is None else f"written by operation {problem.operations[use.writer[0]].name!r}"
    )


def _or(readers: Mapping[str, None] | Sequence[str]) -> str:
    return f"operation {', '.join(map(repr, readers))}" if readers else "its pin"


def shortened(text: str, width: int) -> str:
    """A text cut to a width.

    >>> shortened("features.denseblock4", 12)
    'features.de~'
    """
    return text if len(text) <= width else text[: width - 1] + "~"


def listed(formats: Iterable[Format]) -> str:
    """Formats as text.

    >>> listed(["nchw", "nhwc", "nChw8c"])
    'nchw, nhwc or nChw8c'
    """
    *first, last = map(str, formats)
    return f"{', '.join(first)} or {last}" if first else last
