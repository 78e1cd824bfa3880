"""A graph some of whose inputs stay in memory from run to run, and are replaced there by what it computes.

Such inputs are *states*: parameters, momenta, running statistics, a cache of keys and values ::

    x, w, v ---> forward, backward ---> loss
                       | dw
                       v
             SGD(w, dw, v) ---> w/next, v/next           written over w and v

The planner chooses their formats with everything else: they are among row-major and what their readers ask
for, and nothing is reordered from one run to the next. Whatever reads a state runs before its next value is
written, which so may lie in the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node
from relayout.graph.inference import inferred, labelled
from relayout.graph.lowering.emission import emitted
from relayout.graph.passes import fused, optimized, unfused
from relayout.graph.passes.parts import in_parts
from relayout.graph.plan import Plan, check_sizes, image_format, lowerable, plan
from relayout.targets.processors import limited

if TYPE_CHECKING:
    from relayout.primitives.runner import Run

__all__ = ["Step", "compiled_step", "planned_step"]


@dataclass(frozen=True, eq=False)
class Step:
    """A graph with states.

    Attributes
    ----------
    graph : Graph
        States are among its inputs, their next values among its results.
    states : mapping of str to str
        For each input that is a state the result that replaces it.

    Raises
    ------
    LayoutError
        A state is no input or its next value no result; two have the same; dims or data types differ.

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph.graph import Value
    >>> x, total = (Value(name, (2,), np.dtype("f4")) for name in ("x", "total"))
    >>> graph = Graph((x, total), ("total/next",), (Node("Add", ("x", "total"), ("total/next",)),))
    >>> Step(inferred(graph), {"total": "total/next"}).states
    {'total': 'total/next'}
    """

    graph: Graph
    states: Mapping[str, str]

    def __post_init__(self) -> None:
        inputs = {value.name for value in self.graph.inputs}
        if len(set(self.states.values())) < len(self.states):
            raise LayoutError("two states are replaced by the same value")
        for name, after in self.states.items():
            if name not in inputs:
                raise LayoutError(f"the state {name!r} is no input of the graph")
            if after not in self.graph.results:
                raise LayoutError(f"{after!r}, which replaces the state {name!r}, is no result of the graph")
            old, new = self.graph.value(name), self.graph.value(after)
            if (old.dims, old.dtype) != (new.dims, new.dtype):
                raise LayoutError(f"the state {old} can't be replaced by {new}: dims or data types differ")

    @property
    def results(self) -> tuple[str, ...]:
        """The results that are no states: what a run returns."""
        after = set(self.states.values())
        return tuple(name for name in self.graph.results if name not in after)


def planned_step(step: Step, format: str | None = None, threads: int | None = None) -> Plan:
    """The plan of a step all of whose dims are known; see :meth:`.Graph.plan`.

    Raises
    ------
    LayoutError
        A state is read by what needs the next value of one.
    """
    format = image_format(format)
    simple = inferred(optimized(inferred(step.graph)))
    check_sizes(simple)
    made = fused(inferred(in_parts(simple)))
    with limited(threads):
        made = unfused(made, keep=lambda node: lowerable(node, made))
        made = _states_last(made.replaced(results=step.results), step.states)
        found = plan(made, format, states=step.states)
    return replace(found, graph=made)


def compiled_step(step: Step, plan: Plan, threads: int | None = None) -> Run:
    """A step compiled as it was planned: the inputs are those of the graph, states in their formats."""
    after = {new: old for old, new in step.states.items()}
    with limited(threads):
        return emitted(plan.graph, plan.chosen, plan.states, after).compile(threads)


def _states_last(graph: Graph, states: Mapping[str, str]) -> Graph:
    """The graph with the nodes that make next values, and those that read these, behind all others."""
    after = {new: old for old, new in states.items()}
    late: set[str] = set()
    first: list[Node] = []
    last: list[Node] = []
    for node in graph.nodes:
        if any(name in after for name in node.outputs) or not late.isdisjoint(node.inputs):
            late.update(filter(None, node.outputs))
            last.append(node)
        else:
            first.append(node)
    written: set[str] = set()
    for node in last:
        stale = written.intersection(node.inputs)
        if stale:
            raise LayoutError(f"{labelled(node)} reads the state {min(stale)!r}, which is replaced before")
        written.update(after[name] for name in node.outputs if name in after)
    computed = {name for node in graph.nodes for name in node.outputs}
    constant = next((new for new in after if new not in computed), None)
    if constant is not None:
        raise LayoutError(f"{constant!r}, which replaces the state {after[constant]!r}, is not computed")
    return graph.replaced(nodes=(*first, *last))
