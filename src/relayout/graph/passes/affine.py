"""Factors and terms of each channel, taken into the constants of the operator before.

A BatchNormalization of an inference is a factor and a term for each channel, ``f x + t``; so is a Mul or an
Add with a constant. Behind an operator that ends with such a thing itself, both are one::

    Conv, ConvTranspose, Gemm        weights w f, bias b f + t
    MatMul                           weights w f; a term makes it a Gemm where there are two axes
    Batch-, Instance-, Group-,
    Layer-, RMSNormalization         scale s f, bias b f + t

New constants are computed in f64 and rounded once. A BatchNormalization behind anything else stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from relayout.graph.graph import Array, Graph, Node
from relayout.graph.passes.rewriting import Around, attribute, rewritten

__all__ = ["with_affine_absorbed"]

Arrays: TypeAlias = "Mapping[int, Array]"


def with_affine_absorbed(graph: Graph) -> Graph:
    """The graph with factors and terms by channel in weights and biases.

    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (1, 1, 4, 4), np.dtype("float32"))
    >>> constants = {"w": np.ones((2, 1, 3, 3), np.float32), "f": np.float32([[[2]], [[3]]])}
    >>> nodes = Node("Conv", ("x", "w"), ("a",)), Node("Mul", ("a", "f"), ("y",))
    >>> graph = with_affine_absorbed(Graph((x,), ("y",), nodes, constants))
    >>> print(graph, graph.constants["y/constant"][:, 0, 0, 0])
    x f32 1x1x4x4
    y = Conv(x, y/constant)
    -> y [2. 3.]
    """
    return rewritten(graph, _absorbed, _behind_bias, _gemm)


def _absorbed(node: Node, around: Around) -> tuple[Node, ...] | None:
    found = _affine(node, around)
    head = around.inner(found[0], *HEADS) if found is not None else None
    if found is None or head is None or not around.floating(node.outputs[0]):
        return None
    made = HEADS[head.operator](head, around, *found[1:])
    dtype = around.dtype(node.outputs[0])
    if made is None or not all(_fits(data, dtype) for data in made.values()):
        return None
    inputs = [*head.inputs, *("",) * (max(made) + 1 - len(head.inputs))]
    for place, data in made.items():
        inputs[place] = around.constant(np.asarray(data, dtype), node)
    attributes = dict(head.attributes)
    if head.operator == "Gemm":
        attributes["beta"] = 1.0
    return (Node(head.operator, tuple(inputs), node.outputs, attributes, head.name),)


def _fits(data: Array, dtype: np.dtype[Any] | None) -> bool:
    """Whether all elements are finite, and in a data type, too."""
    if data.dtype == dtype:
        return bool(np.isfinite(data).all())
    return dtype is not None and bool((np.abs(data) <= np.finfo(dtype).max).all())


def _affine(node: Node, around: Around) -> tuple[str, Array | None, Array | None] | None:
    """What a node multiplies and shifts, and by what: in the dims in which they are broadcast."""
    if node.operator in ("Mul", "Add"):
        found = around.with_constant(node)
        if found is None or around.dims(found[0]) is None:
            return None
        x, data = found
        return (x, data, None) if node.operator == "Mul" else (x, None, data)
    if node.operator != "BatchNormalization" or any(node.outputs[1:]) or attribute(node, "training_mode"):
        return None
    dims, given = around.dims(node.inputs[0]), [around.data(name) for name in node.inputs[1:5]]
    if dims is None or len(dims) < 2 or any(one is None for one in given):
        return None
    scale, bias, mean, variance = (np.asarray(one, np.float64) for one in given)
    if {scale.shape, bias.shape, mean.shape, variance.shape} != {(scale.size,)}:
        return None  # what runs says what is wrong
    factor = scale / np.sqrt(variance + attribute(node, "epsilon"))
    shape = (-1, *(1,) * (len(dims) - 2))
    return node.inputs[0], factor.reshape(shape), (bias - mean * factor).reshape(shape)


def _vector(data: Array | None, neutral: float, rank: int, axis: int, count: int) -> Array | None:
    """A factor or term as one number for each channel; None where it isn't that.

    >>> _vector(np.float32([[[2]], [[3]]]), 1, 4, 1, 2)
    array([2., 3.])
    """
    if data is None:
        return np.full(count, neutral, np.float64)
    if data.ndim > rank:
        return None
    shape = (1,) * (rank - data.ndim) + data.shape
    others = shape[:axis] + shape[axis + 1 :]
    if any(n != 1 for n in others) or shape[axis] not in (1, count):
        return None
    return np.broadcast_to(np.asarray(data, np.float64).reshape(-1), (count,))


def _constants(
    head: Node, around: Around, first: int, count: int, large: bool = False
) -> list[Array | None] | None:
    """Constant inputs, None for those that are left out; None for all where one is computed.

    They come in double precision; but the first one as it is, if it is ``large``.
    """
    found: list[Array | None] = []
    for place in range(first, first + count):
        name = head.inputs[place] if place < len(head.inputs) else ""
        data = around.data(name)
        if name and (data is None or data.dtype not in (np.float32, np.float64)):
            return None
        kept = large and place == first
        found.append(data if kept or data is None else np.asarray(data, np.float64))
    return found


def _scaled(weights: Array, factor: Array) -> Array:
    """Weights by factors in double precision, rounded once: in one pass, without copies in between."""
    made = np.empty_like(weights)
    with np.errstate(over="ignore", invalid="ignore"):  # :func:`_fits` looks at what comes out
        np.multiply(weights, factor, out=made, casting="same_kind")
    return made


def _convolution(head: Node, around: Around, factor: Array | None, term: Array | None) -> Arrays | None:
    given = _constants(head, around, 1, 2, large=True)
    if given is None or given[0] is None:
        return None
    weights, bias = given[0], given[1]
    groups = attribute(head, "group")
    transposed = head.operator == "ConvTranspose"
    count = weights.shape[1] * groups if transposed else weights.shape[0]
    by, plus = (_vector(one, n, weights.ndim, 1, count) for one, n in ((factor, 1), (term, 0)))
    if by is None or plus is None:
        return None
    made = {}
    if factor is not None and transposed:
        parts = weights.reshape(groups, -1, *weights.shape[1:])
        parts = _scaled(parts, by.reshape(groups, 1, -1, *(1,) * (weights.ndim - 2)))
        made[1] = parts.reshape(weights.shape)
    elif factor is not None:
        made[1] = _scaled(weights, by.reshape(-1, *(1,) * (weights.ndim - 1)))
    if bias is not None or term is not None:
        made[2] = plus if bias is None else bias * by + plus
    return made


def _matrix(head: Node, around: Around, factor: Array | None, term: Array | None) -> Arrays | None:
    given = _constants(head, around, 1, 2, large=True)
    if given is None or given[0] is None:
        return None
    weights, bias = given[0], given[1]
    turned = attribute(head, "transB")
    count = weights.shape[0 if turned else 1]
    by, plus = (_vector(one, n, 2, 1, count) for one, n in ((factor, 1), (term, 0)))
    before = _vector(bias, 0, 2, 1, count)
    if by is None or plus is None or before is None:
        return None
    made = {}
    if factor is not None:
        made[1] = _scaled(weights, by[:, None] if turned else by)
    if bias is not None or term is not None:
        made[2] = attribute(head, "beta") * before * by + plus
    return made


def _product(head: Node, around: Around, factor: Array | None, term: Array | None) -> Arrays | None:
    given, dims = _constants(head, around, 1, 1, large=True), around.dims(head.outputs[0])
    if given is None or given[0] is None or given[0].ndim < 2 or dims is None or factor is None:
        return None
    by = _vector(factor, 1, len(dims), len(dims) - 1, given[0].shape[-1])
    return None if by is None or term is not None else {1: _scaled(given[0], by)}


def _channels(head: Node, around: Around, factor: Array | None, term: Array | None) -> Arrays | None:
    given, dims = _constants(head, around, 1, 2), around.dims(head.outputs[0])
    if given is None or dims is None or len(dims) < 2 or any(head.outputs[1:]):
        return None
    scale, bias = given
    if scale is None or bias is None or (head.operator == "BatchNormalization" and _is_training(head)):
        return None
    by, plus = (_vector(one, n, len(dims), 1, scale.size) for one, n in ((factor, 1), (term, 0)))
    if by is None or plus is None:
        return None
    made = {1: scale * by} if factor is not None else {}
    return {**made, 2: bias * by + plus}


def _is_training(head: Node) -> bool:
    return bool(attribute(head, "training_mode"))


def _last_axes(head: Node, around: Around, factor: Array | None, term: Array | None) -> Arrays | None:
    given, dims = _constants(head, around, 1, 2), around.dims(head.outputs[0])
    if given is None or given[0] is None or dims is None or any(head.outputs[1:]):
        return None
    scale, bias = given[0], given[1]
    if head.operator == "RMSNormalization" and term is not None:
        return None
    by, plus = (_within(one, n, scale.shape, len(dims)) for one, n in ((factor, 1.0), (term, 0.0)))
    if by is None or plus is None:
        return None
    made = {1: scale * by} if factor is not None else {}
    if bias is not None or term is not None:
        made[2] = plus + (np.zeros(scale.shape) if bias is None else bias * by)
    return made


def _within(data: Array | None, neutral: float, shape: tuple[int, ...], rank: int) -> Array | None:
    """A factor or term that is no larger than ``shape``, the dims of a scale; None if it is."""
    if data is None:
        return np.full(shape, neutral)
    extra = data.ndim - len(shape)
    if data.ndim > rank or any(n != 1 for n in data.shape[: max(extra, 0)]):
        return None
    data = data.reshape(data.shape[max(extra, 0) :])
    padded = (1,) * (len(shape) - data.ndim) + data.shape
    fits = all(n in (1, m) for n, m in zip(padded, shape, strict=True))
    return np.asarray(data, np.float64) if fits else None


HEADS: Final[dict[str, Callable[[Node, Around, Array | None, Array | None], Arrays | None]]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Gemm": _matrix,
    "MatMul": _product,
    "BatchNormalization": _channels,
    "InstanceNormalization": _channels,
    "GroupNormalization": _channels,
    "LayerNormalization": _last_axes,
    "RMSNormalization": _last_axes,
}
"""For each operator, its new constants by the places of inputs, given a factor and a term."""


def _behind_bias(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A factor behind the bias of a MatMul: that of the scaled layers of newer networks."""
    outer = around.with_constant(node) if node.operator == "Mul" else None
    bias = around.inner(outer[0], "Add") if outer is not None else None
    inner = around.with_constant(bias) if bias is not None else None
    product = around.inner(inner[0], "MatMul") if inner is not None else None
    if (
        outer is None
        or bias is None
        or inner is None
        or product is None
        or not around.floating(bias.outputs[0])
    ):
        return None
    made = _product(product, around, outer[1], None)
    term = np.asarray(inner[1], np.float64) * outer[1]
    dtype = around.dtype(bias.outputs[0])
    if made is None or term.size > max(inner[1].size, outer[1].size):
        return None
    if not _fits(made[1], dtype) or not _fits(term, dtype):
        return None
    middle = around.fresh(product.outputs[0])
    inputs = product.inputs[0], around.constant(np.asarray(made[1], dtype), node)
    ends = middle, around.constant(np.asarray(term, dtype), node)
    return (
        Node("MatMul", inputs, (middle,), {}, product.name),
        Node("Add", ends, node.outputs, {}, bias.name),
    )


def _gemm(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A MatMul of two axes and a term for each column, as a Gemm."""
    found = around.with_constant(node) if node.operator == "Add" else None
    product = around.inner(found[0], "MatMul") if found is not None else None
    if found is None or product is None or not around.floating(node.outputs[0]):
        return None
    dims = [around.dims(name) for name in product.inputs]
    weights = around.data(product.inputs[1])
    if weights is None or any(one is None or len(one) != 2 for one in dims):
        return None
    bias = _vector(found[1], 0, 2, 1, weights.shape[1])
    if bias is None:
        return None
    name = around.constant(np.asarray(bias, found[1].dtype), node)
    return (Node("Gemm", (*product.inputs, name), node.outputs, {}, product.name),)
