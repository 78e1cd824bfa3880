"""Arithmetic with constants in one form: factors and terms, each once.

``x / c`` is ``x * (1 / c)``, ``x - c`` is ``x + (-c)``; factors one behind the other are one, and so are
terms. Sqrt of a sum of squares is a norm. f32 and f64 alone: these results differ by rounding, which is much
in narrower types, and whole numbers don't round.
"""

from __future__ import annotations

import numpy as np

from relayout.graph.graph import Array, Graph, Node
from relayout.graph.passes.rewriting import Around, attribute, equal_dims, rewritten

__all__ = ["with_plain_arithmetic"]


def with_plain_arithmetic(graph: Graph) -> Graph:
    """The graph with one Mul or Add for several by constants, and no Div or Sub by them.

    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (2,), np.dtype("float32"))
    >>> nodes = Node("Div", ("x", "two"), ("a",)), Node("Mul", ("a", "six"), ("y",))
    >>> graph = Graph((x,), ("y",), nodes, {"two": np.float32(2), "six": np.float32(6)})
    >>> for _ in range(2):
    ...     graph = with_plain_arithmetic(graph)
    >>> print(graph, *graph.constants.values())
    x f32 2
    y = Mul(x, y/constant)
    -> y 3.0
    """
    return rewritten(graph, _inverted, _combined, _powers, _square_sums, _norms)


def _inverted(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator not in ("Div", "Sub") or not around.floating(node.inputs[1]):
        return None
    data = around.data(node.inputs[1])
    if data is None or around.data(node.inputs[0]) is not None:
        return None
    with np.errstate(all="ignore"):
        other = np.asarray(1 / data if node.operator == "Div" else -data, data.dtype)
    if not _normal(other) or (node.operator == "Div" and not _normal(data)):
        return None
    inputs = node.inputs[0], around.constant(other, node)
    return (Node("Mul" if node.operator == "Div" else "Add", inputs, node.outputs, {}, node.name),)


def _normal(data: Array) -> bool:
    """Whether all are finite, and none so small that digits are lost."""
    size = np.abs(data)
    return bool(np.isfinite(data).all() and ((size >= np.finfo(data.dtype).tiny) | (size == 0)).all())


def _combined(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator not in ("Mul", "Add") or not around.floating(node.outputs[0]):
        return None
    outer = around.with_constant(node)
    before = around.inner(outer[0], node.operator) if outer is not None else None
    inner = around.with_constant(before) if before is not None else None
    if outer is None or before is None or inner is None:
        return None
    with np.errstate(all="ignore"):
        both = np.asarray(outer[1] * inner[1] if node.operator == "Mul" else outer[1] + inner[1])
    if not _normal(both) or both.nbytes > max(outer[1].nbytes, inner[1].nbytes):
        return None
    return (Node(node.operator, (inner[0], around.constant(both, node)), node.outputs, {}, node.name),)


def _powers(node: Node, around: Around) -> tuple[Node, ...] | None:
    """``x ** 0.5`` as Sqrt, ``x ** 2`` as a product."""
    if node.operator != "Pow" or not around.floating(node.inputs[0]):
        return None
    if not equal_dims(around.dims(node.inputs[0]), around.dims(node.outputs[0])):
        return None
    x, exponent = node.inputs[0], around.number(node.inputs[1])
    if exponent == 0.5:
        return (Node("Sqrt", (x,), node.outputs, {}, node.name),)
    return (Node("Mul", (x, x), node.outputs, {}, node.name),) if exponent == 2 else None


def _square_sums(node: Node, around: Around) -> tuple[Node, ...] | None:
    """The sum of squares as one node."""
    if node.operator != "ReduceSum" or not around.floating(node.inputs[0]):
        return None
    square = around.inner(node.inputs[0], "Mul")
    if len(node.inputs) < 2 and attribute(node, "noop_with_empty_axes"):
        return None
    if square is None or square.inputs[0] != square.inputs[1]:
        return None
    inputs = (square.inputs[0], *node.inputs[1:])
    return (Node("ReduceSumSquare", inputs, node.outputs, node.attributes, node.name),)


def _norms(node: Node, around: Around) -> tuple[Node, ...] | None:
    """The root of the sum of squares as one node."""
    if node.operator != "Sqrt":
        return None
    total = around.inner(node.inputs[0], "ReduceSumSquare")
    if total is None or (len(total.inputs) < 2 and attribute(total, "noop_with_empty_axes")):
        return None
    return (Node("ReduceL2", total.inputs, node.outputs, total.attributes, node.name),)
