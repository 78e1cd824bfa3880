"""Nodes that change nothing.

An operator whose result has the dims of its input and the same elements becomes ``Identity``, whose readers
then read the input (:mod:`~relayout.graph.passes.rewriting`). Where the result is an output of the graph, the
node before it computes it under that name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.passes.rewriting import Around, attribute, equal_dims, rewritten, sizes

__all__ = ["without_identities"]


def without_identities(graph: Graph) -> Graph:
    """The graph without nodes that return what they are given.

    >>> import numpy as np
    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (2, 3), np.dtype("float32"))
    >>> dropout, mul = Node("Dropout", ("x",), ("a",)), Node("Mul", ("a", "1"), ("b",))
    >>> nodes = dropout, mul, Node("Exp", ("b",), ("y",))
    >>> print(without_identities(Graph((x,), ("y",), nodes, {"1": np.float32([1])})))
    x f32 2x3
    y = Exp(x)
    -> y
    """
    return _with_outputs_computed(rewritten(graph, _unchanged))


def _unchanged(node: Node, around: Around) -> tuple[Node, ...] | None:
    test = UNCHANGED.get(node.operator)
    if test is None or (node.operator == "Identity" and not around.outputs.isdisjoint(node.outputs)):
        return None
    source = test(node, around)
    return None if source is None else (Node("Identity", (source,), node.outputs[:1]),)


def _with_outputs_computed(graph: Graph) -> Graph:
    """Identities behind which an output stands, gone where another node can compute the output itself."""
    made = {name for node in graph.nodes for name in node.outputs if name}
    names: dict[str, str] = {}
    for node in graph.nodes:
        source, target = node.inputs[:1], node.outputs[:1]
        if (
            node.operator == "Identity"
            and source[0] in made
            and source[0] not in graph.results
            and source[0] not in names
            and source[0] not in names.values()
            and target[0] not in names.values()
        ):
            names[source[0]] = target[0]
    if not names:
        return graph

    def renamed(some: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in some)

    nodes = tuple(
        Node(node.operator, renamed(node.inputs), renamed(node.outputs), node.attributes, node.name)
        for node in graph.nodes
        if not (node.operator == "Identity" and names.get(node.inputs[0]) == node.outputs[0])
    )
    return graph.replaced(nodes=nodes)


# ---- the input that is returned, or None


def _always(node: Node, around: Around) -> str | None:
    return node.inputs[0]


def _alone(node: Node, around: Around) -> str | None:
    """Of one operand."""
    return node.inputs[0] if len(node.inputs) == 1 else None


def _same_dims(node: Node, around: Around) -> str | None:
    return node.inputs[0] if equal_dims(around.dims(node.inputs[0]), around.dims(node.outputs[0])) else None


def _dropout(node: Node, around: Around) -> str | None:
    training = around.data(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.array(False)
    masked = len(node.outputs) > 1 and bool(node.outputs[1]) and around.reads[node.outputs[1]] > 0
    return None if training is None or training.any() or masked else node.inputs[0]


def _cast(node: Node, around: Around) -> str | None:
    before, after = around.dtype(node.inputs[0]), around.dtype(node.outputs[0])
    return node.inputs[0] if before is not None and before == after else None


def _transpose(node: Node, around: Around) -> str | None:
    perm = attribute(node, "perm")
    return node.inputs[0] if perm is not None and list(perm) == sorted(perm) else None


def _pad(node: Node, around: Around) -> str | None:
    pads = around.data(node.inputs[1])
    return node.inputs[0] if pads is not None and not pads.any() else None


def _slice(node: Node, around: Around) -> str | None:
    steps = around.data(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else np.array(1)
    return _same_dims(node, around) if steps is not None and (steps == 1).all() else None


def _split(node: Node, around: Around) -> str | None:
    return node.inputs[0] if len(node.outputs) == 1 and _same_dims(node, around) else None


def _tile(node: Node, around: Around) -> str | None:
    repeats = around.data(node.inputs[1])
    return node.inputs[0] if repeats is not None and (repeats == 1).all() else None


def _resize(node: Node, around: Around) -> str | None:
    kind = attribute(node, "mode"), attribute(node, "coordinate_transformation_mode")
    plain = kind[0] in ("nearest", "linear") and kind[1] in ("half_pixel", "asymmetric")
    known = sizes(around.dims(node.inputs[0]))
    scales = around.data(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.array(1.0)
    if not plain or known is None or scales is None or not (scales == 1).all():
        return None
    return _same_dims(node, around)


def _reduction(node: Node, around: Around) -> str | None:
    """Over axes of one element, or over none."""
    known = sizes(around.dims(node.inputs[0]))
    return _same_dims(node, around) if known is not None else None


def _neutral(number: float, commutes: bool) -> Callable[[Node, Around], str | None]:
    def test(node: Node, around: Around) -> str | None:
        name, other = node.inputs
        data = around.data(other)
        if commutes and data is None:
            name, other = other, name
            data = around.data(other)
        if data is None or around.data(name) is not None or not np.all(data == number):
            return None
        same = data.ndim == 0 or equal_dims(around.dims(name), around.dims(node.outputs[0]))
        return name if same else None

    return test


def _clip(node: Node, around: Around) -> str | None:
    return None if any(node.inputs[1:]) else node.inputs[0]


def _relu(node: Node, around: Around) -> str | None:
    return node.inputs[0] if around.node(node.inputs[0], "Relu", "Sigmoid", "Softmax", "Abs") else None


def _where(node: Node, around: Around) -> str | None:
    condition = around.data(node.inputs[0])
    if condition is None or not (condition.all() or not condition.any()):
        return None
    name = node.inputs[1 if condition.all() else 2]
    return name if equal_dims(around.dims(name), around.dims(node.outputs[0])) else None


UNCHANGED: Final[dict[str, Callable[[Node, Around], str | None]]] = {
    "Identity": _always,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast,
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Resize": _resize,
    "Clip": _clip,
    "Relu": _relu,
    "Where": _where,
    "Mul": _neutral(1, True),
    "Div": _neutral(1, False),
    "Add": _neutral(0, True),
    "Sub": _neutral(0, False),
    "Pow": _neutral(1, False),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand"), _same_dims),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _alone),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"), _reduction),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _reduction),
}
