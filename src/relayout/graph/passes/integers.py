"""Sums of products between DequantizeLinear and QuantizeLinear as products of integers, for kernels.

::

    DequantizeLinear -> Conv -> QuantizeLinear         IntegerConv            (Gemm and MatMul likewise)
    ... -> Conv -> Relu or Clip -> QuantizeLinear      with bounds
    ... -> Conv -> Q -> DQ -> Add(DQ) -> Q             with a residual
    DQ -> GlobalAveragePool, AveragePool -> Q          IntegerAverage

Rules look backwards only, so a convolution becomes one into f32 first, and takes in what comes behind when
the sweep gets there. What the network rounds in between is rounded, too: results are those of the network,
but for rounding in f32. Ties go to the even number before a zero point is added, so a zero point is a part of
a bias only where it is even.

QLinearConv and QLinearMatMul are first written as what they stand for, so that there is one form.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

import numpy as np

from relayout.graph.graph import Array, Graph, Node
from relayout.graph.inference import inferred
from relayout.graph.operators import OPERATORS
from relayout.graph.operators.integers import AVERAGE, CONV, MATMUL
from relayout.graph.operators.types import NUMBERS
from relayout.graph.passes.dynamic import with_dynamic_products
from relayout.graph.passes.elementwise import in_bytes
from relayout.graph.passes.identities import without_identities
from relayout.graph.passes.moving import hoisted, retyped, sunk
from relayout.graph.passes.quantities import (
    BYTES,
    Filters,
    Steps,
    bias_of,
    dequantised,
    quantised,
    weights_of,
)
from relayout.graph.passes.quantization import without_requantization
from relayout.graph.passes.rewriting import Around, attribute, rewritten, sizes

__all__ = ["in_integers"]

NUMBER: Final = {dtype: number for number, dtype in NUMBERS.items()}
ROUNDS: Final = 16  # of moving quantisation along, at most


def in_integers(graph: Graph) -> Graph:
    """The graph with products of integers where it has quantised ones.

    Parameters
    ----------
    graph : Graph
        With dims that are known, as :func:`relayout.graph.passes.optimized` returns it.

    Returns
    -------
    Graph
        The same object, where nothing is quantised.

    Examples
    --------
    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (1, 2, 4, 4), np.dtype("u1"))
    >>> nodes = (
    ...     Node("DequantizeLinear", ("x", "sx"), ("a",)), Node("DequantizeLinear", ("w", "sw"), ("b",)),
    ...     Node("Conv", ("a", "b"), ("c",)), Node("Relu", ("c",), ("d",)),
    ...     Node("QuantizeLinear", ("d", "sy"), ("y",)),
    ... )
    >>> steps = {name: np.float32(0.5) for name in ("sx", "sw", "sy")}
    >>> print(in_integers(Graph((x,), ("y",), nodes, {"w": np.ones((3, 2, 1, 1), np.int8), **steps})))
    x u8 1x2x4x4
    y = relayout.IntegerConv(x, c/constant, y/constant, y/constant.1, zero_point=0, to=2, group=1)
    -> y
    """
    if not any(node.operator in QUANTISED for node in graph.nodes):
        return graph
    graph = with_dynamic_products(rewritten(inferred(graph), _plain))
    graph = retyped(inferred(graph))
    for _ in range(ROUNDS):
        made = without_identities(without_requantization(hoisted(sunk(graph))))
        if made is graph:
            break
        graph = made
    return without_constants(in_bytes(inferred(rewritten(graph, _conv, _gemm, _matmul, _quantised))))


def without_constants(graph: Graph) -> Graph:
    """The graph with weights that are left for products in f32 dequantised, once and not in each run.

    Those of matrix products stay: their kernels dequantise on the way (:mod:`.blockwise`).
    """
    readers: dict[str, set[str]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, set()).add(node.operator)
    folded = {}
    for node in graph.nodes:
        given = [graph.constants.get(name) if name else None for name in node.inputs]
        if node.operator != "DequantizeLinear" or given[0] is None or given[0].dtype not in FOLDED:
            continue
        whole = all(one is not None or not name for one, name in zip(given, node.inputs, strict=True))
        if whole and not readers.get(node.outputs[0], set()) & {"MatMul", "Gemm"}:
            folded[node.outputs[0]] = OPERATORS[node.operator](*given, **node.attributes)[0]
    if not folded:
        return graph
    nodes = tuple(node for node in graph.nodes if node.outputs[0] not in folded)
    read = {name for node in nodes for name in node.inputs} | set(graph.results)
    constants = {name: data for name, data in {**graph.constants, **folded}.items() if name in read}
    values = {name: value for name, value in graph.values.items() if name not in folded}
    return graph.replaced(nodes=nodes, constants=constants, values=values)


FOLDED: Final = (*BYTES, np.dtype(np.int32))

QUANTISED: Final = frozenset(
    (
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
    )
)


def _plain(node: Node, around: Around) -> tuple[Node, ...] | None:
    """QLinearConv and QLinearMatMul, written out."""
    if node.operator not in ("QLinearConv", "QLinearMatMul"):
        return None
    conv = node.operator == "QLinearConv"
    x, w = (around.fresh(f"{node.outputs[0]}/{side}") for side in ("x", "w"))
    made = around.fresh(f"{node.outputs[0]}/real")
    first = {"axis": 0} if conv else {"axis": -1}
    nodes = [
        Node("DequantizeLinear", node.inputs[:3], (x,)),
        Node("DequantizeLinear", node.inputs[3:6], (w,), first),
    ]
    rows = around.dims(node.inputs[1])
    if around.data(node.inputs[4]) is None or rows is None or any(n != 1 for n in rows):
        return None
    inputs = [x, w]
    if conv and len(node.inputs) > 8 and node.inputs[8]:
        scales = [around.data(node.inputs[k]) for k in (1, 4)]
        bias = around.data(node.inputs[8])
        if bias is None or any(one is None for one in scales):
            return None
        one, other = (np.asarray(scale, np.float64).reshape(-1) for scale in scales)
        inputs.append(around.constant((bias * (one * other)).astype(np.float32), node))
    real = Node("Conv" if conv else "MatMul", tuple(inputs), (made,), node.attributes, node.name)
    back = Node("QuantizeLinear", (made, *node.inputs[6:8]), node.outputs)
    return (*nodes, real, back)


# -- products -----------------------------------------------------------------------------------------------


def _conv(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Conv of dequantised values, into f32."""
    if node.operator != "Conv" or around.dtype(node.outputs[0]) != np.float32:
        return None
    x, w = dequantised(node.inputs[0], around), weights_of(node.inputs[1], 0, around)
    bias = bias_of(node.inputs[2] if len(node.inputs) > 2 else "", around)
    if x is None or w is None or bias is None:
        return None
    given = {name: attribute(node, name) for name in OPERATORS["Conv"].attributes}
    kept = {name: one for name, one in given.items() if one not in (None, "NOTSET")}
    return (_product(CONV, node, w, bias, x, kept, around),)


def _product(
    operator: str,
    node: Node,
    weights: Filters,
    bias: Array,
    x: Steps,
    kept: dict[str, Any],
    around: Around,
) -> Node:
    scale = (weights.scale.astype(np.float64) * x.scale).astype(np.float32)
    given = [x.name, around.constant(weights.data, node), around.constant(scale, node)]
    if bias.any():
        channels = weights.data.shape[0 if operator == CONV else -1]
        whole = np.broadcast_to(bias, channels).astype(np.float32)
        given.append(around.constant(np.ascontiguousarray(whole), node))
    if weights.zero is not None:
        given += [""] * (6 - len(given)) + [around.constant(weights.zero, node)]
    attributes = {"zero_point": x.zero, "to": 1, **kept}
    return Node(operator, tuple(given), node.outputs, attributes, node.name)


def _gemm(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Gemm of dequantised rows, into f32."""
    if node.operator != "Gemm" or around.dtype(node.outputs[0]) != np.float32:
        return None
    turned = bool(attribute(node, "transB"))
    x, w = dequantised(node.inputs[0], around), weights_of(node.inputs[1], 0 if turned else 1, around)
    bias = bias_of(node.inputs[2] if len(node.inputs) > 2 else "", around)
    if x is None or w is None or bias is None or attribute(node, "transA"):
        return None
    dims = sizes(around.dims(node.outputs[0]))
    if dims is None or (bias.size not in (1, dims[-1])):
        return None
    alpha, beta = float(attribute(node, "alpha")), float(attribute(node, "beta"))
    matrix = np.ascontiguousarray(w.data.T) if turned else w.data
    scale = (w.scale * np.float32(alpha)).astype(np.float32)
    return (_product(MATMUL, node, Filters(matrix, scale, w.zero), bias * beta, x, {}, around),)


def _matmul(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A MatMul of dequantised rows with a constant matrix, into f32."""
    if node.operator != "MatMul" or around.dtype(node.outputs[0]) != np.float32:
        return None
    x, w = dequantised(node.inputs[0], around), weights_of(node.inputs[1], -1, around)
    dims = None if x is None else around.dims(x.name)
    if x is None or w is None or w.data.ndim != 2 or dims is None or len(dims) < 2:
        return None
    return (_product(MATMUL, node, w, np.zeros(1), x, {}, around),)


# -- behind them --------------------------------------------------------------------------------------------


def _quantised(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A QuantizeLinear, with what stands before it."""
    y = quantised(node, around)
    if y is None or around.reads[node.inputs[0]] != 1:
        return None
    found = _before(node.inputs[0], y, around)
    if found is None:
        return None
    last, low, high = found
    if last.operator in (CONV, MATMUL) and last.attributes["to"] == 1:
        return (_requantised(last, node, y, low, high, around),)
    if last.operator == "Add":
        made = _with_residual(last, node, y, low, high, around)
        return None if made is None else (made,)
    if last.operator in ("GlobalAveragePool", "AveragePool") and (low, high) == (-inf, inf):
        return _average(last, node, y, around)
    return None


def _before(name: str, y: Steps, around: Around) -> tuple[Node, float, float] | None:
    """The node before a value and its Relu or Clip, and the bounds that these are, in steps."""
    low, high = -inf, inf
    node = around.inner(name)
    while node is not None and node.operator in ("Relu", "Clip"):
        bounds = [0.0, inf]
        if node.operator == "Clip":
            given = [*node.inputs[1:], "", ""][:2]
            numbers = [around.number(one) if one else None for one in given]
            if any(one and number is None for one, number in zip(given, numbers, strict=True)):
                return None
            bounds = [
                one if number is None else number for one, number in zip((-inf, inf), numbers, strict=True)
            ]
        bounds[0] = min(bounds)  # a Clip whose bounds are the wrong way round makes the upper one everywhere
        # what is rounded between two bounds is between these, rounded
        own = tuple(float(np.rint(bound / y.scale)) + y.zero for bound in bounds)
        low, high = min(max(low, own[0]), high), max(min(high, own[1]), low)
        node = around.inner(node.inputs[0])
    return None if node is None else (node, low, high)


def _bounds(low: float, high: float, kind: np.dtype[Any] | None) -> dict[str, float]:
    """Bounds as attributes; those that saturation has anyway are left out."""
    assert kind is not None
    limits = np.iinfo(kind)
    found = {}
    if low > limits.min:
        found["low"] = float(np.float32(low))
    if high < limits.max:
        found["high"] = float(np.float32(high))
    return found


def _requantised(last: Node, node: Node, y: Steps, low: float, high: float, around: Around) -> Node:
    """A product into f32 as one into bytes."""
    x, w, scale, bias, _, _, *zeros = last.inputs + ("",) * (6 - len(last.inputs))
    kind = around.dtype(node.outputs[0])
    factors = _data(scale, around) / y.scale
    inside, behind = _zero_point(y)
    summands = (_data(bias, around) if bias else np.zeros(1)) / y.scale + inside
    given = [x, w, around.constant(factors.astype(np.float32), node)]
    outputs = _data(w, around).shape[0 if last.operator == CONV else -1]
    given.append(around.constant(np.broadcast_to(summands, outputs).astype(np.float32).copy(), node))
    given += ["", "", *zeros] if zeros else []
    assert kind is not None
    attributes = {**last.attributes, "to": NUMBER[kind], **behind, **_bounds(low, high, kind)}
    return Node(last.operator, tuple(given), node.outputs, attributes, last.name)


def _zero_point(y: Steps) -> tuple[int, dict[str, int]]:
    """The zero point of a result as a part of what is rounded; or, if it is odd, as an attribute."""
    return (0, {"offset": y.zero}) if y.zero % 2 else (y.zero, {})


def _data(name: str, around: Around) -> Array:
    data = around.data(name)
    assert data is not None
    return data.astype(np.float64) if data.dtype == np.float32 else data


def _with_residual(add: Node, node: Node, y: Steps, low: float, high: float, around: Around) -> Node | None:
    """A sum of two dequantised values, one of which a convolution makes for it alone."""
    kind = around.dtype(node.outputs[0])
    sides = [dequantised(name, around) for name in add.inputs]
    for place, name in enumerate(add.inputs):
        one, other = sides[place], sides[1 - place]
        alone = one is not None and around.reads[one.name] == 1 and around.reads[name] == 1
        last = around.node(one.name, CONV) if one is not None and alone else None
        if last is None or one is None or other is None or kind is None or any(last.inputs[4:6]):
            continue
        if around.dims(one.name) != around.dims(other.name) or add.inputs[0] == add.inputs[1]:
            continue
        limits = np.iinfo(around.dtype(one.name) or np.uint8)
        first = one.scale / other.scale
        inside, behind = _zero_point(y)
        attributes = {name: one for name, one in last.attributes.items() if name not in ("low", "high")}
        added = attributes.pop("offset", 0)  # of the zero point of one, what is not in the sums
        summand = (added - one.zero) * first - other.zero + inside * y.scale / other.scale
        factors = np.array([first, summand, other.scale / y.scale], np.float32)
        x, w, scale, bias, _, _, *zero = (*last.inputs, "", "")[: max(6, len(last.inputs))]
        inputs = (x, w, scale, bias, other.name, around.constant(factors, node), *zero)
        ends = ("low", limits.min), ("high", limits.max)
        inner = tuple(last.attributes.get(side, float(limit)) - added for side, limit in ends)
        attributes |= {"to": NUMBER[kind], "inner": inner, **behind, **_bounds(low, high, kind)}
        return Node(CONV, inputs, node.outputs, attributes, last.name)
    return None


def _average(last: Node, node: Node, y: Steps, around: Around) -> tuple[Node, ...] | None:
    """An average of dequantised values."""
    x = dequantised(last.inputs[0], around)
    kind = around.dtype(node.outputs[0])
    if x is None or kind not in BYTES:
        return None
    padded = any(attribute(last, "pads") or ()) if last.operator == "AveragePool" else False
    if padded and attribute(last, "count_include_pad") and x.zero:
        return None
    factor = x.scale / y.scale
    steps = {"factor": factor, "summand": -x.zero * factor, "zero_point": y.zero}
    attributes = {**last.attributes, "to": NUMBER[kind], **steps}
    return (Node(AVERAGE, (x.name,), node.outputs, attributes, last.name),)
