"""Attention in the form of what kernels do: products of matrices, and a softmax between them.

::

    Attention(q, k, v, mask)  ->  MatMul(Softmax(MatMul(q * scale, k transposed) + bias), v)

The bias is the mask, 0 or minus infinity where it has truth values, and what ``is_causal`` hides. Queries
from which it hides all keys have weights of 0, as the operator has it, and not what softmax makes of them.
They are found by the bias alone, so that a NaN in a query, or in a key that is seen, stays one.

A mask of f16 often has the lowest number, -65504, in the place of minus infinity. Added to scores in f16 it
leaves nothing of these, and a query that sees nothing would have equal weights, where kernels that add in f32
give those of its scores. So the largest element of each row is taken off first, which changes no softmax.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.passes.rewriting import Around, rewritten, sizes

__all__ = ["with_plain_attention"]

WEIGHTS = 3  # of qk_matmul_output_mode: the fourth output is what softmax has made

OTHERS = {
    "left_window_size": -1,
    "right_window_size": -1,
    "softcap": 0.0,
    "softmax_precision": None,
}
"""Attributes that have to be what they are by default."""


def with_plain_attention(graph: Graph) -> Graph:
    """The graph with MatMul and Softmax for each Attention of four axes that keeps nothing but its weights.

    >>> from relayout.graph.graph import Value
    >>> q, k, v = (Value(name, (1, 4, 7, 16), np.dtype("float32")) for name in "qkv")
    >>> node = Node("Attention", ("q", "k", "v"), ("y",))
    >>> print(with_plain_attention(Graph((q, k, v), ("y",), (node,))))
    q f32 1x4x7x16
    k f32 1x4x7x16
    v f32 1x4x7x16
    y/query = Mul(q, y/constant)
    y/key = Transpose(k, perm=(0, 1, 3, 2))
    y/scores = MatMul(y/query, y/key)
    y/weights = Softmax(y/scores, axis=-1)
    y = MatMul(y/weights, v)
    -> y
    """
    return rewritten(graph, _attention)


def _attention(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator != "Attention" or any(node.inputs[4:]) or any(node.outputs[1:3]):
        return None
    result, kept = node.outputs[0], node.outputs[3] if len(node.outputs) > 3 else ""
    if kept and node.attributes.get("qk_matmul_output_mode") != WEIGHTS:
        return None
    if any(node.attributes.get(name, usual) != usual for name, usual in OTHERS.items()):
        return None
    q, k, v = (sizes(around.dims(name)) for name in node.inputs[:3])
    kind = around.dtype(node.inputs[0])
    if q is None or k is None or v is None or kind is None or not len(q) == len(k) == len(v) == 4:
        return None
    if q[:2] != k[:2] or q[:2] != v[:2] or 0 in (*q, *k, *v):
        return None
    mask = node.inputs[3] if len(node.inputs) > 3 else ""
    wide = sizes(around.dims(mask)) if mask else ()
    if wide is None or (mask and wide[-1] != k[2]):
        return None
    nodes: list[Node] = []
    near = result or kept

    def step(what: str, operator: str, *inputs: str, **attributes: object) -> str:
        made = around.fresh(f"{near}/{what}")
        nodes.append(Node(operator, inputs, (made,), attributes, node.name))
        return made

    def constant(data: object) -> str:
        return around.constant(np.asarray(data, kind), near)

    last = around.constant(np.array([-1]), near) if mask else ""
    scale = node.attributes.get("scale")
    query = step("query", "Mul", node.inputs[0], constant(1 / sqrt(q[3]) if scale is None else scale))
    key = step("key", "Transpose", node.inputs[1], perm=(0, 1, 3, 2))
    scores = step("scores", "MatMul", query, key)
    bias = ""
    if mask:
        bias = mask
        if around.dtype(mask) == np.bool_:
            bias = step("bias", "Where", mask, constant(0), constant(-np.inf))
    if node.attributes.get("is_causal"):
        hidden = constant(np.where(np.tri(q[2], k[2], dtype=bool), 0.0, -np.inf))
        bias = step("bias", "Add", bias, hidden) if mask else hidden
    most = step("most", "ReduceMax", bias, last, keepdims=1) if mask else ""
    if mask and kind == np.float16 and around.dtype(mask) != np.bool_:
        bias = step("bias", "Sub", bias, most)
    if bias:
        scores = step("scores", "Add", scores, bias)
    weights = step("weights", "Softmax", scores, axis=-1)
    if mask:  # without one everybody sees the first key
        blind = step("blind", "Equal", most, constant(-np.inf))
        weights = step("weights", "Where", blind, constant(0), weights)
    if kept:
        nodes.append(Node("Identity", (weights,), (kept,), {}, node.name))
    if result:
        nodes.append(Node("MatMul", (weights, node.inputs[2]), (result,), {}, node.name))
    return tuple(nodes)
