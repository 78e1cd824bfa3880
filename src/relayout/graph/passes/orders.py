"""What becomes of a node when its tensors have their axes in another order.

``kind_of(node, graph)`` says whether a node can be computed in any order of axes: element by element, along
axes that it names, or by constants that can be brought into that order ahead of time. An order is a tuple as
Transpose has it, ``order[i]`` being the axis that comes i-th. :meth:`Kind.reordered` is the node for tensors
in that order: its axes renumbered, its constants transposed. What it computes is the transposed result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from relayout.graph.graph import Array, Graph, Node
from relayout.graph.passes.rewriting import attribute
from relayout.records import dataclass

__all__ = ["Kind", "Order", "kind_of"]

Order: TypeAlias = "tuple[int, ...]"

EACH: Final = frozenset(
    (
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Clip", "Cos"),
        *("Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf"),
        *("IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink"),
        *("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh"),
        *("Cosh", "ThresholdedRelu"),
    )
)
"""Element by element on the first input; further ones are scalars."""

BROADCAST: Final = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where", "PRelu"),
        *("And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    )
)
"""Element by element on all inputs, broadcast."""

REDUCTIONS: Final = frozenset(
    f"Reduce{name}"
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)

AXIS: Final = frozenset(("Concat", "Split", "Softmax", "LogSoftmax", "Hardmax"))
"""Along the axis that an attribute names."""

LAST: Final = frozenset(("MatMul", "LayerNormalization", "RMSNormalization"))
"""Along the last axis, if that stays the last."""

Made: TypeAlias = "tuple[dict[str, Any], dict[int, Array]]"
"""Attributes and constants in the place of others."""


@dataclass(frozen=True)
class Kind:
    """How a node takes another order of axes.

    Attributes
    ----------
    rank : int
        Of its operands.
    operands : tuple of int
        The places of the inputs that must have the order.
    dropped : tuple of int
        Axes that its results don't have.
    last : bool
        Whether the last axis must stay the last one.
    make : callable
        Attributes and constants for an order.
    may : callable
        What else an order must be: runtimes don't do everything that ONNX can say.
    """

    rank: int
    operands: tuple[int, ...]
    make: Callable[[Order], Made]
    dropped: tuple[int, ...] = ()
    last: bool = False
    may: Callable[[Order], bool] = lambda order: True

    def allows(self, order: Order) -> bool:
        """Whether the node can be computed in an order."""
        fits = len(order) == self.rank and (not self.last or order[-1] == self.rank - 1)
        return fits and self.may(order)

    def result(self, order: Order) -> Order:
        """The order of the axes of its results."""
        kept = [axis for axis in order if axis not in self.dropped]
        return tuple(sorted(kept).index(axis) for axis in kept)

    def reordered(self, order: Order) -> Made:
        """Attributes that replace the node's, and constants that replace inputs, for operands in an order."""
        return self.make(order)


def kind_of(node: Node, graph: Graph) -> Kind | None:
    """How a node takes another order of axes; None if it doesn't, or too little is known of its dims."""
    if not node.inputs or (any(node.outputs[1:]) and node.operator != "Split"):
        return None
    dims = graph.value(node.inputs[0]).dims if node.inputs[0] else None
    if node.operator in EACH:
        return None if dims is None else Kind(len(dims), (0,), lambda order: ({}, {}))
    if node.operator in BROADCAST:
        return _broadcast(node, graph)
    if dims is None or not dims:
        return None
    if node.operator in AXIS:
        return _along(node, graph, len(dims))
    if node.operator in REDUCTIONS or node.operator == "Squeeze":
        return _reduction(node, graph, len(dims))
    if node.operator in LAST:
        return _last(node, graph, len(dims))
    make = MOVING.get(node.operator)
    made = None if make is None else make(node, graph, len(dims))
    may = _images(node, graph, len(dims)) if node.operator == "Resize" else Kind.may
    return None if made is None else Kind(len(dims), (0,), made, may=may)


def _images(node: Node, graph: Graph, rank: int) -> Callable[[Order], bool]:
    """The orders in which runtimes interpolate: images and channels, channels before or behind the sizes.

    Cubic interpolation wants channels before the sizes.
    """
    mode = attribute(node, "mode")
    src, dst = (graph.value(name).dims or (None,) * rank for name in (node.inputs[0], node.outputs[0]))
    kept = {axis for axis, (n, m) in enumerate(zip(src, dst, strict=True)) if n == m}

    def may(order: Order) -> bool:
        if mode == "nearest" or rank < 4 or order == tuple(range(rank)):
            return True
        behind = mode == "linear" and order[-1] in kept
        return order[0] in kept and (order[1] in kept or behind)

    return may


def places(order: Order) -> Order:
    """Where each axis is: the inverse of an order."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _broadcast(node: Node, graph: Graph) -> Kind | None:
    dims = graph.value(node.outputs[0]).dims
    if dims is None:
        return None
    rank, operands, constants = len(dims), [], []
    for place, name in enumerate(node.inputs):
        known = graph.value(name).dims
        if known is None:
            return None
        if name in graph.constants:
            constants.append(place)
        elif len(known) == rank:
            operands.append(place)
        elif known:
            return None
    if not operands:
        return None

    def make(order: Order) -> Made:
        found = {}
        for place in constants:
            data = graph.constants[node.inputs[place]]
            if data.size > 1:
                found[place] = data.reshape((1,) * (rank - data.ndim) + data.shape).transpose(order)
        return {}, found

    return Kind(rank, tuple(operands), make)


def _along(node: Node, graph: Graph, rank: int) -> Kind | None:
    axis = attribute(node, "axis") % rank
    operands = range(len(node.inputs)) if node.operator == "Concat" else (0,)
    constants = [place for place in operands if node.inputs[place] in graph.constants]

    def make(order: Order) -> Made:
        arrays = {place: graph.constants[node.inputs[place]].transpose(order) for place in constants}
        return {"axis": order.index(axis)}, arrays

    return Kind(rank, tuple(place for place in operands if place not in constants), make)


def _reduction(node: Node, graph: Graph, rank: int) -> Kind | None:
    axes = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None or not axes.size:
        return None
    over = tuple(sorted(int(axis) % rank for axis in axes.reshape(-1)))
    keeps = node.operator != "Squeeze" and attribute(node, "keepdims")

    def make(order: Order) -> Made:
        return {}, {1: np.array(sorted(order.index(axis) for axis in over), np.int64)}

    return Kind(rank, (0,), make, () if keeps else over)


def _last(node: Node, graph: Graph, rank: int) -> Kind | None:
    if node.operator == "MatMul":
        fits = node.inputs[1] in graph.constants and graph.constants[node.inputs[1]].ndim == 2 and rank > 1
    else:
        fits = attribute(node, "axis") in (-1, rank - 1)
        known = (graph.value(name).dims for name in node.inputs[1:] if name)
        fits = fits and all(dims is not None and len(dims) <= 1 for dims in known)
    return Kind(rank, (0,), lambda order: ({}, {}), last=True) if fits else None


Moving: TypeAlias = "Callable[[Order], Made] | None"


def _pad(node: Node, graph: Graph, rank: int) -> Moving:
    pads = graph.constants.get(node.inputs[1])
    axes = graph.constants.get(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else None
    if pads is None or (axes is None and len(node.inputs) > 3 and node.inputs[3]):
        return None
    if axes is None:
        return lambda order: ({}, {1: pads.reshape(2, rank)[:, list(order)].reshape(-1)})
    return lambda order: ({}, {3: np.array([order.index(int(axis) % rank) for axis in axes], np.int64)})


def _slice(node: Node, graph: Graph, rank: int) -> Moving:
    given = len(node.inputs) > 3 and bool(node.inputs[3])
    axes = graph.constants.get(node.inputs[3]) if given else None
    if axes is None:
        count = graph.value(node.inputs[1]).dims
        if given or not count or not isinstance(count[0], int):
            return None
        axes = np.arange(count[0])
    named = axes
    return lambda order: ({}, {3: np.array([order.index(int(axis) % rank) for axis in named], np.int64)})


def _of_axes(first: int) -> Callable[[Node, Graph, int], Moving]:
    """Inputs from a place on are left out, or constants with a number for each axis."""

    def moving(node: Node, graph: Graph, rank: int) -> Moving:
        if attribute(node, "axes") is not None if node.operator == "Resize" else False:
            return None
        arrays: dict[int, Array] = {}
        for place, name in enumerate(node.inputs[first:], first):
            data = graph.constants.get(name)
            if name and (data is None or data.shape != (rank,)):
                return None
            if data is not None:
                arrays[place] = data
        return lambda order: ({}, {place: data[list(order)] for place, data in arrays.items()})

    def resized(node: Node, graph: Graph, rank: int) -> Moving:
        roi = node.operator == "Resize" and len(node.inputs) > 1 and bool(node.inputs[1])
        return None if roi else moving(node, graph, rank)

    return resized


def _quantised(node: Node, graph: Graph, rank: int) -> Moving:
    scale = graph.constants.get(node.inputs[1])
    if scale is None or attribute(node, "block_size"):
        return None
    axis = attribute(node, "axis") % rank
    return lambda order: ({"axis": order.index(axis)} if scale.ndim else {}, {})


MOVING: Final[Mapping[str, Callable[[Node, Graph, int], Moving]]] = {
    "Pad": _pad,
    "Slice": _slice,
    "Tile": _of_axes(1),
    "Expand": _of_axes(1),
    "Resize": _of_axes(1),
    "QuantizeLinear": _quantised,
    "DequantizeLinear": _quantised,
}
