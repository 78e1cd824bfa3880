"""From a graph that computes a loss to the joint graph, which also computes gradients.

::

    x ---> Conv ---> Relu ---> ... ---> loss           forward: the nodes of the graph, as they are
            |w        |                  |
            v         v                  v  1
           dw  <--- ReluGrad <--- ... <--'              backward: nodes that the rules append

The nodes are gone through from the last to the first. Each is handed the gradients of its outputs, and its
rule (:mod:`relayout.graph.gradients`) appends nodes that compute those of its inputs; what a value gets from
several readers is added, the last reader's first, so that the order of sums is fixed. Nodes that no parameter
leads to are left alone, as are gradients that nobody wants: of the first convolution by its image there is
none. What the backward pass needs of the forward pass it reads as any node does; the planner sees all of it.

>>> import numpy as np
>>> from relayout.graph.graph import Graph, Node, Value
>>> x = Value("x", (3,), np.dtype("f4"))
>>> nodes = Node("Mul", ("x", "w"), ("y",)), Node("ReduceSumSquare", ("y",), ("loss",), {"keepdims": 0})
>>> graph = Graph((x,), ("loss",), nodes, {"w": np.float32([1, 2, 3])})
>>> joint = backward(graph, "loss", ["w"])
>>> joint.results
('loss', 'gradient/w')
>>> joint.evaluate(np.float32([1, 1, 2]))
(array(41., dtype=float32), array([ 2.,  4., 24.], dtype=float32))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients import RULES, Reverse
from relayout.graph.gradients.recurrent import with_workspaces
from relayout.graph.gradients.reverse import Writing
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred, labelled, with_dims
from relayout.graph.operators.types import is_float
from relayout.graph.statistics import with_statistics

__all__ = ["backward", "gradient_of", "trainable", "with_inputs"]


def gradient_of(name: str) -> str:
    """The name of the gradient by a value.

    >>> gradient_of("conv1.weight")
    'gradient/conv1.weight'
    """
    return f"gradient/{name}"


def trainable(graph: Graph) -> tuple[str, ...]:
    """The constants that training changes: of floating point, with axes, and no statistics.

    Where the source of the graph says which it learns (:attr:`.Graph.parameters`), these. Otherwise numbers
    without axes are part of formulas (the 2 of a square), as are bounds, sizes and axes. The mean and
    variance that a batch normalisation is given are updated, not learned. Zeros that a recurrent layer begins
    with are what it has where no state is given; other numbers there were learned.

    >>> nodes = Node("Mul", ("x", "w"), ("a",)), Node("Mul", ("a", "two"), ("y",))
    >>> constants = {"w": np.float32([1, 2]), "two": np.float32(2)}
    >>> trainable(Graph((Value("x"),), ("y",), nodes, constants))
    ('w',)
    """
    known = None if graph.parameters is None else set(graph.parameters)
    found: dict[str, None] = {}
    begins = _begins(graph)
    for node in graph.nodes:
        for place, name in enumerate(node.inputs):
            data = graph.constants.get(name)
            if data is None or not is_float(data.dtype) or not data.size:
                continue
            if known is not None:
                found.update({name: None} if name in known else {})
                continue
            if not data.ndim or (name in begins and not data.any()):
                continue
            if (node.operator, place) not in FIXED and node.operator not in NEVER:
                found[name] = None
    return tuple(found)


def _begins(graph: Graph) -> set[str]:
    """The values that recurrent layers begin with, and those that these are the elements of."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.operator in RECURRENT:
            found |= set(node.inputs[5:7])
        elif node.operator in SAME and found & set(node.outputs):
            found.add(node.inputs[0])
    return found


FIXED = {("BatchNormalization", 3), ("BatchNormalization", 4), ("Clip", 1), ("Clip", 2), ("Dropout", 1)}
FIXED |= {("RotaryEmbedding", place) for place in (1, 2)}
"""Inputs that are no parameters, by operator and place."""
RECURRENT = ("LSTM", "GRU", "RNN")
SAME = ("Expand", "Slice", "Split", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity")
"""Operators whose results have the elements of their first input."""
NEVER = {"Resize", "Upsample", "QuantizeLinear", "DequantizeLinear", "NonMaxSuppression", "Range", "OneHot"}
"""Operators whose constants are none."""


def with_inputs(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with some of its constants as inputs, behind its own.

    Raises
    ------
    LayoutError
        It has no constant of a name.
    """
    missing = [name for name in names if name not in graph.constants]
    if missing:
        raise LayoutError(f"the graph has no constant {missing[0]!r}")
    made = tuple(Value(name, graph.constants[name].shape, graph.constants[name].dtype) for name in names)
    rest = {name: data for name, data in graph.constants.items() if name not in names}
    return Graph((*graph.inputs, *made), graph.results, graph.nodes, rest, graph.values, graph.name)


def backward(
    graph: Graph, loss: str, of: Sequence[str], batch: Mapping[str, int] | int | None = None
) -> Graph:
    """The joint graph: what the graph computes, and gradients of a loss.

    Parameters
    ----------
    graph : Graph
        All of its dims have to be known, but for those that ``batch`` says.
    loss : str
        A value of one element.
    of : sequence of str
        By what gradients are taken: constants and inputs, of floating point.
    batch : int or mapping, optional
        Sizes that are open, as :meth:`.Graph.plan` takes them.

    Returns
    -------
    Graph
        Its results are those of the graph, and then the gradients, ``gradient/NAME`` for each of ``of``.

    Raises
    ------
    LayoutError
        The loss is no number of floating point; something of ``of`` is no constant or input; an operator in
        between has no gradient (the message names the node); dims are not known.
    """
    own = {value.name for value in graph.inputs}
    of = list(dict.fromkeys(of))
    free = with_inputs(with_dims(graph, batch), [name for name in of if name not in own])
    known = inferred(free)
    known = with_workspaces(known, _active(known, of, Writing(known._known, known.constants)))
    constants = {name: graph.constants[name] for name in of if name not in own}
    joint = _joint(known, loss, of)
    inputs = tuple(value for value in joint.inputs if value.name not in constants)
    return joint.replaced(inputs=inputs, constants={**joint.constants, **constants})


def _joint(graph: Graph, loss: str, of: Sequence[str]) -> Graph:
    values = dict(graph._known)
    writing = Writing(values, graph.constants)
    for name in of:
        dtype = writing.fact(name).dtype
        if dtype is None or not is_float(dtype):
            raise LayoutError(f"there is no gradient by {name!r}, which is {graph.value(name)}")
    target = graph.value(loss)
    dims, dtype = writing.dims(loss), writing.dtype(loss)
    if any(n != 1 for n in dims) or not is_float(dtype):
        raise LayoutError(f"a loss is one number of floating point, not {target}")
    active = _active(graph, of, writing)
    if loss not in active:
        raise LayoutError(
            f"the loss {loss!r} does not depend on any of {', '.join(map(repr, of)) or 'nothing'}"
        )
    graph = with_statistics(graph, active, writing)
    active = _active(graph, of, writing)
    gathered: dict[str, list[str]] = {loss: [writing.constant(np.ones(dims, dtype))]}
    for node in reversed(graph.nodes):
        got = [_added(writing, gathered.pop(name, [])) if name else None for name in node.outputs]
        if not any(got) or not any(name in active for name in node.inputs):
            continue
        for name, one in zip(node.inputs, _reversed(writing, node, got, active), strict=False):
            if one is not None and name in active:
                gathered.setdefault(name, []).append(one)
    results = []
    for name in of:
        found = _added(writing, gathered.get(name, []))
        results.append(writing.renamed(found or writing.zeros(name), gradient_of(name)))
    made = {name: value for name, value in writing.values.items() if name not in writing.constants}
    return graph.replaced(
        results=(*graph.results, *results),
        nodes=(*graph.nodes, *writing.nodes),
        constants=writing.constants,
        values=made,
    )


def _active(graph: Graph, of: Sequence[str], writing: Writing) -> set[str]:
    """The values of floating point that depend on what gradients are taken by."""
    active = set(of)
    for node in graph.nodes:
        if any(name in active for name in node.inputs):
            for name in filter(None, node.outputs):
                dtype = writing.fact(name).dtype
                if dtype is None or is_float(dtype):
                    active.add(name)
    return active


def _reversed(
    writing: Writing, node: Node, gradients: Sequence[str | None], active: set[str]
) -> Sequence[str | None]:
    """The gradients of a node's inputs."""
    rule = RULES.get(node.operator)
    if rule is None:
        raise LayoutError(f"{labelled(node)}: there is no gradient of {node.operator}")
    try:
        made = rule(Reverse(writing, node, gradients, [name in active for name in node.inputs]))
    except LayoutError as error:
        raise type(error)(f"{labelled(node)}: {error}") from error
    return (made,) if made is None or isinstance(made, str) else made


def _added(writing: Writing, several: Sequence[str]) -> str | None:
    """The sum of what a value gets from its readers."""
    if not several:
        return None
    whole = _side_by_side(writing, several)
    if whole is not None:
        return whole
    found = several[0]
    for other in several[1:]:
        found = writing("Add", found, other)
    return found


def _side_by_side(writing: Writing, several: Sequence[str]) -> str | None:
    """Parts of one value along an axis, with zeros around each, as one concatenation instead of sums."""
    if len(several) < 2:
        return None
    made = {name: node for node in writing.nodes[-AGO:] for name in node.outputs}
    parts: list[tuple[int, str]] = []
    along: set[int] = set()
    dims = writing.dims(several[0])
    for name in several:
        node = made.get(name)
        pads = writing.constants.get(node.inputs[1]) if node is not None and node.operator == "Pad" else None
        if node is None or pads is None or node.attributes or len(node.inputs) != 2:
            return None
        front, behind = pads[: len(dims)], pads[len(dims) :]
        padded = [k for k in range(len(dims)) if front[k] or behind[k]]
        if len(padded) != 1 or len(pads) != 2 * len(dims) or min(pads) < 0:
            return None
        along.update(padded)
        parts.append((int(front[padded[0]]), node.inputs[0]))
    if len(along) != 1:
        return None
    axis, end = along.pop(), 0
    for start, name in sorted(parts):
        if start != end:
            return None
        end += writing.dims(name)[axis]
    return (
        str(writing("Concat", *(name for _, name in sorted(parts)), axis=axis)) if end == dims[axis] else None
    )


AGO = 4096  # nodes among which the parts of a value are looked for
