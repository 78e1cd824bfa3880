"""Whether a graph is one: names, order, operators.

Importers and passes keep these rules by themselves. Graphs that are built by hand, and passes under
development, are what this is for.

>>> from relayout.graph.graph import Graph, Node, Value
>>> nodes = Node("Relu", ("y",), ("z",), name="first"), Node("Rleu", ("x",), ("y",), {}, "second")
>>> verified(Graph((Value("x"),), ("z", "loss"), nodes))
Traceback (most recent call last):
relayout.errors.LayoutError: the graph breaks 3 rules:
  node 'first' (Relu) reads 'y', which no node before it makes
  node 'second' (Rleu): there is no operator 'Rleu'
  nothing makes the output 'loss'
"""

from __future__ import annotations

from collections.abc import Iterator

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node
from relayout.graph.inference import labelled
from relayout.graph.operators import OPERATORS

__all__ = ["verified"]

MOST = 20
"""Broken rules that an error lists."""


def verified(graph: Graph) -> Graph:
    """The graph itself, if it keeps the rules.

    Every value is made once: as an input, as a constant or by a node. What a node reads is made ahead of it.
    Operators exist and have the attributes and the number of inputs that are given. All of this holds within
    the graphs of nodes as well, which see no values but their own.

    Raises
    ------
    LayoutError
        It breaks rules; the message lists them.
    """
    broken = list(_broken(graph))
    if not broken:
        return graph
    listed = "\n".join(f"  {one}" for one in broken[:MOST])
    more = f"\n  and {len(broken) - MOST} more" if len(broken) > MOST else ""
    raise LayoutError(f"the graph breaks {len(broken)} rule{'s' * (len(broken) > 1)}:\n{listed}{more}")


def _broken(graph: Graph) -> Iterator[str]:
    made: dict[str, str] = dict.fromkeys(graph.constants, "a constant")
    for value in graph.inputs:
        if value.name in made:
            yield f"the input {value.name!r} is also {made[value.name]}"
        made[value.name] = "an input"
    for node in graph.nodes:
        label = labelled(node)
        for name in dict.fromkeys(node.inputs):
            if name and name not in made:
                yield f"{label} reads {name!r}, which no node before it makes"
        for name in filter(None, node.outputs):
            if name in made:
                yield f"{label} makes {name!r}, which is also {made[name]}"
            made[name] = f"made by {label}"
        yield from (f"{label}: {one}" for one in _operator(node))
    for name in graph.results:
        if name not in made:
            yield f"nothing makes the output {name!r}"


def _operator(node: Node) -> Iterator[str]:
    operator = OPERATORS.get(node.operator)
    if operator is None:
        yield f"there is no operator {node.operator!r}"
        return
    try:
        operator.check(len(node.inputs), node.attributes)
    except LayoutError as error:
        yield str(error)
    for name, inner in node.attributes.items():
        if isinstance(inner, Graph):
            yield from (f"in its graph {name!r}, {one}" for one in _broken(inner))
