"""A graph some of whose inputs stay in memory from run to run, and are replaced there by what it computes.

Such inputs are *states*: parameters, momenta, running statistics, a cache of keys and values ::

    x, w, v ---> forward, backward ---> loss
                       | dw
                       v
             SGD(w, dw, v) ---> w/next, v/next           written over w and v

The planner chooses their formats with everything else: they are among row-major and what their readers ask
for, and nothing is reordered from one run to the next. Whatever reads a state runs before its next value is
written, which so may lie in the same memory.

Steps can share states: the formats that one has chosen are given to the others. A step that only reads a
state has it replaced by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value, fresh
from relayout.graph.inference import inferred, labelled
from relayout.graph.lowering.emission import emitted
from relayout.graph.passes import fused, optimized, unfused
from relayout.graph.passes.losses import with_losses_written_out
from relayout.graph.passes.parts import in_parts
from relayout.graph.passes.weights import with_moving_weights
from relayout.graph.plan import Plan, check_sizes, image_format, lowerable, plan
from relayout.processors import limited
from relayout.records import dataclass, replace

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
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
        For each input that is a state the result that replaces it; its own name: it stays as it is.

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
            if after == name:
                continue
            if after not in self.graph.results:
                raise LayoutError(f"{after!r}, which replaces the state {name!r}, is no result of the graph")
            old, new = self.graph.value(name), self.graph.value(after)
            if (old.dims, old.dtype) != (new.dims, new.dtype):
                raise LayoutError(f"the state {old} can't be replaced by {new}: dims or data types differ")

    @property
    def results(self) -> tuple[str, ...]:
        """The results that are no states: what a run returns."""
        after = {new for old, new in self.states.items() if new != old}
        return tuple(name for name in self.graph.results if name not in after)


def planned_step(
    step: Step,
    format: str | None = None,
    threads: int | None = None,
    formats: Mapping[str, MemoryDesc] | None = None,
) -> Plan:
    """The plan of a step all of whose dims are known; see :meth:`.Graph.plan`.

    States that another step has, too, come in the ``formats`` that were chosen there.

    Raises
    ------
    LayoutError
        States need each other's next values; or one is replaced by what nothing computes.
    """
    format = image_format(format)
    written = with_losses_written_out(with_moving_weights(inferred(step.graph)))
    simple = inferred(optimized(written))
    check_sizes(simple)
    made = fused(inferred(in_parts(simple)))
    with limited(threads):
        made = unfused(made, keep=lambda node: lowerable(node, made, format))
        made = _in_order(made.replaced(results=step.results), step.states)
        computed = {name for node in made.nodes for name in node.outputs}
        lost = next((old for old, new in step.states.items() if new != old and new not in computed), None)
        if lost is not None:
            raise LayoutError(f"{step.states[lost]!r}, which replaces the state {lost!r}, is not computed")
        found = plan(made, format, states=step.states, formats=formats)
    return replace(found, graph=made)


def compiled_step(step: Step, plan: Plan, threads: int | None = None) -> Run:
    """A step compiled as it was planned: the inputs are those of the graph, states in their formats."""
    after = {new: old for old, new in step.states.items() if new != old}
    with limited(threads):
        return emitted(plan.graph, plan.chosen, plan.states, after).compile(threads)


def _in_order(graph: Graph, states: Mapping[str, str]) -> Graph:
    """The graph with each node that replaces a state as early as nothing reads the state any more.

    What may lie in the memory of a state counts as the state: a transpose of weights is a view. Where a node
    that replaces a state, or the caller, is given that of another one, it gets a copy.
    """
    after = {new: old for old, new in states.items() if new != old}
    graph = _with_copies(graph, states, after)
    lies_in = _memory_of(graph, states)
    late: set[str] = set()
    now: list[Node] = []
    waiting: list[Node] = []
    for node in graph.nodes:
        if any(name in after for name in node.outputs) or not late.isdisjoint(node.inputs):
            late.update(filter(None, node.outputs))
            waiting.append(node)
        else:
            now.append(node)
    left = Counter(state for node in graph.nodes for state in _read(node, lies_in))
    made: list[Node] = []
    missing = {name for node in graph.nodes for name in node.outputs}

    def ready(node: Node) -> bool:
        read, written = _read(node, lies_in), {after[name] for name in node.outputs if name in after}
        return missing.isdisjoint(node.inputs) and all(left[state] == (state in read) for state in written)

    def emit(node: Node) -> None:
        made.append(node)
        left.subtract(_read(node, lies_in))
        missing.difference_update(node.outputs)

    for one in (*now, None):
        if one is not None:
            emit(one)
        while (found := next(filter(ready, waiting), None)) is not None:
            waiting.remove(found)
            emit(found)
    if waiting:
        node = next(one for one in waiting if _read(one, lies_in))
        which = f"{labelled(node)} needs the state {min(_read(node, lies_in))!r}"
        raise LayoutError(f"{which}, and the next value of one that needs it")
    return graph.replaced(nodes=tuple(made))


VIEWS = frozenset(
    (
        *("Identity", "Dropout", "Cast", "Expand", "Pad", "Tile", "Concat", "DepthToSpace", "SpaceToDepth"),
        *("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather"),
    )
)
"""Operators whose results may lie in the memory of what they read."""


def _memory_of(graph: Graph, states: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """For each value that may lie in the memory of states, these."""
    found = {name: frozenset((name,)) for name in states}
    for node in graph.nodes:
        if node.operator in VIEWS:
            several = frozenset().union(*(found.get(name, frozenset()) for name in node.inputs))
            if several:
                found.update(dict.fromkeys(filter(None, node.outputs), several))
    return found


def _read(node: Node, lies_in: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The states whose memory a node reads."""
    return frozenset().union(*(lies_in.get(name, frozenset()) for name in node.inputs))


def _with_copies(graph: Graph, states: Mapping[str, str], after: Mapping[str, str]) -> Graph:
    """The graph where only a state's own node is given its memory, of all that replace states or return."""
    lies_in = _memory_of(graph, states)
    taken = {name for node in graph.nodes for name in node.outputs} | {*graph.constants, *states}
    copies: dict[str, str] = {}
    values = dict(graph.values)
    nodes: list[Node] = []

    def copied(name: str) -> str:
        if name not in copies:
            copies[name] = fresh(f"{name}/copy", taken)
            nodes.append(Node("relayout.Copy", (name,), (copies[name],)))
            known = graph.value(name)
            values[copies[name]] = Value(copies[name], known.dims, known.dtype)
        return copies[name]

    for node in graph.nodes:
        own = {after[name] for name in node.outputs if name in after}
        if own:
            others = set(after.values()) - own
            given = [
                copied(name) if not others.isdisjoint(lies_in.get(name, ())) else name for name in node.inputs
            ]
            node = Node(node.operator, tuple(given), node.outputs, node.attributes, node.name)
        nodes.append(node)
    results = tuple(copied(name) if name in lies_in else name for name in graph.results)
    return graph.replaced(nodes=tuple(nodes), results=results, values=values)
