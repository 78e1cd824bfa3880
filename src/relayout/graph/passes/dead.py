"""Nodes whose results nobody reads, and constants."""

from __future__ import annotations

from relayout.graph.graph import Graph

__all__ = ["without_dead"]


def without_dead(graph: Graph) -> Graph:
    """The graph without what its outputs don't need.

    >>> from relayout.graph.graph import Node, Value
    >>> nodes = Node("Relu", ("x",), ("y",)), Node("Abs", ("x",), ("z",))
    >>> print(without_dead(Graph((Value("x"),), ("y",), nodes)))
    x ? ?
    y = Relu(x)
    -> y
    """
    needed = set(graph.results)
    nodes = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(filter(None, node.outputs)):
            needed.update(node.inputs)
            nodes.append(node)
    constants = {name: data for name, data in graph.constants.items() if name in needed}
    if len(nodes) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    made = {name for node in nodes for name in node.outputs}
    values = {name: value for name, value in graph.values.items() if name in made}
    return graph.replaced(nodes=tuple(reversed(nodes)), constants=constants, values=values)
