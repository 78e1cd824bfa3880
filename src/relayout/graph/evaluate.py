"""What a graph computes, by the definitions of its operators: node by node, in NumPy.

It is slow, and what everything faster is compared with. A value is forgotten behind the last node that reads
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError, type_name
from relayout.exchange import pytorch
from relayout.graph.operators import OPERATORS
from relayout.tensor import tensor

if TYPE_CHECKING:
    from relayout.graph.graph import Graph, Node, Value

__all__ = ["checked_inputs", "evaluate"]


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


def checked_inputs(values: Sequence[Value], arrays: Sequence[Any]) -> list[Any]:
    """What was given for inputs, as arrays; a LayoutError that says what is wanted where one doesn't fit."""
    if len(values) != len(arrays):
        wanted = ", ".join(map(str, values)) or "none"
        raise LayoutError(f"the network has {len(values)} inputs ({wanted}); {len(arrays)} were given")
    return [_checked(value, array) for value, array in zip(values, arrays, strict=True)]


def _checked(value: Value, given: Any) -> Any:
    if given is None or isinstance(given, (list, dict, str)):
        if value.dtype is not None and value.dims is not None:
            raise LayoutError(f"input {value} takes an array, got {type_name(given)}")
        return given
    array = _array(value, given)
    fits = value.dims is None or (
        len(value.dims) == array.ndim
        and all(n == m for n, m in zip(value.dims, array.shape, strict=True) if isinstance(n, int))
    )
    if not fits or (value.dtype is not None and array.dtype != value.dtype):
        dims = "x".join(map(str, array.shape)) or "no dims"
        raise LayoutError(f"the network's input is {value}; an array of {array.dtype} {dims} was given")
    return array


def _array(value: Value, given: Any) -> Any:
    """What was given for an input, as an array that shares its memory where it can be."""
    if pytorch.is_tensor(given) and given.dtype.is_floating_point:
        return tensor(given).numpy()  # bf16 too, which NumPy can't ask for, and what autograd looks at
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LayoutError(f"input {value} takes an array, not {type_name(given)}: {error}") from None


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
