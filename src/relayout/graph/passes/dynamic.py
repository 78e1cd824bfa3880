"""Products of integers whose scale and zero point are found in each run, as kernels take them.

::

    DynamicQuantizeLinear(x)                 ReduceMin, ReduceMax, and three elementwise steps
    Cast(MatMulInteger(a, w, z))             IntegerMatMul(a, w, z), z in s32
    MatMul(DequantizeLinear(a, s, z), ...)   the same, times s

The sums are integers, less what the zero point adds to them, and exact. They are rounded once, to f32, so
that what follows, scales, a bias and an activation, is a part of the epilogue. ConvInteger likewise.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.operators import OPERATORS, dynamic
from relayout.graph.operators.integers import CONV, MATMUL
from relayout.graph.passes.quantities import BYTES, Filters, in_s8, weights_of
from relayout.graph.passes.rewriting import Around, attribute, rewritten

__all__ = ["with_dynamic_products"]

S32: Final = 6  # by ONNX's number


def with_dynamic_products(graph: Graph) -> Graph:
    """The graph with products of kernels in the place of ONNX's integer products into s32.

    >>> from relayout.graph.graph import Value
    >>> x, z = Value("x", (2, 3), np.dtype("u1")), Value("z", (), np.dtype("u1"))
    >>> nodes = Node("MatMulInteger", ("x", "w", "z"), ("a",)), Node("Cast", ("a",), ("y",), {"to": 1})
    >>> print(with_dynamic_products(Graph((x, z), ("y",), nodes, {"w": np.ones((3, 4), np.int8)})))
    x u8 2x3
    z u8
    y/zero = Cast(z, to=6)
    y = relayout.IntegerMatMul(x, y/constant, y/constant.1, -, -, -, -, y/zero, to=1)
    -> y
    """
    operators = {node.operator for node in graph.nodes}
    if not operators & {"MatMulInteger", "ConvInteger", "DynamicQuantizeLinear", "DequantizeLinear"}:
        return graph
    return rewritten(graph, _cast, _real, _range)


def _cast(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A product into s32 that is read as f32."""
    if node.operator != "Cast" or attribute(node, "to") != 1:
        return None
    product = around.inner(node.inputs[0], "MatMulInteger", "ConvInteger")
    if product is None:
        return None
    x, w, zero, offset = (*product.inputs, "", "")[:4]
    weights = _weights(w, offset, product.operator == "ConvInteger", around)
    if weights is None or around.dtype(x) not in BYTES or around.data(x) is not None:
        return None
    return _product(product, node, x, zero, weights, around)


def _weights(name: str, zero: str, conv: bool, around: Around) -> Filters | None:
    """Constant weights in s8, whose sums are not scaled."""
    data, offset = around.data(name), around.data(zero) if zero else np.zeros((), np.int8)
    if data is None or offset is None or data.dtype not in BYTES or (not conv and data.ndim != 2):
        return None
    axis = 0 if conv else 1
    if 0 in data.shape or offset.size not in (1, data.shape[axis]):
        return None
    moved, points = in_s8(data, offset, axis)
    return Filters(moved, np.ones(1, np.float32), points)


def _product(
    product: Node, node: Node, x: str, zero: str, weights: Filters, around: Around
) -> tuple[Node, ...] | None:
    """The product of bytes less their zero point, which is one number."""
    conv = product.operator in ("ConvInteger", "Conv")
    attributes: dict[str, Any] = {"to": 1}
    if conv:
        given = {name: attribute(product, name) for name in OPERATORS["Conv"].attributes}
        attributes |= {name: one for name, one in given.items() if one not in (None, "NOTSET")}
    if zero and ((dims := around.dims(zero)) is None or any(n != 1 for n in dims)):
        return None
    constants = [around.constant(weights.data, node), around.constant(weights.scale, node)]
    if weights.zero is not None:
        constants += ["", "", "", around.constant(weights.zero, node)]
    operator = CONV if conv else MATMUL
    known = around.data(zero) if zero else np.zeros(1, np.int8)
    if known is not None:
        attributes |= {"zero_point": int(known.reshape(()))} if known.any() else {}
        return (Node(operator, (x, *constants), node.outputs, attributes, product.name),)
    number = around.fresh(f"{node.outputs[0]}/zero")
    constants += [""] * (6 - len(constants)) + [number]
    return (
        Node("Cast", (zero,), (number,), {"to": S32}),
        Node(operator, (x, *constants), node.outputs, attributes, product.name),
    )


def _real(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A product of values that are dequantised by a scale which is a value."""
    if node.operator != "MatMul" or around.dtype(node.outputs[0]) != np.float32:
        return None
    before = around.node(node.inputs[0], "DequantizeLinear")
    weights = weights_of(node.inputs[1], -1, around)
    if before is None or weights is None or weights.data.ndim != 2:
        return None
    if attribute(before, "block_size"):
        return None
    x, scale, zero = (*before.inputs, "")[:3]
    moves = around.data(scale) is None
    if not moves or around.dtype(x) not in BYTES or around.dims(scale) not in ((), (1,)):
        return None
    made = around.fresh(f"{node.outputs[0]}/steps")
    inner = Node(node.operator, node.inputs, (made,), {}, node.name)
    found = _product(node, inner, x, zero, weights, around)
    return None if found is None else (*found, Node("Mul", (made, scale), node.outputs))


def _range(node: Node, around: Around) -> tuple[Node, ...] | None:
    """DynamicQuantizeLinear, step by step."""
    if node.operator != "DynamicQuantizeLinear" or around.dtype(node.inputs[0]) != np.float32:
        return None
    names = [name or around.fresh(f"{node.outputs[0]}/{k}") for k, name in enumerate(node.outputs)]
    made, scale, zero = (*names, *(around.fresh(f"{names[0]}/more") for _ in range(3 - len(names))))
    low, high = (around.fresh(f"{names[0]}/{side}") for side in ("low", "high"))
    x = node.inputs[0]
    return (
        Node("ReduceMin", (x,), (low,), {"keepdims": 0}, node.name),
        Node("ReduceMax", (x,), (high,), {"keepdims": 0}, node.name),
        Node(dynamic.SCALE, (low, high), (scale,), {}, node.name),
        Node(dynamic.ZERO, (low, scale), (zero,), {}, node.name),
        Node(dynamic.BYTES, (x, scale, zero), (made,), {}, node.name),
    )
