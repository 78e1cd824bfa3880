"""Common subexpressions: what is computed twice is computed once, and equal constants are one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from relayout.graph.graph import Array, Graph, Node
from relayout.graph.inference import RANDOM
from relayout.graph.passes.rewriting import Around, rewritten
from relayout.primitives.lent import loan

__all__ = ["shared"]


def shared(graph: Graph) -> Graph:
    """The graph with one node for those that compute the same from the same.

    >>> from relayout.graph.graph import Value
    >>> nodes = Node("Exp", ("x",), ("a",)), Node("Exp", ("x",), ("b",)), Node("Add", ("a", "b"), ("y",))
    >>> print(shared(Graph((Value("x"),), ("y",), nodes)))
    x ? ?
    a = Exp(x)
    y = Add(a, a)
    -> y
    """
    graph = _with_shared_constants(graph)
    known: dict[Hashable, Node] = {}

    def seen(node: Node, around: Around) -> Iterable[Node] | None:
        if node.operator in RANDOM or (node.operator == "Dropout" and len(node.inputs) > 2):
            return None
        key = (node.operator, node.inputs, tuple(map(bool, node.outputs)), _key(node.attributes))
        if None in key:
            return None
        first = known.setdefault(key, node)
        if first is node or not around.outputs.isdisjoint(node.outputs):
            return None
        pairs = zip(first.outputs, node.outputs, strict=True)
        return tuple(Node("Identity", (a,), (b,)) for a, b in pairs if a)

    return rewritten(graph, seen)


def _with_shared_constants(graph: Graph) -> Graph:
    """Nodes read the first of equal constants."""
    alike: dict[Hashable, list[str]] = {}
    names: dict[str, str] = {}
    lender = loan()
    for name, data in graph.constants.items():
        if lender is not None and lender.exchanges(data):  # its values may be others later
            continue
        first = alike.setdefault(_glance(data), [])
        same = (one for one in first if _content(graph.constants[one]) == _content(data))
        stands = next(same, None)
        if stands is None:
            first.append(name)
        else:
            names[name] = stands
    if not any(name in names for node in graph.nodes for name in node.inputs):
        return graph
    nodes = []
    for node in graph.nodes:
        if not names.keys().isdisjoint(node.inputs):
            inputs = tuple(names.get(name, name) for name in node.inputs)
            node = Node(node.operator, inputs, node.outputs, node.attributes, node.name)
        nodes.append(node)
    kept = {
        name: data for name, data in graph.constants.items() if name not in names or name in graph.results
    }
    return graph.replaced(nodes=tuple(nodes), constants=kept)


def _glance(data: Array) -> Hashable:
    """What equal arrays have in common, found without reading, or copying, all of them."""
    positions = np.arange(0, data.size, max(1, data.size // 16))
    return data.shape, data.dtype.str, data.dtype.name, _content(data.flat[positions])


def _content(data: Array) -> Hashable:
    return repr(data.tolist()) if data.dtype.hasobject else data.tobytes()


def _key(attributes: Mapping[str, Any]) -> Hashable:
    """Attributes as something that compares; None where there is a graph among them."""
    found = []
    for name, value in sorted(attributes.items()):
        if isinstance(value, Graph):
            return None
        found.append(
            (name, (_glance(value), _content(value)) if isinstance(value, np.ndarray) else repr(value))
        )
    return tuple(found)
