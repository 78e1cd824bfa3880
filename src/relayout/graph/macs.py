"""Multiply-adds of a node: what networks are usually compared by.

Sums of products are counted, as everywhere: convolutions, matrix products, recurrent layers. What is done
element by element is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from relayout.graph.graph import Graph, Node

__all__ = ["multiply_adds"]


def multiply_adds(node: Node, graph: Graph) -> int | None:
    """Multiply-adds of a node; 0 where it computes no sums of products.

    Parameters
    ----------
    node : Node
        Of the graph.
    graph : Graph
        With dims (:func:`relayout.graph.inference.inferred`).

    Returns
    -------
    int or None
        None: dims are not known.

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph.inference import inferred
    >>> from relayout.graph.graph import Value
    >>> x, w = Value("x", (1, 3, 8, 8), np.dtype("f4")), np.zeros((16, 3, 3, 3), "f4")
    >>> conv = Node("Conv", ("x", "w"), ("y",))
    >>> multiply_adds(conv, inferred(Graph((x,), ("y",), (conv,), {"w": w})))
    15552
    """
    count = COUNTS.get(node.operator)
    if count is None:
        return 0
    dims = [graph.value(name).dims if name else () for name in (*node.inputs, *node.outputs)]
    if any(one is None or not all(type(n) is int for n in one) for one in dims):
        return None
    inputs = dims[: len(node.inputs)]
    return count(node, inputs, dims[len(inputs)])


def _prod(sizes: Any) -> int:
    return int(math.prod(sizes))


def _conv(node: Node, inputs: list[Any], out: Any) -> int:
    return _prod(out) * _prod(inputs[1][1:])


def _transposed(node: Node, inputs: list[Any], out: Any) -> int:
    return _prod(inputs[0]) * _prod(inputs[1][1:])


def _by_weights(node: Node, inputs: list[Any], out: Any) -> int:
    return _prod(inputs[0]) * _prod(out[1:])


def _matmul(node: Node, inputs: list[Any], out: Any) -> int:
    return _prod(out) * int(inputs[0][-1])


def _gemm(node: Node, inputs: list[Any], out: Any) -> int:
    return _prod(out) * int(inputs[0][0 if node.attributes.get("transA") else 1])


def _attention(node: Node, inputs: list[Any], out: Any) -> int:
    q, k, v = inputs[:3]
    keys = int(k[-2])
    if len(q) == 4:
        return _prod(q) * keys + (_prod(q[:-1]) * keys * int(v[-1]) if node.outputs[0] else 0)
    query_heads = int(node.attributes["q_num_heads"])
    width = int(v[-1]) // int(node.attributes["kv_num_heads"]) * query_heads
    return _prod(q) * keys + int(q[0] * q[1]) * keys * width


def _recurrent(node: Node, inputs: list[Any], out: Any) -> int:
    length, batch = map(int, inputs[0][:2])
    return length * batch * (_prod(inputs[1]) + _prod(inputs[2]))


def _einsum(node: Node, inputs: list[Any], out: Any) -> int | None:
    terms = str(node.attributes["equation"]).replace(" ", "").partition("->")[0].split(",")
    if "." in "".join(terms) or len(terms) < 2:
        return None
    sizes = {
        letter: n
        for term, dims in zip(terms, inputs, strict=True)
        for letter, n in zip(term, dims, strict=True)
    }
    return _prod(sizes.values())


COUNTS: Final[dict[str, Callable[[Node, list[Any], Any], int | None]]] = {
    "Conv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": lambda node, inputs, out: _prod(out) * _prod(inputs[3][1:]),
    "ConvTranspose": _transposed,
    "relayout.ConvGradInput": _transposed,
    "relayout.ConvGradWeights": _by_weights,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Attention": _attention,
    "Einsum": _einsum,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
"""For each operator a function of the node and of dims: of its inputs and of its first output."""
