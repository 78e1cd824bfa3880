"""Products whose weights move (they are learned, or computed), in operators whose kernels take such weights.

::

    ConvTranspose(x, w, b)  ->  relayout.ConvGradInput(x, w) + b    the gradient of a convolution, by data
    Gemm(a, b, c)           ->  MatMul(a, b) + c                    unless it is a layer: rows by weights b'
    MatMul(a, v)            ->  MatMul(a, V), reshaped              a vector v as a matrix V of one column
"""

from __future__ import annotations

from typing import Any, Final

from relayout.errors import LayoutError
from relayout.graph.gradients.convolution import transposed
from relayout.graph.gradients.reverse import Reverse, Writing
from relayout.graph.graph import Graph, Node

__all__ = ["with_moving_weights"]

FLOATS: Final = ("float16", "bfloat16", "float32")


def with_moving_weights(graph: Graph) -> Graph:
    """The graph where products by weights that are no constants have kernels; dims must be known.

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph.graph import Value
    >>> x, w = Value("x", (1, 2, 5), np.dtype("f4")), Value("w", (2, 3, 4), np.dtype("f4"))
    >>> node = Node("ConvTranspose", ("x", "w"), ("y",), {"strides": (2,)})
    >>> y = Value("y", (1, 3, 12), np.dtype("f4"))
    >>> [made.operator for made in with_moving_weights(Graph((x, w), ("y",), (node,), values={"y": y})).nodes]
    ['relayout.ConvGradInput']
    """
    changes = {"ConvTranspose": _transposed, "Gemm": _gemm, "MatMul": _vectors}
    if not any(node.operator in changes for node in graph.nodes):
        return graph
    writing = Writing(graph._known, graph.constants)
    for node in graph.nodes:
        change = changes.get(node.operator)
        if change is None or not _moves(node, graph) or not change(writing, node):
            writing.append(node)
    values = {name: value for name, value in writing.values.items() if name not in writing.constants}
    return graph.replaced(nodes=tuple(writing.nodes), constants=writing.constants, values=values)


def _moves(node: Node, graph: Graph) -> bool:
    """Whether the weights of a product move, and its source; that of a layer may be a constant."""
    fixed = [name in graph.constants for name in node.inputs[:2]]
    return not any(fixed) or (node.operator == "Gemm" and fixed == [True, False])


def _added(
    writing: Writing, node: Node, operator: str, inputs: tuple[str, ...], bias: str, **given: Any
) -> bool:
    """Append a product, and a bias behind it."""
    if not bias:
        writing.append(Node(operator, inputs, node.outputs, given, node.name))
        return True
    product = writing(operator, *inputs, label=f"{node.outputs[0]}/product", **given)
    writing.append(Node("Add", (product, bias), node.outputs, {}, f"{node.name}.bias" if node.name else ""))
    return True


def _transposed(writing: Writing, node: Node) -> bool:
    x, w, bias = (*node.inputs, "")[:3]
    dims = writing.dims(x)
    try:
        same = transposed(Reverse(writing, node, [None], [False] * 3), dims, writing.dims(w))
    except LayoutError:
        return False
    if bias:
        bias = writing("Reshape", bias, writing.integers(-1, *(1,) * (len(dims) - 2)))
    return _added(
        writing, node, "relayout.ConvGradInput", (x, w), bias, dims=writing.dims(node.outputs[0]), **same
    )


def _vectors(writing: Writing, node: Node) -> bool:
    """A vector is a row on the left, a column on the right."""
    dims = [writing.dims(name) for name in node.inputs]
    out = writing.dims(node.outputs[0])
    if min(map(len, dims)) > 1 or any(0 in one for one in (*dims, out)):
        return False
    shapes = [(1, *dims[0])[-2:], (*dims[1], 1)[:2]]
    given = [
        writing("Reshape", name, writing.integers(*shape)) if len(one) == 1 else name
        for name, one, shape in zip(node.inputs, dims, shapes, strict=True)
    ]
    product = writing("MatMul", *given, label=f"{node.outputs[0]}/product")
    writing.append(Node("Reshape", (product, writing.integers(*out)), node.outputs, {}, node.name))
    return True


def _gemm(writing: Writing, node: Node) -> bool:
    a, (x, w, bias) = node.attributes, (*node.inputs, "")[:3]
    plain = a.get("alpha", 1) == 1 and (not bias or a.get("beta", 1) == 1)
    columns = writing.dims(node.outputs[0])[1:]
    rows = x not in writing.constants and not a.get("transA")
    layer = rows and a.get("transB") and (not bias or writing.dims(bias) == columns)
    if not plain or layer or writing.dtype(x).name not in FLOATS:
        return False
    left, right = (
        writing("Transpose", name, perm=(1, 0)) if a.get(flag) else name
        for name, flag in ((x, "transA"), (w, "transB"))
    )
    return _added(writing, node, "MatMul", (left, right), bias)
