"""Parts of values that are copied side by side, computed where they belong instead.

A concatenation is memory that the makers of its parts write into, but a slice of another value has no maker:
it is copied. So the node before the slices, or the one behind the concatenation, is done for each part::

    Concat(Slice(LayerNormalization(x)), ...)    Concat(LayerNormalization(Slice(x)), ...)
    Add(y, Concat(Slice(x), ...))                Concat(Add(Slice(y), Slice(x)), ...)
    Concat(Slice(Concat(a, b)), ...)             Concat(Concat(Slice(a), ...), Concat(Slice(b), ...))

The third, where the two go along different axes, lets the others come to it: so a roll of an image, which is
cut and joined along both axes, is four slices of whatever came before. The same is computed, by more nodes;
it is for kernels that read and write slices where they lie, and no part of what is written to other runtimes.

And parts that lie side by side in the value that they were cut from need no copy at all: that value is
written into the concatenation, and its parts are views of it, as in networks that go on with a half of their
channels::

    a, b = Split(x); Concat(a, b, f(b))      a, b = Split(x); Concat(x, f(b))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.passes.orders import BROADCAST, EACH
from relayout.graph.passes.rewriting import Around, attribute, rewritten, sizes

__all__ = ["in_parts"]

ROUNDS: Final = 8  # at most; a roll takes four
ROWS: Final = frozenset(("LayerNormalization", "RMSNormalization", "Softmax"))
"""Along the last axes, from one that an attribute names."""

Cut = Mapping[int, tuple[int, int]]
"""The indices that a slice keeps, by axis."""


def in_parts(graph: Graph) -> Graph:
    """The graph with nodes done for each part of a concatenation that would be copied.

    >>> from relayout.graph.graph import Value
    >>> from relayout.graph.inference import inferred
    >>> x, y = (Value(name, (4, 6), np.dtype("f4")) for name in "xy")
    >>> halves = Node("Split", ("x",), ("a", "b"), {"axis": 1, "num_outputs": 2})
    >>> swap = Node("Concat", ("b", "a"), ("c",), {"axis": 1})
    >>> print(in_parts(inferred(Graph((x, y), ("z",), (halves, swap, Node("Add", ("y", "c"), ("z",)))))))
    x f32 4x6
    y f32 4x6
    a, b = Split(x, axis=1, num_outputs=2)
    z/of = Slice(y, z/of/constant, z/of/constant.1, z/of/constant.2)
    z/part = Add(z/of, b)
    z/of.1 = Slice(y, z/of.1/constant, z/of.1/constant.1, z/of.1/constant.2)
    z/part.1 = Add(z/of.1, a)
    z = Concat(z/part, z/part.1, axis=1)
    -> z
    """
    for _ in range(ROUNDS):
        made = rewritten(graph, _together, _before, _apart, _behind)
        if made is graph:
            break
        graph = made
    return graph


def _together(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Concat that has a value in the place of all its parts, which stand there in their order."""
    dims = sizes(around.dims(node.outputs[0])) if node.operator == "Concat" else None
    if dims is None:
        return None
    axis = int(node.attributes["axis"]) % len(dims)
    parts: list[str] = []
    at = 0
    while at < len(node.inputs):
        name, count = _whole(node.inputs[at:], axis, around)
        parts.append(name)
        at += count
    if len(parts) == len(node.inputs):
        return None
    operator = "Concat" if len(parts) > 1 else "Identity"
    attributes = node.attributes if len(parts) > 1 else {}
    return (Node(operator, tuple(parts), node.outputs, attributes, node.name),)


def _whole(names: tuple[str, ...], axis: int, around: Around) -> tuple[str, int]:
    """The value that the first of some values make up, all its parts in order, and how many they are."""
    end = 0
    first = ""
    for count, name in enumerate(names, 1):
        found = _part(name, axis, around)
        if found is None or found[1] != end or found[0] != (first or found[0]):
            break
        first, _, end = found
        size = sizes(around.dims(first))
        if size is not None and end == size[axis]:
            return first, count
    return names[0], 1


def _part(name: str, axis: int, around: Around) -> tuple[str, int, int] | None:
    """The value of which a value is a part along an axis, from which index to which."""
    node = around.node(name, "Split", "Slice")
    dims = None if node is None else sizes(around.dims(node.inputs[0]))
    if node is None or dims is None:
        return None
    if node.operator == "Slice":
        cut = _kept(node, dims, around)
        return None if cut is None or set(cut) != {axis} else (node.inputs[0], *cut[axis])
    pieces = [sizes(around.dims(one)) if one else None for one in node.outputs]
    known = [piece[axis] for piece in pieces if piece is not None]
    if attribute(node, "axis") % len(dims) != axis or len(known) < len(pieces):
        return None
    place = node.outputs.index(name)
    start = sum(known[:place])
    return node.inputs[0], start, start + known[place]


def _before(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Concat of all parts of what one node computes, which nobody else reads."""
    found = _slices(node, around)
    if found is None:
        return None
    name, cuts = found
    maker, dims = around.node(name), sizes(around.dims(name))
    if maker is None or dims is None or around.reads[name] != len(cuts) or any(maker.outputs[1:]):
        return None
    axes = {axis for cut in cuts for axis in cut}
    if sum(_elements(cut, dims) for cut in cuts) != int(np.prod(dims)) or not _goes_by(maker, axes, around):
        return None
    made: list[Node] = []
    parts = []
    for cut in cuts:
        source = _sliced(maker.inputs[0], cut, node.outputs[0], made, around)
        part = around.fresh(f"{node.outputs[0]}/part")
        made.append(Node(maker.operator, (source, *maker.inputs[1:]), (part,), maker.attributes, maker.name))
        parts.append(part)
    return (*made, Node("Concat", tuple(parts), node.outputs, node.attributes, node.name))


def _apart(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A Concat of parts of a Concat along another axis."""
    found = _slices(node, around)
    if found is None:
        return None
    name, cuts = found
    inner = around.node(name, "Concat")
    if inner is None or around.reads[name] != len(cuts):
        return None
    axis = _axis(inner, around)
    if axis is None or any(axis in cut for cut in cuts):
        return None
    made: list[Node] = []
    rows = []
    for part in inner.inputs:
        pieces = [_sliced(part, cut, node.outputs[0], made, around) for cut in cuts]
        rows.append(around.fresh(f"{node.outputs[0]}/part"))
        made.append(Node("Concat", tuple(pieces), (rows[-1],), node.attributes, node.name))
    return (*made, Node("Concat", tuple(rows), node.outputs, inner.attributes, inner.name))


def _behind(node: Node, around: Around) -> tuple[Node, ...] | None:
    """A node, element by element, on a Concat that nobody else reads and parts of which are views."""
    if node.operator not in EACH and node.operator not in BROADCAST:
        return None
    places = [k for k, name in enumerate(node.inputs) if around.inner(name, "Concat") is not None]
    place = next((k for k in places if _has_views(node.inputs[k], around)), None)
    if place is None or (node.operator in EACH and place):
        return None
    joined = around.node(node.inputs[place], "Concat")
    dims, out = sizes(around.dims(node.inputs[place])), sizes(around.dims(node.outputs[0]))
    axis = None if joined is None else _axis(joined, around)
    if (
        joined is None
        or axis is None
        or dims is None
        or dims != out
        or node.inputs.count(node.inputs[place]) > 1
    ):
        return None
    made: list[Node] = []
    parts = []
    start = 0
    for part in joined.inputs:
        size = sizes(around.dims(part))
        if size is None:
            return None
        stop = start + size[axis]
        inputs = []
        for k, name in enumerate(node.inputs):
            other = sizes(around.dims(name)) if name else ()
            if other is None:
                return None
            at = axis - (len(dims) - len(other))
            if k == place:
                inputs.append(part)
            elif not name or at < 0 or other[at] == 1:
                inputs.append(name)
            else:
                inputs.append(_sliced(name, {at: (start, stop)}, node.outputs[0], made, around))
        parts.append(around.fresh(f"{node.outputs[0]}/part"))
        made.append(Node(node.operator, tuple(inputs), (parts[-1],), node.attributes, node.name))
        start = stop
    return (*made, Node("Concat", tuple(parts), node.outputs, {"axis": axis}, joined.name))


def _goes_by(node: Node, axes: set[int], around: Around) -> bool:
    """Whether a node of one moving input does the same to each part along these axes."""
    if any(around.data(name) is None for name in node.inputs[1:] if name):
        return False
    if node.operator in EACH:
        return True
    dims = around.dims(node.inputs[0])
    if node.operator not in ROWS or dims is None:
        return False
    return max(axes) < int(attribute(node, "axis")) % len(dims)


def _has_views(name: str, around: Around) -> bool:
    """Whether a value is a view of another one, or a Concat that has such a part."""
    node = around.node(name, "Concat", "Slice", "Split")
    return node is not None and (
        node.operator != "Concat" or any(_has_views(part, around) for part in node.inputs)
    )


def _slices(node: Node, around: Around) -> tuple[str, list[Cut]] | None:
    """The value of which all inputs of a Concat are slices, and what each keeps."""
    if node.operator != "Concat" or len(set(node.inputs)) < len(node.inputs):
        return None
    found = [_cut(name, around) for name in node.inputs]
    names = {one[0] for one in found if one is not None}
    if None in found or len(names) != 1:
        return None
    return names.pop(), [one[1] for one in found if one is not None]


def _cut(name: str, around: Around) -> tuple[str, Cut] | None:
    """What a Slice without steps, read once, keeps of which value."""
    node = around.inner(name, "Slice")
    dims = None if node is None else sizes(around.dims(node.inputs[0]))
    found = None if node is None or dims is None else _kept(node, dims, around)
    return None if node is None or found is None else (node.inputs[0], found)


def _kept(node: Node, dims: tuple[int, ...], around: Around) -> Cut | None:
    """What a Slice keeps of a value with these dims; None where it has steps, or is not known."""
    given = [around.data(one) if one else None for one in node.inputs[1:]]
    if any(data is None for data in given[:2]) or any(
        name and data is None for name, data in zip(node.inputs[1:], given, strict=True)
    ):
        return None
    starts, ends = (np.asarray(one).tolist() for one in given[:2])
    axes = range(len(starts)) if len(given) < 3 or given[2] is None else given[2].tolist()
    steps = [1] * len(starts) if len(given) < 4 or given[3] is None else given[3].tolist()
    if set(steps) != {1}:
        return None
    found = {}
    for axis, start, end in zip(axes, starts, ends, strict=True):
        start, stop, _ = slice(start, end).indices(dims[axis])
        found[axis % len(dims)] = start, stop
    return found


def _sliced(name: str, cut: Cut, near: str, made: list[Node], around: Around) -> str:
    """The name of a new slice of a value."""
    target = around.fresh(f"{near}/of")
    bounds = ([cut[axis][0] for axis in cut], [cut[axis][1] for axis in cut], list(cut))
    given = [around.constant(np.array(one, np.int64), target) for one in bounds]
    made.append(Node("Slice", (name, *given), (target,)))
    return target


def _elements(cut: Cut, dims: tuple[int, ...]) -> int:
    kept = (cut.get(axis, (0, size)) for axis, size in enumerate(dims))
    return int(np.prod([stop - start for start, stop in kept]))


def _axis(node: Node, around: Around) -> int | None:
    dims = around.dims(node.outputs[0])
    return None if dims is None else int(node.attributes["axis"]) % len(dims)
