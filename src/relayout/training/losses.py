"""Losses: nodes behind the first result of a network, which read targets as a further input.

========================  ===================================================================================
``cross_entropy``         targets are classes (s64), one for each row of scores, or for each pixel
``mean_squared_error``    targets have the dims of the result
========================  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.operators.types import is_float

__all__ = ["LOSS", "LOSSES", "TARGETS", "with_loss"]

LOSS: Final = "training/loss"
TARGETS: Final = "targets"

Made = tuple[tuple[Node, ...], Value]


def _cross_entropy(y: Value) -> Made:
    if y.dims is None or len(y.dims) < 2:
        raise LayoutError(f"cross_entropy needs scores of batch x classes, not {y}")
    dims = (y.dims[0], *y.dims[2:])
    node = Node("SoftmaxCrossEntropyLoss", (y.name, TARGETS), (LOSS, "training/logarithms"), {}, LOSS)
    return (node,), Value(TARGETS, dims, np.dtype(np.int64))


def _mean_squared_error(y: Value) -> Made:
    difference, square = "training/difference", "training/square"
    nodes = (
        Node("Sub", (y.name, TARGETS), (difference,)),
        Node("Mul", (difference, difference), (square,)),
        Node("ReduceMean", (square,), (LOSS,), {"keepdims": 0}, LOSS),
    )
    return nodes, Value(TARGETS, y.dims, y.dtype)


LOSSES: Final[dict[str, Callable[[Value], Made]]] = {
    "cross_entropy": _cross_entropy,
    "mean_squared_error": _mean_squared_error,
}
"""By name: from what is known of the result to nodes, and what is known of the targets."""


def with_loss(graph: Graph, loss: str) -> Graph:
    """The graph with a loss behind its first result; its inputs end with ``targets``.

    Raises
    ------
    LayoutError
        There is no such loss, or it does not take the result.
    """
    if loss not in LOSSES:
        known = ", ".join(LOSSES)
        raise LayoutError(f"there is no loss {loss!r}; there are {known}, and values of the graph")
    y = graph.value(graph.results[0])
    if y.dtype is not None and not is_float(y.dtype):
        raise LayoutError(f"a loss takes numbers of floating point, not {y}")
    nodes, targets = LOSSES[loss](y)
    return graph.replaced(
        inputs=(*graph.inputs, targets), nodes=(*graph.nodes, *nodes), results=(*graph.results, LOSS)
    )
