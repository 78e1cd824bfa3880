"""Quantisation that is undone at once.

``QuantizeLinear`` of a constant is folded like everything constant; ``DequantizeLinear`` of one stays, so
that it needs no more memory than it has (:mod:`relayout.graph.inference`). ``DequantizeLinear`` with a
``QuantizeLinear`` of the same scale and zero point behind it changes nothing, since whole numbers of 8 bits
survive both roundings. The other pair, ``QuantizeLinear`` and then ``DequantizeLinear``, rounds: it is what
the network says, and stays, around operators too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from relayout.graph.graph import Array, Graph, Node
from relayout.graph.passes.rewriting import Around, attribute, rewritten

__all__ = ["without_requantization"]

NARROW: Final = (np.int8, np.uint8)


def without_requantization(graph: Graph) -> Graph:
    """The graph without pairs of DequantizeLinear and QuantizeLinear that change nothing.

    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (4,), np.dtype("int8"))
    >>> constants = {"scale": np.float32(0.1), "zero": np.int8(3)}
    >>> there = Node("DequantizeLinear", ("x", "scale", "zero"), ("a",))
    >>> back = Node("QuantizeLinear", ("a", "scale", "zero"), ("b",))
    >>> nodes = there, back, Node("Neg", ("b",), ("y",))
    >>> print(without_requantization(Graph((x,), ("y",), nodes, constants)))
    x s8 4
    y = Neg(x)
    -> y
    """
    return rewritten(graph, _same)


def _same(node: Node, around: Around) -> tuple[Node, ...] | None:
    before = around.node(node.inputs[0], "DequantizeLinear") if node.operator == "QuantizeLinear" else None
    if before is None or around.dtype(before.inputs[0]) not in NARROW:
        return None
    if around.dtype(node.outputs[0]) != around.dtype(before.inputs[0]):
        return None
    if any(attribute(node, name) != attribute(before, name) for name in ("axis", "block_size")):
        return None
    one, other = (_parameters(some, around) for some in (before, node))
    if one is None or other is None:
        return None
    equal = all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    normal = one[0].dtype == np.float32 and bool((one[0] > np.finfo(np.float32).tiny).all())
    small = bool((one[0] < 1e30).all())
    return (Node("Identity", before.inputs[:1], node.outputs),) if equal and normal and small else None


def _parameters(node: Node, around: Around) -> tuple[Array, Array] | None:
    scale = around.data(node.inputs[1])
    zero = around.data(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.array(0, np.int8)
    return None if scale is None or zero is None else (scale, zero)
