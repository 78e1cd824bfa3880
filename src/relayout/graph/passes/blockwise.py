"""Products by constant weights that are dequantised on the way, in the operator whose kernel reads them.

::

    MatMul(x, DequantizeLinear(w, scale, zero))              ->  relayout.MatMulNBits(x, w', scale, zero)
    MatMul(x, Transpose(DequantizeLinear(...)))
    Gemm(x, DequantizeLinear(...), c)                        ->  and an Add behind it

for weights of 4 bits with scales by tensor, by output or by block of inputs, and for those of 8 bits in
blocks. The weights ``w'`` are the same numbers, outputs first and unsigned, so that nothing larger than they
are is ever made of them. It is done for kernels, behind all other passes.

Where a product says that its source may be rounded to 8 bits, it says so afterwards. Whoever asks for f32
(``compile(precision="f32")``) does not permit that: :func:`unpermitted`.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from relayout.graph.graph import Array, Graph, Node
from relayout.graph.operators.blockwise import BLOCKWISE
from relayout.graph.passes.rewriting import Around, attribute, rewritten, sizes
from relayout.records import replace

__all__ = ["unpermitted", "with_blockwise_products"]

HALF: Final = {"int4": 8, "uint4": 0, "int8": 128, "uint8": 0}
"""What makes unsigned numbers of weights."""

FLOATS: Final = ("float32", "float16", "bfloat16")

PERMISSION: Final = "source_bits"
"""The attribute that says to how many bits a source may be rounded."""


def with_blockwise_products(graph: Graph) -> Graph:
    """The graph with one node for each product by dequantised constants; dims must be known.

    Examples
    --------
    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (1, 64), np.dtype("f4"))
    >>> real = Node("DequantizeLinear", ("w", "scale"), ("real",), {"axis": 0, "block_size": 32})
    >>> product = Node("MatMul", ("x", "real"), ("y",))
    >>> weights = np.zeros((64, 8), ml_dtypes.int4)
    >>> constants = {"w": weights, "scale": np.ones((2, 8), np.float32)}
    >>> print(with_blockwise_products(Graph((x,), ("y",), (real, product), constants)))
    x f32 1x64
    y = relayout.MatMulNBits(x, y/constant, y/constant.1, block_size=32)
    -> y
    """
    if not any(node.operator == "DequantizeLinear" for node in graph.nodes):
        return graph
    return rewritten(graph, _product)


def unpermitted(graph: Graph) -> Graph:
    """The graph without permissions to round sources.

    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (1, 64), np.dtype("f4"))
    >>> product = Node("MatMul", ("x", "w"), ("y",), {"source_bits": 8})
    >>> print(unpermitted(Graph((x,), ("y",), (product,), {"w": np.zeros((64, 8), np.float32)})))
    x f32 1x64
    y = MatMul(x, w)
    -> y
    """

    def exact(node: Node) -> Node:
        kept = {
            name: unpermitted(value) if isinstance(value, Graph) else value
            for name, value in node.attributes.items()
            if name != PERMISSION
        }
        return replace(node, attributes=kept)

    return replace(graph, nodes=tuple(map(exact, graph.nodes)))


def _product(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator not in ("MatMul", "Gemm"):
        return None
    x, right, *more = node.inputs
    turned = node.operator == "Gemm" and bool(attribute(node, "transB"))
    plain = node.operator == "MatMul" or (
        not attribute(node, "transA") and attribute(node, "alpha") == attribute(node, "beta") == 1
    )
    before = around.node(right, "Transpose")
    if before is not None and tuple(attribute(before, "perm") or (1, 0)) == (1, 0):
        right, turned = before.inputs[0], not turned
    real = around.node(right, "DequantizeLinear")
    dims, kind = sizes(around.dims(x)), around.dtype(x)
    if real is None or not plain or dims is None or kind is None or kind.name not in FLOATS:
        return None
    if around.data(x) is not None or len(dims) < 2 or 0 in dims or around.dtype(right) != kind:
        return None
    found = _weights(real, around, turned)
    if found is None:
        return None
    codes, scales, points, block = found
    names = [around.constant(codes, node), around.constant(scales, node)]
    if (points != (1 << (3 if codes.dtype.name == "uint4" else 7))).any():
        names.append(around.constant(points, node))
    target, added = node.outputs, [name for name in more if name]
    if added:
        target = (around.fresh(f"{node.outputs[0]}/product"),)
    attributes = {"block_size": block}
    if node.operator == "MatMul" and attribute(node, PERMISSION) == 8:
        attributes[PERMISSION] = 8
    made = Node(BLOCKWISE, (x, *names), target, attributes, node.name)
    return (made, *(Node("Add", (target[0], name), node.outputs, {}, node.name) for name in added))


def _weights(real: Node, around: Around, turned: bool) -> tuple[Array, Array, Array, int] | None:
    """Unsigned weights of ``n x k``, scales and zero points of ``n x blocks``, and the size of a block."""
    codes, scale = around.data(real.inputs[0]), around.data(real.inputs[1])
    name = real.inputs[2] if len(real.inputs) > 2 else ""
    points = around.data(name) if name else None
    if codes is None or scale is None or (name and points is None) or codes.ndim != 2 or 0 in codes.shape:
        return None
    if codes.dtype.name not in HALF or scale.dtype.name not in FLOATS:
        return None
    axis, block = attribute(real, "axis") % 2, int(attribute(real, "block_size"))
    inputs = 1 if turned else 0  # the axis of the weights
    k, n = codes.shape[inputs], codes.shape[1 - inputs]
    if "4" in codes.dtype.name and k % 2:  # rows would begin within bytes
        return None
    zeros = np.zeros(scale.shape, codes.dtype) if points is None else points
    if block:
        if axis != inputs or (block % 8 and block < k):
            return None
        tables = [one if turned else one.T for one in (scale, zeros)]
    elif scale.size == 1 or axis != inputs:
        if "4" not in codes.dtype.name:
            return None
        block = k
        tables = [np.broadcast_to(one.reshape(-1, 1), (n, 1)) for one in (scale, zeros)]
    else:
        return None
    if any(one.shape != (n, -(-k // block)) for one in tables):
        return None
    half = HALF[codes.dtype.name]
    return (
        _unsigned(codes if turned else codes.T, half),
        np.ascontiguousarray(tables[0]),  # f32, or as narrow as the model has them
        _shifted(tables[1], half),
        block,
    )


def _unsigned(codes: Array, half: int) -> Array:
    """Weights plus half of their range, in the unsigned type of as many bits."""
    kind: Any = ml_dtypes.uint4 if "4" in codes.dtype.name else np.uint8
    return _shifted(codes, half).astype(kind)


def _shifted(numbers: Array, half: int) -> Array:
    """Numbers of 4 or 8 bits plus half of their range, as bytes."""
    if not half:
        return np.ascontiguousarray(numbers.astype(np.uint8))
    shifted: Array = np.ascontiguousarray(numbers).astype(np.int8).view(np.uint8) + np.uint8(half)
    return shifted
