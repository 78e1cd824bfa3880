"""In which formats values are wanted by what reads them behind views.

A transpose or a reshape moves nothing, so whoever reads its result row-major wants what stands in front of it
in some other order. Here these orders are found, from the end of a graph to its beginning::

    heads 64x3x49x32 -> Transpose -> 64x49x3x32 -> Reshape -> 64x49x96 -> MatMul
          acbd       <-              abcd       <-            row-major

A node that can write its result in several orders offers these, too, and nothing is left to convert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node
from relayout.graph.lowering.case import elements_of, label, reshaped, row_major, unfused
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout

__all__ = ["VIEWS", "copied", "seen_back", "wishes"]

MOST = 3  # wishes for a value that are listened to
VIEWS = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
"""Operators whose results have all elements of what they see."""
PARTS = ("Slice", "Split", "Gather")
"""Operators whose results are parts of what they see."""


def wishes(graph: Graph) -> Mapping[str, list[MemoryDesc]]:
    """For each value that is read through views, the formats in which their results are row-major.

    >>> import numpy as np
    >>> from relayout.graph import Value
    >>> x = Value("x", (2, 3, 4), np.dtype("f4"))
    >>> nodes = Node("Relu", ("x",), ("y",)), Node("Transpose", ("y",), ("z",), {"perm": (1, 0, 2)})
    >>> values = {"y": Value("y", x.dims, x.dtype), "z": Value("z", (3, 2, 4), x.dtype)}
    >>> wishes(Graph((x,), ("z",), nodes, values=values))
    {'y': [MemoryDesc('f32:bac:2x3x4')]}
    """
    found: dict[str, list[MemoryDesc]] = {}
    read = set(graph.results)  # by what is no view
    for node in reversed(graph.nodes):
        if not _is_view(node):
            read.update(node.inputs)
            continue
        name, source = node.outputs[0], node.inputs[0]
        wanted = list(found.get(name, ()))
        plain = _row_major(graph, name)
        if name in read and plain is not None:
            wanted.append(plain)
        for desc in wanted if source not in graph.constants else ():
            before = _before(node, desc, graph)
            known = found.setdefault(source, [])
            if before is not None and before not in known:
                known.append(before)
    others = {name: [one for one in known if one != _row_major(graph, name)] for name, known in found.items()}
    return {name: several[:MOST] for name, several in others.items() if several}


def copied(graph: Graph) -> frozenset[str]:
    """The values that are no memory of their own: what needs them elsewhere has to copy them.

    >>> import numpy as np
    >>> from relayout.graph import Value
    >>> x = Value("x", (4, 6), np.dtype("f4"))
    >>> nodes = Node("Relu", ("x",), ("y",)), Node("Split", ("y",), ("a", "b"), {"axis": 1})
    >>> sorted(copied(Graph((x,), ("a", "b"), nodes)))
    ['a', 'b', 'x']
    """
    found = {value.name for value in graph.inputs}
    for node in graph.nodes:
        if node.operator in PARTS or (_is_view(node) and node.inputs[0] in found):
            found.update(filter(None, node.outputs))
    return frozenset(found)


def _is_view(node: Node) -> bool:
    return node.operator in VIEWS


def _row_major(graph: Graph, name: str) -> MemoryDesc | None:
    value = graph.value(name)
    dtype = elements_of(value.dtype)
    return row_major(value.dims, dtype) if value.known and dtype is not None else None  # type: ignore[arg-type]


def _before(node: Node, desc: MemoryDesc, graph: Graph) -> MemoryDesc | None:
    """The format of what a view sees, from that of its result; None where no layout says it."""
    source = _row_major(graph, node.inputs[0])
    if source is None or 0 in source.dims:
        return None
    try:
        layout = seen_back(node.operator, node.attributes, desc.layout, source.dims)
        return label(MemoryDesc(source.dims, desc.dtype, unfused(layout)))
    except LayoutError:
        return None


def seen_back(operator: str, attributes: Mapping[str, Any], layout: Layout, dims: tuple[int, ...]) -> Layout:
    """The layout of what a view sees, which has these dims, from that of its result.

    Raises
    ------
    LayoutError
        No layout says it.
    """
    if operator != "Transpose":
        return reshaped(layout, dims)
    order = tuple(attributes.get("perm") or range(len(dims))[::-1])
    return views.permute(layout, sorted(range(len(dims)), key=lambda axis: order[axis]))
