"""Contractions in the form of what kernels do: Einsum as MatMul.

An Einsum of two operands has four kinds of labels. Those of all three stand in front and count matrices,
those of the operands alone are summed over, and the others are rows and columns::

    bhqd, bkhd -> bhqk      b, h: which matrices      d: summed      q: rows      k: columns

So it is a MatMul with a Transpose around each operand, and a Reshape where several labels are of one kind.
"""

from __future__ import annotations

from math import prod

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.passes.rewriting import Around, rewritten, sizes

__all__ = ["with_plain_contractions"]


def with_plain_contractions(graph: Graph) -> Graph:
    """The graph with MatMul for each Einsum of two operands.

    >>> import numpy as np
    >>> from relayout.graph.graph import Value
    >>> q, k = (Value(name, (1, 4, 7, 8), np.dtype("float32")) for name in "qk")
    >>> node = Node("Einsum", ("q", "k"), ("y",), {"equation": "bhqd,bhkd->bhqk"})
    >>> print(with_plain_contractions(Graph((q, k), ("y",), (node,))))
    q f32 1x4x7x8
    k f32 1x4x7x8
    y/right = Transpose(k, perm=(0, 1, 3, 2))
    y = MatMul(q, y/right)
    -> y
    """
    return rewritten(graph, _einsum)


def _einsum(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator != "Einsum" or len(node.inputs) != 2 or not around.floating(node.inputs[0]):
        return None
    equation = node.attributes["equation"].replace(" ", "")
    one, two = (sizes(around.dims(name)) for name in node.inputs)
    if one is None or two is None or "." in equation or "->" not in equation:
        return None
    left, right, out = equation.replace("->", ",").split(",")
    if any(len(set(labels)) < len(labels) for labels in (left, right, out)) or 0 in (*one, *two):
        return None
    size = dict(zip(left, one, strict=True))
    if any(size.get(label, n) != n for label, n in zip(right, two, strict=True)):
        return None
    size |= dict(zip(right, two, strict=True))
    lead = [label for label in out if label in left and label in right]
    summed = [label for label in left if label in right and label not in out]
    rows = [label for label in out if label in left and label not in right]
    columns = [label for label in out if label in right and label not in left]
    if len(lead) + len(summed) + len(rows) != len(left) or len(lead) + len(summed) + len(columns) != len(
        right
    ):
        return None
    nodes: list[Node] = []

    def step(operator: str, name: str, what: str, changed: bool, *more: str, **attributes: object) -> str:
        if not changed:
            return name
        made = around.fresh(f"{node.outputs[0]}/{what}")
        nodes.append(Node(operator, (name, *more), (made,), attributes, node.name))
        return made

    def laid(name: str, labels: str, kinds: list[list[str]], what: str) -> str:
        wanted = [label for kind in kinds for label in kind]
        order = tuple(labels.index(label) for label in wanted)
        name = step("Transpose", name, what, wanted != list(labels), perm=order)
        several = any(len(kind) != 1 for kind in kinds[1:])
        dims = [*(size[label] for label in kinds[0]), *(prod(size[x] for x in kind) for kind in kinds[1:])]
        shape = [around.constant(np.array(dims, np.int64), node)] if several else []
        return step("Reshape", name, what, several, *shape)

    first = laid(node.inputs[0], left, [lead, rows, summed], "left")
    second = laid(node.inputs[1], right, [lead, summed, columns], "right")
    found = step("MatMul", first, "product", True, second)
    natural = [*lead, *rows, *columns]
    if len(rows) != 1 or len(columns) != 1:
        shape = [around.constant(np.array([size[label] for label in natural], np.int64), node)]
        found = step("Reshape", found, "product", True, *shape)
    order = tuple(natural.index(label) for label in out)
    step("Transpose", found, "product", natural != list(out), perm=order)
    last = nodes[-1]
    return (*nodes[:-1], Node(last.operator, last.inputs, node.outputs, last.attributes, last.name))
