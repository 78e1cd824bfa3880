"""A network of f32 computed in a narrower type, where that saves time and little precision.

====================================================  ====================================================
in the narrower type                                  products: Conv, ConvTranspose, Gemm, MatMul; and what
                                                      they are followed by: sums, factors, activations,
                                                      pools, normalisations, Softmax, what moves data
added up, averaged, normalised in f32 all the same    sums of products, averages, statistics of
                                                      normalisations, Softmax: within their kernels
in bf16, never in f16                                 data, weights and results of LSTM, GRU and RNN; sums,
                                                      gates, states and memory are f32 within
in f32                                                all else: reductions, exponentials, logarithms, roots,
                                                      powers, trigonometry, losses, positions and masks
                                                      before they meet a product
====================================================  ====================================================

Products are where a value becomes narrow; whatever follows stays so until an operator of the last row reads
it, or the network returns it. Inputs and outputs of the network keep their types. Weights are converted here,
once. Constants beyond its largest number become that number, and so do values that meet what is narrow
elsewhere than in a product: masks often have -3.4e38, and a row of which all is masked must not become
infinite, whose softmax is NaN. Recurrent layers gain by an instruction for pairs, of which there is one for
bf16.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from relayout.errors import LayoutError
from relayout.graph.graph import Array, Graph, Node, Value, fresh
from relayout.ops.functions import OF_ONNX

__all__ = ["PRECISIONS", "check_precision", "with_precision"]

PRECISIONS: Final[dict[str, tuple[np.dtype[Any], int]]] = {
    "bf16": (np.dtype(ml_dtypes.bfloat16), 16),
    "f16": (np.dtype(np.float16), 10),
}
"""The types, and ONNX's numbers for them."""

PRODUCTS: Final = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))

RECURRENT: Final = frozenset(("LSTM", "GRU", "RNN"))
"""Operators of which data and weights become narrow: the first three inputs."""

STEEP: Final = frozenset(("Exp", "Log", "Sqrt", "Pow", "Reciprocal", "Erf", "Softplus"))
"""Functions that make much of small errors, or of a small range."""

FOLLOWING: Final = frozenset(
    (
        *(set(OF_ONNX) - STEEP),
        *("LeakyRelu", "Selu", "Neg", "Swish", "Clip", "Add", "Sub", "Mul", "Max", "Min"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "Softmax"),
        *("LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"),
        *("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Split", "Concat"),
        *("Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Gather", "Pad", "Resize"),
    )
)
"""Operators that stay in the type of what they read."""

TABLES: Final = frozenset(
    ("LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization", "Resize")
)
"""Operators whose further inputs, tables and scales, are read in f32."""

WIDE: Final = np.dtype(np.float32)


def check_precision(precision: object) -> str | None:
    """A precision by its name; None for f32, which is what networks have.

    Raises
    ------
    LayoutError
        There is none of that name.

    Examples
    --------
    >>> check_precision("bf16"), check_precision("f32"), check_precision(None)
    ('bf16', None, None)
    >>> check_precision("int8")
    Traceback (most recent call last):
    relayout.errors.LayoutError: precision 'int8' is none of f32, bf16, f16; networks of 8 bits come quantised
    """
    if precision in (None, "f32"):
        return None
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise LayoutError(
            f"precision {precision!r} is none of f32, {', '.join(PRECISIONS)}; "
            "networks of 8 bits come quantised"
        )
    return precision


def with_precision(graph: Graph, precision: str | None) -> Graph:
    """The graph with products of f32, and what follows them, in a narrower type.

    Parameters
    ----------
    graph : Graph
        With data types that are known, as :func:`relayout.graph.passes.optimized` returns it.
    precision : str or None
        ``"bf16"`` or ``"f16"``; ``"f32"`` and None: the graph itself.

    Raises
    ------
    LayoutError
        There is no such precision.

    Examples
    --------
    >>> from relayout.graph.inference import inferred
    >>> x = Value("x", (2, 3), np.dtype("f4"))
    >>> nodes = Node("MatMul", ("x", "w"), ("a",)), Node("Relu", ("a",), ("y",))
    >>> graph = inferred(Graph((x,), ("y",), nodes, {"w": np.ones((3, 4), np.float32)}))
    >>> print(with_precision(graph, "bf16"))
    x f32 2x3
    x/bf16 = Cast(x, to=16)
    a/bf16 = MatMul(x/bf16, w/bf16)
    y/bf16 = Relu(a/bf16)
    y = Cast(y/bf16, to=1)
    -> y
    """
    precision = check_precision(precision)
    if precision is None or not any(node.operator in PRODUCTS | RECURRENT for node in graph.nodes):
        return graph
    return _Narrowing(graph, precision).made()


class _Narrowing:
    def __init__(self, graph: Graph, precision: str) -> None:
        self.graph, self.precision = graph, precision
        self.kind, self.number = PRECISIONS[precision]
        self.limit = np.float32(ml_dtypes.finfo(self.kind).max)  # type: ignore[no-untyped-call]
        self.limits: tuple[str, str] | tuple[()] = ()
        self.nodes: list[Node] = []
        self.constants, self.values = dict(graph.constants), dict(graph.values)
        self.taken = {*graph.constants, *(value.name for value in graph.inputs)}
        self.taken |= {name for node in graph.nodes for name in node.outputs if name}
        self.narrow: dict[str, str] = {}
        """The names of values that there are in the narrower type."""
        self.wide = {*graph.constants, *(value.name for value in graph.inputs)}
        """Values that there are as the graph has them."""

    def made(self) -> Graph:
        for node in self.graph.nodes:
            if self.goes(node):
                self.narrowed(node)
            else:
                for name in filter(None, node.inputs):
                    self.as_it_was(name)
                self.nodes.append(node)
                self.wide.update(filter(None, node.outputs))
        for name in self.graph.results:
            self.as_it_was(name)
        read = {name for node in self.nodes for name in node.inputs} | {*self.graph.results}
        constants = {name: data for name, data in self.constants.items() if name in read}
        written = {name for node in self.nodes for name in node.outputs}
        values = {name: value for name, value in self.values.items() if name in written}
        return self.graph.replaced(nodes=tuple(self.nodes), constants=constants, values=values)

    def goes(self, node: Node) -> bool:
        """Whether a node is computed in the narrower type."""
        results = [self.graph.value(name).dtype for name in node.outputs if name]
        if not results or any(kind != WIDE for kind in results) or not node.inputs:
            return False
        reads = [name for name in node.inputs if name and self.graph.value(name).dtype == WIDE]
        if node.operator in RECURRENT:
            constant = all(name in self.graph.constants for name in node.inputs[1:3])
            return constant and self.precision == "bf16" and len(reads) == sum(map(bool, node.inputs))
        if node.operator in PRODUCTS:
            return len(reads) == sum(map(bool, node.inputs))
        moving = [name for name in reads if name not in self.graph.constants]
        return node.operator in FOLLOWING and any(name in self.narrow for name in moving)

    def narrowed(self, node: Node) -> None:
        inputs: list[str] = []
        count = 1 if node.operator in TABLES else 3 if node.operator in RECURRENT else len(node.inputs)
        for place, name in enumerate(node.inputs):
            kept = not name or self.graph.value(name).dtype != WIDE or place >= count
            if kept:
                self.as_it_was(name)
            inputs.append(name if kept else self.as_narrow(name, node.operator not in PRODUCTS | RECURRENT))
        outputs: list[str] = []
        for name in node.outputs:
            if not name:
                outputs.append(name)
                continue
            made = fresh(f"{name}/{self.precision}", self.taken)
            self.values[made] = Value(made, self.graph.value(name).dims, self.kind)
            self.narrow[name] = made
            outputs.append(made)
        self.nodes.append(Node(node.operator, tuple(inputs), tuple(outputs), node.attributes, node.name))

    def as_narrow(self, name: str, bounded: bool) -> str:
        """A value in the narrower type; ``bounded``: what is beyond its largest number becomes that."""
        found = self.narrow.get(name)
        if found is None:
            found = self.narrow[name] = fresh(f"{name}/{self.precision}", self.taken)
            if name in self.constants:
                self.constants[found] = self.converted(self.constants[name])
            else:
                dims = self.graph.value(name).dims
                if bounded:  # a mask of -3.4e38, mostly, which is infinite in bf16, too
                    given, name = name, fresh(f"{name}/bounded", self.taken)
                    self.values[name] = Value(name, dims, WIDE)
                    self.nodes.append(Node("Clip", (given, *self.bounds()), (name,)))
                self.values[found] = Value(found, dims, self.kind)
                self.nodes.append(Node("Cast", (name,), (found,), {"to": self.number}))
        return found

    def bounds(self) -> tuple[str, str]:
        """The constants between which finite numbers stay finite."""
        if not self.limits:
            self.limits = fresh("least", self.taken), fresh("most", self.taken)
            for name, data in zip(self.limits, (-self.limit, self.limit), strict=True):
                self.constants[name] = np.array(data)
        return self.limits

    def converted(self, data: Array) -> Array:
        """A constant in the narrower type; infinities stay what they are."""
        kept = np.where(np.isfinite(data), np.clip(data, -self.limit, self.limit), data)
        return np.asarray(kept.astype(self.kind))

    def as_it_was(self, name: str) -> None:
        """Make sure that there is a value as the graph has it."""
        if name in self.wide or name not in self.narrow:
            return
        self.nodes.append(Node("Cast", (self.narrow[name],), (name,), {"to": 1}))
        self.wide.add(name)
