"""Normalisations and Softmax that exporters write out, as one node.

::

    (x - mean(x)) / sqrt(mean((x - mean(x))^2) + e)      LayerNormalization over the last axes,
                                                         InstanceNormalization over all spatial ones
    x / sqrt(mean(x^2) + e)                              RMSNormalization over the last axes
    Reshape, InstanceNormalization, Reshape              GroupNormalization
    exp(x - max(x)) / sum(exp(x - max(x)))               Softmax

Scale and bias are ones and zeros at first. A Mul and an Add behind the node, which have the right dims,
become scale and bias: constants in :mod:`~relayout.graph.passes.affine`, and values that are computed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.passes.rewriting import Around, attribute, equal_dims, rewritten, sizes

__all__ = ["with_normalizations"]


def with_normalizations(graph: Graph) -> Graph:
    """The graph with one node for each normalisation and Softmax that is written out.

    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (2, 3), np.dtype("float32"))
    >>> top, d = Node("ReduceMax", ("x", "axes"), ("m",)), Node("Sub", ("x", "m"), ("d",))
    >>> e, total = Node("Exp", ("d",), ("e",)), Node("ReduceSum", ("e", "axes"), ("s",))
    >>> nodes = top, d, e, total, Node("Div", ("e", "s"), ("y",))
    >>> print(with_normalizations(Graph((x,), ("y",), nodes, {"axes": np.array([-1])})))
    x f32 2x3
    y = Softmax(x, axis=1)
    -> y
    """
    return rewritten(graph, _standardised, _grouped, _softmax, _scaled)


class _Mean(NamedTuple):
    source: str
    axes: tuple[int, ...]


def _reduced(node: Node | None, around: Around) -> _Mean | None:
    """What a reduction that keeps its axes reduces, and over which."""
    if node is None or not attribute(node, "keepdims"):
        return None
    dims = around.dims(node.inputs[0])
    axes = around.data(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    if dims is None or not dims or axes is None or not axes.size:
        return None
    return _Mean(node.inputs[0], tuple(sorted(int(axis) % len(dims) for axis in axes.reshape(-1))))


def _roots(node: Node, around: Around) -> Iterator[tuple[str, str]]:
    """What a node divides by a root, and what the root is taken of."""
    if node.operator == "Div":
        root = around.inner(node.inputs[1], "Sqrt")
        if root is not None:
            yield node.inputs[0], root.inputs[0]
    if node.operator != "Mul":
        return
    for x, name in around.operands(node):
        inverse = around.inner(name, "Reciprocal", "Pow", "Div")
        if inverse is None:
            continue
        if inverse.operator == "Pow":
            if around.number(inverse.inputs[1]) == -0.5:
                yield x, inverse.inputs[0]
            continue
        if inverse.operator == "Div" and around.number(inverse.inputs[0]) != 1:
            continue
        root = around.inner(inverse.inputs[-1], "Sqrt")
        if root is not None:
            yield x, root.inputs[0]


def _square(name: str, around: Around) -> str | None:
    """What is squared."""
    node = around.inner(name, "Mul", "Pow")
    if node is None:
        return None
    if node.operator == "Pow":
        return node.inputs[0] if around.number(node.inputs[1]) == 2 else None
    return node.inputs[0] if node.inputs[0] == node.inputs[1] else None


def _standardised(node: Node, around: Around) -> tuple[Node, ...] | None:
    for x, sum_ in _roots(node, around):
        total = around.inner(sum_, "Add")
        if total is None:
            continue
        for name, other in around.operands(total):
            epsilon = around.number(other)
            mean = _reduced(around.inner(name, "ReduceMean"), around)
            if epsilon is None or epsilon < 0 or mean is None or _square(mean.source, around) != x:
                continue
            made = _normalization(node, x, mean.axes, epsilon, around)
            if made is not None:
                return made
    return None


def _normalization(
    node: Node, x: str, axes: tuple[int, ...], epsilon: float, around: Around
) -> tuple[Node, ...] | None:
    dims = around.dims(x)
    if dims is None or not around.floating(x):
        return None
    centred = around.node(x, "Sub")
    average = around.node(centred.inputs[1], "ReduceMean") if centred is not None else None
    mean = _reduced(average, around)
    subtracted = centred is not None and mean == _Mean(centred.inputs[0], axes)
    source = centred.inputs[0] if centred is not None and subtracted else x
    last, rank, dtype = axes[0], len(dims), around.dtype(x)
    if axes == tuple(range(last, rank)) and (not subtracted or last != 2 or rank < 4):
        shape = sizes(dims[last:])
        if shape is None:
            return None
        scale = around.constant(np.ones(shape, dtype), node)
        inputs = (source, scale)
        operator = "LayerNormalization" if subtracted else "RMSNormalization"
        return (Node(operator, inputs, node.outputs, {"axis": last - rank, "epsilon": epsilon}, node.name),)
    if not subtracted or axes != tuple(range(2, rank)) or not isinstance(dims[1], int):
        return None
    names = (around.constant(f(dims[1], dtype), node) for f in (np.ones, np.zeros))
    return (Node("InstanceNormalization", (source, *names), node.outputs, {"epsilon": epsilon}, node.name),)


def _grouped(node: Node, around: Around) -> tuple[Node, ...] | None:
    """Groups of channels as the channels of an InstanceNormalization, between two Reshapes."""
    normal = around.inner(node.inputs[0], "InstanceNormalization") if node.operator == "Reshape" else None
    before = around.inner(normal.inputs[0], "Reshape") if normal is not None else None
    if normal is None or before is None:
        return None
    source = before.inputs[0]
    dims, grouped = around.dims(source), around.dims(normal.inputs[0])
    scale, bias = (around.data(name) for name in normal.inputs[1:3])
    if not equal_dims(dims, around.dims(node.outputs[0])) or dims is None or grouped is None:
        return None
    if scale is None or bias is None or len(dims) < 2 or dims[0] != grouped[0]:
        return None
    groups, channels = grouped[1], dims[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or groups < 1 or channels % groups:
        return None
    names = (around.constant(np.repeat(one, channels // groups), node) for one in (scale, bias))
    attributes = {"num_groups": groups, "epsilon": attribute(normal, "epsilon")}
    return (Node("GroupNormalization", (source, *names), node.outputs, attributes, normal.name),)


def _softmax(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator != "Div":
        return None
    exponential, total = around.node(node.inputs[0], "Exp"), around.inner(node.inputs[1], "ReduceSum")
    along = _reduced(total, around)
    difference = around.inner(exponential.inputs[0], "Sub") if exponential is not None else None
    if exponential is None or along is None or difference is None or along.source != node.inputs[0]:
        return None
    largest = _reduced(around.node(difference.inputs[1], "ReduceMax"), around)
    if largest != _Mean(difference.inputs[0], along.axes) or len(along.axes) != 1:
        return None
    if around.reads[node.inputs[0]] != 2:
        return None
    return (Node("Softmax", difference.inputs[:1], node.outputs, {"axis": along.axes[0]}, node.name),)


def _scaled(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A scale or bias that is computed, behind one of ones or none."""
    if node.operator not in ("Mul", "Add"):
        return None
    for x, other in around.operands(node):
        normal = around.inner(x, "LayerNormalization", "RMSNormalization")
        if normal is None or around.data(other) is not None:
            continue
        if not equal_dims(around.dims(other), around.dims(normal.inputs[1])):
            continue
        scale = around.data(normal.inputs[1])
        biased = len(normal.inputs) > 2 and bool(normal.inputs[2])
        if node.operator == "Mul" and not biased and scale is not None and (scale == 1).all():
            inputs: tuple[str, ...] = (normal.inputs[0], other)
        elif node.operator == "Add" and not biased and normal.operator == "LayerNormalization":
            inputs = (*normal.inputs[:2], other)
        else:
            continue
        return (Node(normal.operator, inputs, node.outputs, normal.attributes, normal.name),)
    return None
