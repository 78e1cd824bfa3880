"""Losses of classes, written out in operators that have kernels.

::

    SoftmaxCrossEntropyLoss(x, t)  ->  NegativeLogLikelihoodLoss(LogSoftmax(x), t)
    NegativeLogLikelihoodLoss(l, t)  ->  -mean(GatherElements(l, t))

What is gathered is small. With weights, or classes that do not count, each logarithm is weighed, and the mean
is divided by the sum of weights. Gathering refuses classes that there are not, those below 0 among them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from relayout.graph.gradients.reverse import Writing
from relayout.graph.graph import Graph, Node
from relayout.graph.operators.types import NUMBERS

__all__ = ["with_losses_written_out"]

LOSSES: Final = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
F32 = np.dtype("float32")
REALS: Final = {NUMBERS[number]: number for number in (1, 10, 16)}
"""The data types of losses with kernels, and what the attribute of a Cast calls them."""


def with_losses_written_out(graph: Graph) -> Graph:
    """The graph with losses as operators that have kernels, those of 16 bits in f32; dims must be known.

    Examples
    --------
    >>> from relayout.graph.graph import Value
    >>> x, t = Value("x", (4, 3), F32), Value("t", (4,), np.dtype("int64"))
    >>> loss = Node("NegativeLogLikelihoodLoss", ("x", "t"), ("loss",), {"reduction": "sum"})
    >>> [node.operator for node in with_losses_written_out(Graph((x, t), ("loss",), (loss,))).nodes]
    ['Unsqueeze', 'GatherElements', 'Squeeze', 'Neg', 'ReduceSum']
    """
    if not any(node.operator in LOSSES for node in graph.nodes):
        return graph
    writing = Writing(graph._known, graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        dims = writing.dims(node.inputs[0]) if node.operator in LOSSES else ()
        if not dims or 0 in dims or writing.dtype(node.inputs[0]) not in REALS:
            nodes.append(node)
            continue
        first = len(writing.nodes)
        _written(writing, node)
        nodes += writing.nodes[first:]
    values = {name: value for name, value in writing.values.items() if name not in writing.constants}
    return graph.replaced(nodes=tuple(nodes), constants=writing.constants, values=values)


def _written(writing: Writing, node: Node) -> None:
    a: dict[str, Any] = {"reduction": "mean", "ignore_index": None, **node.attributes}
    x, targets, weights = (*node.inputs, "")[:3]
    number, narrow = REALS[writing.dtype(x)], writing.dtype(x) != F32
    if narrow:
        x = writing("Cast", x, to=REALS[F32])
        weights = writing("Cast", weights, to=REALS[F32]) if weights else ""
    if node.operator == "SoftmaxCrossEntropyLoss":
        wanted = (*node.outputs, "")[1]
        kept = wanted if wanted and not narrow else writing.unused(f"{node.outputs[0]}/logarithms")
        writing.append(Node("LogSoftmax", (x,), (kept,), {"axis": 1}, kept))
        if wanted and narrow:
            writing.append(Node("Cast", (kept,), (wanted,), {"to": number}, wanted))
        x = kept
    index, each, counted = targets, "", ""
    if a["ignore_index"] is not None:
        counted = writing("Not", writing("Equal", targets, writing.number(a["ignore_index"], targets)))
        index = writing("Where", counted, index, writing.number(0, targets))
    if weights:
        each = writing("Gather", weights, index, from_end=0)
    if counted:
        each = writing("Where", counted, each or writing.number(1, x), writing.number(0, x))
    axis = writing.integers(1)
    label = f"classes of {node.outputs[0]}"  # what an error names
    places = writing("Unsqueeze", index, axis)
    found = writing("GatherElements", x, places, label=label, axis=1, from_end=0)
    found = writing("Neg", writing("Squeeze", found, axis))
    if each:
        found = writing("Mul", found, each)
    loss = (writing.unused(f"{node.outputs[0]} in f32") if narrow else node.outputs[0],)
    if a["reduction"] == "none":
        writing.append(Node("Identity", (found,), loss, {}, node.name))
    elif a["reduction"] == "mean" and each:
        sums = (writing("ReduceSum", one, keepdims=0) for one in (found, each))
        writing.append(Node("Div", tuple(sums), loss, {}, node.name))
    else:
        operator = "ReduceMean" if a["reduction"] == "mean" else "ReduceSum"
        writing.append(Node(operator, (found,), loss, {"keepdims": 0}, node.name))
    if narrow:
        writing.append(Node("Cast", loss, node.outputs[:1], {"to": number}, node.outputs[0]))
