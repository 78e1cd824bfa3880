"""A plan as text: what each kind of node takes and which formats it writes, states, conversions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from relayout.errors import counted
from relayout.layout.images import format_name

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Chosen
    from relayout.graph.plan import Plan
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["listed"]

LONGEST = 40
"""Characters of a cell."""


def listed(plan: Plan) -> str:
    """The plan in tables: operators by what they take, states by format, and each conversion.

    >>> import numpy as np
    >>> from relayout.graph.graph import Graph, Node, Value
    >>> x = Value("x", (1, 3), np.dtype("f4"))
    >>> print(listed(Graph((x,), ("y",), (Node("Relu", ("x",), ("y",)),)).plan()))
    1 node, about ... us; no conversions
    nodes  operator  writes   us
        1  Relu      ab      ...
    """
    several = plan.conversions
    spent = sum(one.seconds for one in several)
    verb = "takes" if len(several) == 1 else "take"
    left = (
        f"{counted(len(several), 'conversion')} {verb} {_us(spent)} of them" if several else "no conversions"
    )
    parts = [f"{counted(len(plan.chosen), 'node')}, about {_us(plan.cost)} us; {left}"]
    by_operator: dict[str, list[Chosen]] = {}
    for one in plan.chosen:
        by_operator.setdefault(one.case.operator, []).append(one)
    rows = [
        (str(len(own)), operator, _formats(own), _us(sum(one.way.cost for one in own)))
        for operator, own in by_operator.items()
    ]
    rows.sort(key=lambda row: -float(row[-1]))
    parts += _table(("nodes", "operator", "writes", "us"), rows, "><<>")
    if plan.states:
        by_format: dict[str, list[str]] = {}
        for name, desc in plan.states.items():
            by_format.setdefault(format_name(desc), []).append(name)
        states = [(str(len(names)), format, ", ".join(names)) for format, names in by_format.items()]
        parts += ["", *_table(("states", "format", "which"), states, "><<")]
    if several:
        converted = [
            (
                one.value,
                format_name(one.src),
                format_name(one.dst),
                _us(one.seconds),
                _readers(plan, one.readers),
            )
            for one in several
        ]
        parts += ["", *_table(("value", "from", "to", "us", "for"), converted, "<<<><")]
    return "\n".join(parts)


def _formats(several: Iterable[Chosen]) -> str:
    """What nodes write, the most frequent format first; views apart."""
    found: dict[str, int] = {}
    for one in several:
        for operand, desc in zip(one.case.outputs, one.way.outputs, strict=True):
            if operand.name:
                name = _named(desc, one.way.view)
                found[name] = found.get(name, 0) + 1
    return ", ".join(sorted(found, key=lambda name: -found[name]))


def _named(desc: MemoryDesc, view: bool) -> str:
    return "views" if view else format_name(desc)


def _readers(plan: Plan, readers: Sequence[str]) -> str:
    """The operators that want a conversion; the planner knows nodes by a number and a name."""
    operators = {one.name: one for one in plan.solution.problem.operations}
    first = len(plan.states)
    places = {name: k - first for k, name in enumerate(operators)}
    wanting = [
        plan.chosen[places[name]].case.operator for name in readers if 0 <= places[name] < len(plan.chosen)
    ]
    return ", ".join(dict.fromkeys(wanting)) or "the result"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    """Lines with columns as wide as needed, each aligned to the left or to the right."""
    lines = [heads, *([_cut(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, sides, widths, strict=True)
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"
