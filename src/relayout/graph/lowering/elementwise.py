"""Trees of elementwise nodes that read and write bytes: one expression, one pass.

Scales and zero points are numbers beside the operands, so that trees of one shape share one kernel; a tree of
one operand is a table of 256 bytes where the processor looks these up.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.lowering.case import Case, Operand
from relayout.graph.lowering.chains import BINARY, functions_of
from relayout.graph.lowering.expressions import kind_of_operand, ways_of
from relayout.graph.lowering.ways import Way, rule
from relayout.graph.operators import OPERATORS
from relayout.graph.operators.fused import ELEMENTWISE
from relayout.ops.expressions import Writing
from relayout.ops.functions import Function

__all__: list[str] = []


@rule(ELEMENTWISE)
def tree(case: Case) -> Iterable[Way] | None:
    """The tree as an expression of what it reads."""
    operands = [one for one in case.inputs if one is not None]
    known = [kind for kind in map(kind_of_operand, operands) if kind is not None]
    graph: Graph = case.attributes["graph"]
    if len(known) < len(operands):
        return None
    writer = _Writer(graph, operands, known)
    for node in graph.nodes:
        if not writer.write(node):
            return None
    w = writer.w
    w.put("cast", case.out.dtype, writer.places[graph.results[0]])
    return ways_of(case, w.written(), operands, tuple(writer.numbers.values()))


class _Writer:
    """Writes the nodes of a tree, bytes as f32 that are whole and in their range."""

    def __init__(self, graph: Graph, operands: list[Operand], kinds: list[str]) -> None:
        self.graph = graph
        self.numbers: dict[str, float] = {}
        """Scales and zero points, by their names."""
        self.places = {value.name: k for k, value in enumerate(graph.inputs)}
        for node in graph.nodes:
            for name in node.inputs[1:3] if _quantises(node) else ():
                if name and name not in self.numbers and not self.is_zero(name):
                    self.places[name] = len(operands) + len(self.numbers)
                    self.numbers[name] = float(graph.constants[name].reshape(-1)[0])
        self.w = Writing(*kinds, *["f32"] * len(self.numbers))

    def is_zero(self, name: str) -> bool:
        """Whether a zero point is 0, which changes nothing."""
        data = self.graph.constants[name]
        return data.dtype != np.float32 and not data.any()

    def write(self, node: Node) -> bool:
        """Append a node; whether that can be said."""
        w = self.w
        if node.operator == "DequantizeLinear":
            x = self.places[node.inputs[0]]
            x = x if w.kind(x) == "f32" else w.put("cast", "f32", x)
            zero = self.zero(node)
            x = w.apply("sub", x, zero) if zero >= 0 else x
            return self.made(node, w.apply("mul", x, self.places[node.inputs[1]]))
        if node.operator == "QuantizeLinear":
            x = w.apply("div", self.places[node.inputs[0]], self.places[node.inputs[1]])
            x = w.apply(Function("round"), x)
            zero = self.zero(node)
            x = w.apply("add", x, zero) if zero >= 0 else x
            if node.outputs[0] not in self.graph.results:
                limits = np.iinfo(self.graph.value(node.outputs[0]).dtype or np.uint8)
                x = w.function("clip", x, float(limits.min), float(limits.max))
            return self.made(node, x)
        return self.computed(node)

    def zero(self, node: Node) -> int:
        """The place of a zero point; -1: it is 0."""
        name = node.inputs[2] if len(node.inputs) > 2 else ""
        return self.places.get(name, -1) if name else -1

    def computed(self, node: Node) -> bool:
        """Append a function, or a binary operation."""
        attributes = {**OPERATORS[node.operator].attributes, **node.attributes}
        constants = self.graph.constants
        scalars = [float(constants[x].reshape(-1)[0]) if x in constants else None for x in node.inputs]
        moving = [self.places[name] for name in node.inputs if name not in constants and name]
        found = functions_of(node.operator, attributes, scalars) if len(moving) == 1 else None
        if found is not None:
            x = moving[0]
            for one in found:
                x = self.w.apply(one, x)
            return self.made(node, x)
        if node.operator not in BINARY or len(moving) != 2:
            return False
        return self.made(node, self.w.apply(BINARY[node.operator], *moving))

    def made(self, node: Node, place: int) -> bool:
        self.places[node.outputs[0]] = place
        return True


def _quantises(node: Node) -> bool:
    return node.operator in ("QuantizeLinear", "DequantizeLinear")
