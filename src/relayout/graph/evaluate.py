"""What a graph computes, by the definitions of its operators: node by node, in NumPy.

It is slow, and what everything faster is compared with. A value is forgotten behind the last node that reads
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.graph.arrays import checked_inputs
from relayout.graph.operators import OPERATORS

if TYPE_CHECKING:
    from relayout.graph.graph import Graph, Node

__all__ = ["evaluate"]


def evaluate(graph: Graph, *arrays: Any) -> tuple[Any, ...]:
    """The outputs of a graph for given inputs.

    Parameters
    ----------
    graph : Graph
        Any; dims need not be known.
    arrays : ndarray, list or None
        One for each input: lists for sequences, None for an optional value that is not there.

    Returns
    -------
    tuple
        The outputs: arrays, or lists or None where these are sequences and optional values.

    Raises
    ------
    LayoutError
        The inputs are not what the graph takes, or a node fails; the message names the node, and the dims of
        what it was given.

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph.graph import Graph, Node, Value
    >>> twice = Graph((Value("x"),), ("y",), (Node("Add", ("x", "x"), ("y",)),))
    >>> evaluate(twice, np.float32([1, 2]))
    (array([2., 4.], dtype=float32),)
    """
    given = checked_inputs(graph.inputs, arrays)
    known: dict[str, Any] = {"": None, **graph.constants}
    known.update(zip((value.name for value in graph.inputs), given, strict=True))
    last = {name: i for i, node in enumerate(graph.nodes) for name in (*node.inputs, *node.outputs)}
    for name in ("", *graph.results):
        last.pop(name, None)
    for i, node in enumerate(graph.nodes):
        results = _run(node, known)
        known.update((name, one) for name, one in zip(node.outputs, results, strict=False) if name)
        for name in (*node.inputs, *node.outputs):
            if last.get(name) == i:
                known.pop(name, None)
    missing = [name for name in graph.results if name not in known]
    if missing:
        raise LayoutError(f"nothing computes the output {missing[0]!r} of the graph")
    return tuple(known[name] for name in graph.results)


def _run(node: Node, known: dict[str, Any]) -> tuple[Any, ...]:
    label = f"node {node.name or next(filter(None, node.outputs), '')!r}"
    try:
        operator = OPERATORS.get(node.operator)
        if operator is None:
            raise LayoutError(f"there is no operator {node.operator!r}")
        unknown = [name for name in node.inputs if name not in known]
        if unknown:
            raise LayoutError(f"nothing computes {unknown[0]!r} before it is read")
        inputs = (known[name] for name in node.inputs)
        return operator(*inputs, outputs=len(node.outputs), **node.attributes)
    except LayoutError as error:
        raise type(error)(f"{label}: {error}") from error
