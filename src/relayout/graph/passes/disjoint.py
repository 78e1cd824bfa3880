"""Sums of what lies side by side in zeros, as one concatenation.

The gradient of a part is that part in zeros; that of what was cut into parts is the sum of these::

    q, k, v = qkv.unbind()      dqkv = [dq 0 0] + [0 dk 0] + [0 0 dv] = [dq dk dv]

A sum in which at most one term of each element is no zero needs no addition. (A result is -0 where it was 0
before, if that one term is -0.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.passes.rewriting import Around, rewritten, sizes

__all__ = ["without_disjoint_sums"]


def without_disjoint_sums(graph: Graph) -> Graph:
    """The graph with a Concat for each Add of two of them that have zeros where the other one has none.

    >>> from relayout.graph.graph import Value
    >>> a, b = (Value(name, (2, 3), np.dtype("float32")) for name in "ab")
    >>> zeros = np.zeros((2, 3), np.float32)
    >>> nodes = (
    ...     Node("Concat", ("a", "z"), ("x",), {"axis": 0}), Node("Concat", ("z", "b"), ("y",), {"axis": 0}),
    ...     Node("Add", ("x", "y"), ("c",)),
    ... )
    >>> print(without_disjoint_sums(Graph((a, b), ("c",), nodes, {"z": zeros})))
    a f32 2x3
    b f32 2x3
    c = Concat(a, b, axis=0)
    -> c
    """
    return rewritten(graph, _disjoint)


class _Part(NamedTuple):
    """A part of a concatenation that is not zero: from where to where, and what it is."""

    start: int
    stop: int
    name: str


def _disjoint(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator != "Add":
        return None
    terms = [around.inner(name, "Concat") for name in node.inputs]
    dims = sizes(around.dims(node.outputs[0]))
    kind = around.dtype(node.outputs[0])
    if dims is None or kind is None or 0 in dims:
        return None
    parts: list[_Part] = []
    axes = set()
    for name, term in zip(node.inputs, terms, strict=True):
        if term is None or sizes(around.dims(name)) != dims:
            return None
        axes.add(int(term.attributes["axis"]) % len(dims))
        found = _parts(term, around, *axes) if len(axes) == 1 else None
        if found is None:
            return None
        parts += found
    (axis,) = axes
    parts.sort()
    names: list[str] = []
    at = 0
    for start, stop, name in (*parts, _Part(dims[axis], dims[axis], "")):
        if start < at:
            return None
        if start > at:
            zeros = np.zeros((*dims[:axis], start - at, *dims[axis + 1 :]), kind)
            names.append(around.constant(zeros, node))
        if name:
            names.append(name)
        at = stop
    if len(names) == 1:
        return (Node("Identity", (names[0],), node.outputs, {}, node.name),)
    return (Node("Concat", tuple(names), node.outputs, {"axis": axis}, node.name),)


def _parts(node: Node, around: Around, axis: int) -> list[_Part] | None:
    """Those parts of a concatenation that are not zero; None where all may be."""
    found, at = [], 0
    for name in node.inputs:
        dims = sizes(around.dims(name))
        if dims is None:
            return None
        data = around.data(name)
        if data is None or data.any():
            found.append(_Part(at, at + dims[axis], name))
        at += dims[axis]
    return found if len(found) < len(node.inputs) else None
