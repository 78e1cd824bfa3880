"""Quantisation moved along what only moves data, so that bytes move, and pairs meet and vanish.

::

    Reshape(DequantizeLinear(x))     DequantizeLinear(Reshape(x))      also MaxPool, which commutes
    QuantizeLinear(Reshape(x))       Reshape(QuantizeLinear(x))
    QuantizeLinear(Concat(x, y))     Concat(QuantizeLinear(x), QuantizeLinear(y))     of dequantised parts

and values of s8 between the two as u8 with a zero point 128 larger: the same numbers, of which those behind a
ReLU begin with 0, and which the processor multiplies with s8.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from relayout.graph.graph import Graph, Node, fresh
from relayout.graph.passes.quantities import BYTES, dequantised, quantised
from relayout.graph.passes.rewriting import Around, attribute, rewritten

__all__ = ["hoisted", "retyped", "sunk"]

MOVES: Final = frozenset(
    (
        *("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Expand", "Tile"),
        *("DepthToSpace", "SpaceToDepth", "Gather"),
    )
)
"""Operators that move the elements of their first input, whatever these are."""


def retyped(graph: Graph) -> Graph:
    """The graph with u8 in the place of s8 between QuantizeLinear and DequantizeLinear."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            readers.setdefault(name, []).append(node)
    chosen = {
        node.outputs[0]
        for node in graph.nodes
        if node.operator == "QuantizeLinear"
        and node.outputs[0] not in graph.results
        and _shiftable(node, graph)
        and all(
            one.operator == "DequantizeLinear" and one.inputs[0] == node.outputs[0] and _shiftable(one, graph)
            for one in readers.get(node.outputs[0], ())
        )
    }
    if not chosen:
        return graph
    constants, values, nodes = dict(graph.constants), dict(graph.values), []
    taken = {*constants, *values, *(one.name for one in graph.inputs)}
    taken |= {name for node in graph.nodes for name in node.outputs}
    shifted: dict[str, str] = {}
    for node in graph.nodes:
        if node.operator == "QuantizeLinear" and node.outputs[0] in chosen:
            values.pop(node.outputs[0], None)
        elif node.operator != "DequantizeLinear" or node.inputs[0] not in chosen:
            nodes.append(node)
            continue
        zero = node.inputs[2]
        if zero not in shifted:
            shifted[zero] = fresh(f"{zero}/u8", taken)
            constants[shifted[zero]] = (constants[zero].astype(np.int16) + 128).astype(np.uint8)
        attributes = {key: one for key, one in node.attributes.items() if key != "output_dtype"}
        if node.operator == "DequantizeLinear":
            attributes = dict(node.attributes)
        nodes.append(
            Node(node.operator, (*node.inputs[:2], shifted[zero]), node.outputs, attributes, node.name)
        )
    return graph.replaced(nodes=tuple(nodes), constants=constants, values=values)


def _shiftable(node: Node, graph: Graph) -> bool:
    """Whether a node has a constant zero point of s8."""
    zero = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    return zero is not None and zero.dtype == np.int8


def sunk(graph: Graph) -> Graph:
    """The graph with DequantizeLinear of whole tensors behind what moves their elements."""
    return rewritten(graph, _sunk, _joined)


def _sunk(node: Node, around: Around) -> tuple[Node, ...] | None:
    movable = node.operator in MOVES or _largest(node) or _nearest(node)
    x = dequantised(node.inputs[0], around) if movable and node.inputs else None
    if x is None or any(node.outputs[1:]):
        return None
    before = around.node(node.inputs[0])
    assert before is not None
    moved = around.fresh(f"{node.outputs[0]}/bytes")
    return (
        Node(node.operator, (x.name, *node.inputs[1:]), (moved,), node.attributes, node.name),
        Node("DequantizeLinear", (moved, *before.inputs[1:]), node.outputs, before.attributes, before.name),
    )


def _largest(node: Node) -> bool:
    """A pooling whose padding is never the largest: of integers, too."""
    return node.operator == "MaxPool" and not any(node.outputs[1:])


def _nearest(node: Node) -> bool:
    return node.operator == "Resize" and attribute(node, "mode") in ("nearest", b"nearest")


def _joined(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Concat of values with one scale and zero point."""
    if node.operator != "Concat":
        return None
    parts = [dequantised(name, around) for name in node.inputs]
    steps = {None if part is None else (part.scale, part.zero) for part in parts}
    types = {None if part is None else around.dtype(part.name) for part in parts}
    if None in steps or len(steps) != 1 or len(types) != 1:
        return None
    before = around.node(node.inputs[0])
    assert before is not None
    moved = around.fresh(f"{node.outputs[0]}/bytes")
    names = tuple(part.name for part in parts if part is not None)
    return (
        Node("Concat", names, (moved,), node.attributes, node.name),
        Node("DequantizeLinear", (moved, *before.inputs[1:]), node.outputs, before.attributes, before.name),
    )


def hoisted(graph: Graph) -> Graph:
    """The graph with QuantizeLinear before what moves elements, if nobody else reads what that moves."""
    return rewritten(graph, _hoisted, _parted)


def _hoisted(node: Node, around: Around) -> tuple[Node, ...] | None:
    if quantised(node, around) is None or around.dtype(node.outputs[0]) not in BYTES:
        return None
    before = around.inner(node.inputs[0], *MOVES)
    if before is None or around.data(before.inputs[0]) is not None:
        return None
    if before.operator == "Expand" or around.dtype(before.inputs[0]) != np.float32:
        return None
    made = around.fresh(f"{node.outputs[0]}/early")
    given: dict[str, Any] = dict(node.attributes)
    return (
        Node("QuantizeLinear", (before.inputs[0], *node.inputs[1:]), (made,), given, node.name),
        Node(before.operator, (made, *before.inputs[1:]), node.outputs, before.attributes, before.name),
    )


def _parted(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Concat of bytes of several scales, brought to the one of its result part by part."""
    if quantised(node, around) is None:
        return None
    before = around.inner(node.inputs[0], "Concat")
    if before is None or any(dequantised(name, around) is None for name in before.inputs):
        return None
    parts = [around.fresh(f"{node.outputs[0]}/part") for _ in before.inputs]
    return (
        *(
            Node("QuantizeLinear", (name, *node.inputs[1:]), (part,), node.attributes, node.name)
            for name, part in zip(before.inputs, parts, strict=True)
        ),
        Node("Concat", tuple(parts), node.outputs, before.attributes, before.name),
    )
