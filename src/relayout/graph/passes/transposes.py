"""Transposes that meet and vanish, by a choice of the order in which each node sees its axes.

Networks of other systems come with a Transpose before and behind every operator that ONNX defines in NCHW.
Most of what stands between, element by element or along an axis, can be computed in any order
(:mod:`~relayout.graph.passes.orders`). So the question is not where to push a Transpose, but which order
each such node takes::

    order of a node          identity at first: the graph as it came
    order of a value         that of the node that computes it; identity for all other nodes, and inputs
    cost                     one Transpose for each value and order that a reader wants and it doesn't have

Nodes that are connected without a Transpose between them change their order together; then each node alone.
A change is made when the number of Transposes falls, or stays and fewer elements are moved; a Transpose
beside a convolution or the like moves none, since that reads and writes in any format. So it ends, the
number never grows, and with residual connections no Transpose has to pass an Add from one side only. A
Transpose that moves only axes of one element is free: it is a Reshape. Inputs and outputs of the graph keep
their order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from relayout.graph.graph import Array, Dims, Graph, Node, Value
from relayout.graph.passes.composition import composed
from relayout.graph.passes.dead import without_dead
from relayout.graph.passes.identities import without_identities
from relayout.graph.passes.orders import Kind, Order, kind_of, places
from relayout.graph.passes.rewriting import Around

__all__ = ["transposes_moved"]

VIEWS: Final = frozenset(
    ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
)
"""Operators for which a Transpose beside them is another format of what they read or write, not work."""


def transposes_moved(graph: Graph) -> Graph:
    """The graph with as few Transposes as the rule above finds.

    >>> import numpy as np
    >>> from relayout.graph.graph import Value
    >>> from relayout.graph.inference import inferred
    >>> x = Value("x", (1, 8, 4, 4), np.dtype("float32"))
    >>> there, back = {"perm": (0, 2, 3, 1)}, {"perm": (0, 3, 1, 2)}
    >>> first, add = Node("Transpose", ("x",), ("a",), there), Node("Add", ("a", "row"), ("b",))
    >>> nodes = first, add, Node("Transpose", ("b",), ("y",), back)
    >>> print(transposes_moved(inferred(Graph((x,), ("y",), nodes, {"row": np.ones(8, np.float32)}))))
    x f32 1x8x4x4
    y = Add(x, b/constant)
    -> y
    """
    if not any(node.operator == "Transpose" for node in graph.nodes):
        return graph
    search = _Search(graph)
    return composed(search.made()) if search.improved() else graph


class _Reader(NamedTuple):
    """Who reads a value in some order: a node, or an output of the graph."""

    node: int | None
    """None if it takes no other order than that."""
    order: Order
    """What the Transposes between amount to."""
    operator: str


class _Search:
    """Orders of nodes, and what they cost."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.source: dict[str, tuple[str, Order]] = {}
        self.kinds: list[Kind | None] = []
        self.orders: list[Order | None] = []
        self.maker: dict[str, int] = {}
        self.readers: defaultdict[str, list[_Reader]] = defaultdict(list)
        for at, node in enumerate(graph.nodes):
            perm = self._perm(node)
            if perm is not None:
                value, before = self._source(node.inputs[0], len(perm))
                self.source[node.outputs[0]] = value, tuple(before[i] for i in perm)
                self.kinds.append(None)
                self.orders.append(None)
                continue
            known = all(graph.value(name).dims is not None for name in node.outputs if name)
            kind = kind_of(node, graph) if known else None  # readers could not be told of another order
            self.kinds.append(kind)
            self.orders.append(None if kind is None else tuple(range(kind.rank)))
            for name in filter(None, node.outputs):
                self.maker[name] = at
            for place, name in enumerate(node.inputs):
                if name and name not in graph.constants:
                    turns = kind is not None and place in kind.operands
                    self._read(name, at if turns else None, node.operator)
        for name in graph.results:
            self._read(name, None, "")

    def _perm(self, node: Node) -> Order | None:
        """The order of a Transpose; None for other nodes, and where it isn't known."""
        if node.operator != "Transpose":
            return None
        dims, perm = self.graph.value(node.inputs[0]).dims, node.attributes.get("perm")
        if dims is None:
            return None
        return tuple(reversed(range(len(dims)))) if perm is None else tuple(perm)

    def _source(self, name: str, rank: int) -> tuple[str, Order]:
        return self.source.get(name, (name, tuple(range(rank))))

    def _read(self, name: str, at: int | None, operator: str) -> None:
        dims = self.graph.value(name).dims
        value, order = self._source(name, 0 if dims is None else len(dims))
        self.readers[value].append(_Reader(at, order, operator))

    # ---- what orders cost

    def order(self, value: str) -> Order | None:
        """The order in which a value is computed; None for identity."""
        at = self.maker.get(value)
        kind, order = (None, None) if at is None else (self.kinds[at], self.orders[at])
        return None if kind is None or order is None else kind.result(order)

    def wanted(self, reader: _Reader) -> Order:
        """The order in which a reader wants a value, in the axes of what it is transposed from."""
        order = None if reader.node is None else self.orders[reader.node]
        return reader.order if order is None else tuple(reader.order[axis] for axis in order)

    def cost(self, values: Iterable[str]) -> tuple[int, int, int]:
        """Transposes of some values; how many elements they move that are no views; how many in all."""
        count = work = elements = 0
        for value in values:
            dims = self.graph.value(value).dims
            if dims is None:
                continue
            has = _visible(self.order(value) or tuple(range(len(dims))), dims)
            size = math.prod(n for n in dims if isinstance(n, int))
            readers: defaultdict[Order, list[str]] = defaultdict(list)
            for reader in self.readers[value]:
                readers[_visible(self.wanted(reader), dims)].append(reader.operator)
            readers.pop(has, None)
            maker = self.maker.get(value)
            written = maker is not None and self.graph.nodes[maker].operator in VIEWS
            moved = 0 if written else sum(not VIEWS.issuperset(names) for names in readers.values())
            count += len(readers)
            work += moved * size
            elements += len(readers) * size
        return count, work, elements

    # ---- the search

    def improved(self) -> bool:
        """Change orders as long as it saves something; whether anything was changed."""
        flexible = [at for at, kind in enumerate(self.kinds) if kind is not None]
        groups = [*self._connected(flexible), *([at] for at in flexible)]
        changed, again = False, True
        while again:
            again = sum(self._turned(group) for group in groups) > 0
            changed |= again
        return changed

    def _connected(self, flexible: list[int]) -> list[list[int]]:
        """Nodes between which values go without a Transpose."""
        root = {at: at for at in flexible}

        def find(at: int) -> int:
            while root[at] != at:
                root[at] = root[root[at]]
                at = root[at]
            return at

        for value, readers in self.readers.items():
            maker = self.maker.get(value)
            if maker is None or maker not in root:
                continue
            kind = self.kinds[maker]
            for reader in readers:
                plain = reader.order == tuple(range(len(reader.order)))
                if plain and reader.node is not None and kind is not None and not kind.dropped:
                    root[find(maker)] = find(reader.node)
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for at in flexible:
            groups[find(at)].append(at)
        return [group for group in groups.values() if len(group) > 1]

    def _turned(self, group: list[int]) -> bool:
        """Give nodes the order among those of their neighbours that saves most; whether one does."""
        inside = set(group)
        touched, orders = set(), {}
        for at in group:
            node = self.graph.nodes[at]
            kind = self.kinds[at]
            for name in filter(None, node.outputs):
                touched.add(name)
                if kind is not None and not kind.dropped:
                    wanted = (self.wanted(one) for one in self.readers[name] if one.node not in inside)
                    orders.update(dict.fromkeys(wanted))
            for place in kind.operands if kind is not None else ():
                value, by = self._source(node.inputs[place], kind.rank if kind is not None else 0)
                touched.add(value)
                if self.maker.get(value) not in inside:
                    back = places(by)
                    seen = {self.order(value) or tuple(range(len(by)))}
                    seen.update(self.wanted(one) for one in self.readers[value] if one.node not in inside)
                    orders.update(dict.fromkeys(tuple(back[axis] for axis in one) for one in seen))
        before = {at: self.orders[at] for at in group}
        best, found = self.cost(touched), before
        for order in sorted(orders):
            if all(kind is not None and kind.allows(order) for kind in (self.kinds[at] for at in group)):
                for at in group:
                    self.orders[at] = order
                cost = self.cost(touched)
                if cost < best:
                    best, found = cost, dict.fromkeys(group, order)
        for at in group:
            self.orders[at] = found[at]
        return found is not before

    # ---- the graph

    def made(self) -> Graph:
        """The graph with nodes in their orders, and Transposes where these differ."""
        graph = self.graph
        around = Around(graph)
        names: dict[tuple[str, Order], str] = {}
        nodes: list[Node] = []
        constants: dict[str, Array] = dict(graph.constants)
        ordered: dict[str, Value] = {}

        def read(value: str, order: Order) -> str:
            """A value in an order."""
            has = self.order(value) or tuple(range(len(order)))
            made = names.get((value, has), value)
            if order == has:
                return made
            if (value, order) not in names:
                names[value, order] = around.fresh(f"{value}/transposed")
                perm = tuple(has.index(axis) for axis in order)
                nodes.append(Node("Transpose", (made,), (names[value, order],), {"perm": perm}))
            return names[value, order]

        for node, kind, order in zip(graph.nodes, self.kinds, self.orders, strict=True):
            if self._perm(node) is not None:
                continue
            inputs = list(node.inputs)
            attributes = dict(node.attributes)
            for place, name in enumerate(node.inputs):
                dims = graph.value(name).dims if name and name not in graph.constants else None
                if dims is not None or name in self.source:
                    value, by = self._source(name, len(dims or ()))
                    turns = kind is not None and place in kind.operands and order is not None
                    inputs[place] = read(value, tuple(by[axis] for axis in order) if turns and order else by)
            outputs = list(node.outputs)
            if kind is not None and order is not None and order != tuple(range(kind.rank)):
                more, arrays = kind.reordered(order)
                attributes.update(more)
                inputs.extend([""] * (max(arrays, default=-1) + 1 - len(inputs)))
                for place, data in arrays.items():
                    inputs[place] = around.fresh(f"{node.outputs[0]}/constant")
                    constants[inputs[place]] = data
                result = kind.result(order)
                if result != tuple(range(len(result))):
                    for place, name in enumerate(node.outputs):
                        if name:
                            outputs[place] = new = around.fresh(f"{name}/ordered")
                            names[name, result] = new
                            old = graph.value(name)
                            turned = old.dims and tuple(old.dims[axis] for axis in result)
                            ordered[new] = Value(new, turned, old.dtype)
            nodes.append(Node(node.operator, tuple(inputs), tuple(outputs), attributes, node.name))
        done = {name for node in nodes for name in node.outputs} | {value.name for value in graph.inputs}
        for name in dict.fromkeys(graph.results):
            if name not in done and name not in constants:
                dims = graph.value(name).dims
                value, by = self._source(name, 0 if dims is None else len(dims))
                nodes.append(Node("Identity", (read(value, by),), (name,)))
        moved = {node.outputs[0] for node in graph.nodes if self._perm(node) is not None}
        same = (done - moved) | set(graph.results)
        values = ordered | {name: value for name, value in graph.values.items() if name in same}
        return without_dead(
            without_identities(graph.replaced(nodes=tuple(nodes), constants=constants, values=values))
        )


def _visible(order: Order, dims: Dims) -> Order:
    """An order without the axes of one element, wherever a Reshape can move those."""
    unknown = sum(not isinstance(n, int) for n in dims)
    if unknown > 1 or (unknown and 0 in dims):
        return order
    return tuple(axis for axis in order if dims[axis] != 1)
