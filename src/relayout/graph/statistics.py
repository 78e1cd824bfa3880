"""Normalisations in the form that keeps for the backward pass what it needs of the forward pass.

::

    relayout.BatchNormalizationTraining(x, scale, bias) -> z, m, v;  Relu(z) -> y
                                           the same with relu=1 -> y, m, v, and where z was positive

    LayerNormalization(x, scale, bias)     relayout.LayerNormalizationTraining(x, scale', bias') -> y, m, v
    RMSNormalization(x, scale)             the same with rms=1, without m
    InstanceNormalization, GroupNorm...    relayout.GroupNormalizationTraining -> y, m, v

where scale' is the scale with the dims of a row: as ONNX has it, it may be broadcast. That is what kernels
are given, and its gradient is the sum over what was repeated. The mean and one by the deviation, which a
LayerNormalization may return as well, are computed from the statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from math import prod
from typing import Final

import numpy as np

from relayout.graph.gradients.reverse import Writing
from relayout.graph.graph import Graph, Node, Value

__all__ = ["with_statistics"]


def with_statistics(graph: Graph, active: Collection[str], writing: Writing) -> Graph:
    """The graph where normalisations of what depends on ``active`` values keep what gradients read.

    ``writing`` knows the values of the graph, and learns those that are new.
    """
    nodes: list[Node] = []
    for node in _rectified(graph, active, writing):
        change = CHANGES.get(node.operator)
        if change is None or not any(name in active for name in node.inputs):
            nodes.append(node)
            continue
        first = len(writing.nodes)
        change(writing, node)
        nodes += writing.nodes[first:]
        del writing.nodes[first:]
    return graph.replaced(nodes=tuple(nodes), constants=writing.constants)


def _rectified(graph: Graph, active: Collection[str], writing: Writing) -> Iterator[Node]:
    """The nodes, those of a ReLU in the batch normalisations that nothing else reads.

    Forward and backward that is a pass less over what lies between them. Which elements passed is a byte for
    each.
    """
    reads = Counter(name for node in graph.nodes for name in node.inputs)
    reads.update(graph.results)
    made = {
        node.inputs[0]: node.outputs[0]
        for node in graph.nodes
        if node.operator == "Relu" and reads[node.inputs[0]] == 1 and node.inputs[0] in active
    }
    joined: set[str] = set()
    for node in graph.nodes:
        target = made.get(node.outputs[0])
        if node.operator == "relayout.BatchNormalizationTraining" and target and not node.outputs[3:]:
            passed = writing.unused(f"{node.outputs[0]}/passed")
            outputs = target, *node.outputs[1:], passed
            writing.values[passed] = Value(passed, writing.dims(target), np.dtype(bool))
            joined.add(target)
            yield Node(node.operator, node.inputs, outputs, {**node.attributes, "relu": 1}, node.name)
        elif node.outputs[0] not in joined:
            yield node


def _rows(writing: Writing, node: Node) -> None:
    x, dims = node.inputs[0], writing.dims(node.inputs[0])
    axis, rms = int(node.attributes.get("axis", -1)) % len(dims), node.operator == "RMSNormalization"
    tables = [_wide(writing, name, dims[axis:]) for name in node.inputs[1:]]
    several = (*node.outputs, "", "")[:3]
    mean, variance = (writing.unused(f"{node.outputs[0]}/{what}") for what in ("mean", "variance"))
    attributes = {"axis": axis, "epsilon": node.attributes.get("epsilon", 1e-5), "rms": int(rms)}
    operator = "relayout.LayerNormalizationTraining"
    outputs = several[0], "" if rms else mean, variance
    writing.append(Node(operator, (x, *tables), outputs, attributes, node.name))
    if not any(several[1:]):
        return
    kept = writing.integers(*dims[:axis], *(1,) * (len(dims) - axis))
    if several[1]:
        writing.append(Node("Reshape", (mean, kept), (several[1],), {"allowzero": 1}))
    if several[2]:
        more = writing("Add", variance, writing.number(attributes["epsilon"], variance))
        inverse = writing("Reciprocal", writing("Sqrt", more))
        writing.append(Node("Reshape", (inverse, kept), (several[2],), {"allowzero": 1}))


def _wide(writing: Writing, name: str, row: tuple[int, ...]) -> str:
    """A scale or bias with the dims of a row."""
    dims = writing.dims(name)
    if dims == row:
        return name
    if prod(dims) == prod(row):
        return str(writing("Reshape", name, writing.integers(*row), allowzero=1))
    if len(dims) > len(row):  # 1s in front
        name = writing("Reshape", name, writing.integers(*dims[len(dims) - len(row) :]), allowzero=1)
    return str(writing("Expand", name, writing.integers(*row)))


def _groups(writing: Writing, node: Node) -> None:
    instance = node.operator == "InstanceNormalization"
    groups = writing.dims(node.inputs[0])[1] if instance else int(node.attributes["num_groups"])
    mean, variance = (writing.unused(f"{node.outputs[0]}/{what}") for what in ("mean", "variance"))
    attributes = {"num_groups": groups, "epsilon": node.attributes.get("epsilon", 1e-5)}
    outputs = node.outputs[0], mean, variance
    writing.append(Node("relayout.GroupNormalizationTraining", node.inputs, outputs, attributes, node.name))


CHANGES: Final[dict[str, Callable[[Writing, Node], None]]] = {
    "LayerNormalization": _rows,
    "RMSNormalization": _rows,
    "InstanceNormalization": _groups,
    "GroupNormalization": _groups,
}
