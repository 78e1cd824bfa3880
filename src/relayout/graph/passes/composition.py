"""Two nodes that move nothing, or only move, as one.

Transposes one behind the other are one; a Transpose that only moves axes of one element is a Reshape.
Reshape, Flatten, Squeeze and Unsqueeze one behind the other are one Reshape. A Concat of Concats along one
axis is one. Expand is not needed before an operator that broadcasts anyway, nor before one that does the same
to every element, which has less to do then.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from relayout.graph.graph import Dims, Graph, Node
from relayout.graph.passes.rewriting import Around, attribute, equal_dims, rewritten

__all__ = ["RESHAPES", "composed", "reshaped"]

RESHAPES: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that keep the elements in their order."""

BROADCASTING: Final = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Greater", "Less", "And", "Or", "Xor", "Where"),
)
ALIKE: Final = ("Cast", "Not")
"""Operators that make masks, of which PyTorch repeats some first; each element is treated alike."""


def composed(graph: Graph) -> Graph:
    """The graph with Transposes, Reshapes and Concats composed.

    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (2, 3, 5), np.dtype("float32"))
    >>> once = Node("Transpose", ("x",), ("a",), {"perm": (1, 0, 2)})
    >>> twice = Node("Transpose", ("a",), ("y",), {"perm": (0, 2, 1)})
    >>> print(composed(Graph((x,), ("y",), (once, twice))))
    x f32 2x3x5
    y = Transpose(x, perm=(1, 2, 0))
    -> y
    """
    return rewritten(
        graph, _transposes, _moved_ones, _reshapes, _known_shape, _concats, _expanded, _expanded_later
    )


def reshaped(source: str, target: str, dims: Dims | None, node: Node, around: Around) -> Node | None:
    """A Reshape to dims that are known but for one; None where more are unknown.

    A number that is not known must be the only one, and then no other may be 0.
    """
    if dims is None:
        return None
    shape = [n if isinstance(n, int) else -1 for n in dims]
    if shape.count(-1) > 1 or (-1 in shape and 0 in shape):
        return None
    wanted = around.constant(np.array(shape, np.int64), target)
    return Node("Reshape", (source, wanted), (target,), {"allowzero": 1} if 0 in shape else {}, node.name)


def _perm(node: Node, around: Around) -> tuple[int, ...] | None:
    perm = attribute(node, "perm")
    if perm is not None:
        return tuple(perm)
    dims = around.dims(node.inputs[0])
    return None if dims is None else tuple(reversed(range(len(dims))))


def _transposes(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator != "Transpose":
        return None
    before = around.node(node.inputs[0], "Transpose")
    perm = _perm(node, around)
    if before is None or perm is None:
        return None
    first = _perm(before, around)
    if first is None:
        return None
    both = tuple(first[i] for i in perm)
    source = before.inputs[0]
    if both == tuple(range(len(both))):
        return (Node("Identity", (source,), node.outputs),)
    return (Node("Transpose", (source,), node.outputs, {"perm": both}, node.name),)


def _moved_ones(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Transpose after which the axes of more than one element come in the order of before."""
    if node.operator != "Transpose":
        return None
    perm, dims = _perm(node, around), around.dims(node.inputs[0])
    if perm is None or dims is None:
        return None
    left = [axis for axis in perm if dims[axis] != 1]
    if left != sorted(left):
        return None
    made = reshaped(node.inputs[0], node.outputs[0], tuple(dims[axis] for axis in perm), node, around)
    return None if made is None else (made,)


def _reshapes(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator not in RESHAPES:
        return None
    before = around.node(node.inputs[0], *RESHAPES)
    if before is None:
        return None
    source, dims = before.inputs[0], around.dims(node.outputs[0])
    if equal_dims(around.dims(source), dims):
        return (Node("Identity", (source,), node.outputs),)
    made = reshaped(source, node.outputs[0], dims, node, around)
    return None if made is None else (made,)


def _known_shape(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Reshape whose shape is computed, although its dims are known."""
    if node.operator != "Reshape" or around.data(node.inputs[1]) is not None:
        return None
    made = reshaped(node.inputs[0], node.outputs[0], around.dims(node.outputs[0]), node, around)
    return None if made is None else (made,)


def _concats(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator != "Concat":
        return None
    parts: list[str] = []
    for name in node.inputs:
        inner = around.inner(name, "Concat")
        same = inner is not None and inner.attributes["axis"] == node.attributes["axis"]
        parts.extend(inner.inputs if inner is not None and same else (name,))
    if len(parts) == len(node.inputs):
        return None
    return (Node("Concat", tuple(parts), node.outputs, node.attributes, node.name),)


def _expanded(node: Node, around: Around) -> tuple[Node, ...] | None:
    """Read what is expanded, where the other operand has the dims of the result already.

    A matrix product broadcasts all axes but the last two, which are those of its matrices: PyTorch repeats
    weights so for a source of three axes and more whose rows don't lie as one.
    """
    if node.operator not in (*BROADCASTING, "MatMul"):
        return None
    matrices = 2 * (node.operator == "MatMul")
    if any(len(around.dims(name) or ()) < matrices for name in node.inputs):
        return None  # a vector has no axes in front of its matrix
    result = _without_last(around.dims(node.outputs[0]), matrices)
    whole = [equal_dims(_without_last(around.dims(name), matrices), result) for name in node.inputs]
    for place, name in enumerate(node.inputs):
        source = _repeated(name, matrices, around)
        if source is not None and any(whole[:place] + whole[place + 1 :]):
            inputs = list(node.inputs)
            inputs[place] = source
            return (Node(node.operator, tuple(inputs), node.outputs, node.attributes, node.name),)
    return None


def _expanded_later(node: Node, around: Around) -> tuple[Node, ...] | None:
    """Do the same to every element before it is repeated."""
    expand = around.node(node.inputs[0], "Expand") if node.operator in ALIKE else None
    if expand is None:
        return None
    few = around.fresh(node.outputs[0])
    return (
        Node(node.operator, (expand.inputs[0],), (few,), node.attributes, node.name),
        Node("Expand", (few, expand.inputs[1]), node.outputs, expand.attributes, expand.name),
    )


def _repeated(name: str, matrices: int, around: Around) -> str | None:
    """What a value repeats, but not along its last axes, those of matrices; None where it does not.

    A matrix that is repeated along several axes may be seen as so many matrices side by side.
    """
    expand, view = around.node(name, "Expand"), None
    if expand is None and matrices and (view := around.node(name, "Reshape")) is not None:
        expand = around.node(view.inputs[0], "Expand")
    if expand is None:
        return None
    source = expand.inputs[0]
    given, made = around.dims(source), around.dims(name)
    wanted = _last(given, matrices)
    for one in (made, around.dims(expand.outputs[0])) if matrices else ():
        if not equal_dims(wanted, _last(one, matrices)):
            return None
    if view is not None and given is not None and made is not None:
        alone = set(given[: len(given) - matrices]) <= {1}
        if not alone or len(given) > len(made):
            return None
    return source


def _last(dims: Dims | None, count: int) -> Dims | None:
    """The last of some dims; None where there are fewer."""
    return None if dims is None or len(dims) < count else dims[len(dims) - count :]


def _without_last(dims: Dims | None, count: int) -> Dims | None:
    """The dims in front of them."""
    return None if dims is None else dims[: len(dims) - count]
