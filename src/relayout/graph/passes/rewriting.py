"""Rules that put other nodes in the place of a node, and the sweep that applies them.

A rule is given a node and what stands before it, and returns the nodes that compute the same outputs, or None
where it doesn't apply::

    def twice(node, around):
        if node.operator == "Add" and node.inputs[0] == node.inputs[1]:
            two = around.constant(np.array(2, around.dtype(node.inputs[0])), node)
            return (Node("Mul", (node.inputs[0], two), node.outputs),)
        return None

It looks backwards only. New nodes stand where the last node of the old ones stood, so whatever is read has
been computed, and an order in which the nodes can run stays one. What nobody reads any longer goes at once,
so that the next rule counts right. A node ``Identity`` lets readers of its result read what it is made of;
it stays only where its result is an output of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from relayout.graph.graph import Array, Dims, Graph, Node, Value, fresh
from relayout.graph.inference import facts_of
from relayout.graph.operators import OPERATORS, Fact

__all__ = ["Around", "Rule", "equal_dims", "rewritten", "sizes"]

Rule: TypeAlias = "Callable[[Node, Around], Iterable[Node] | None]"


def rewritten(graph: Graph, *rules: Rule) -> Graph:
    """The graph after one sweep: on each node the first rule that applies; the same object if none did."""
    around = Around(graph)
    changed = False
    for old in graph.nodes:
        node = around.renamed(old)
        if around.is_dead(node):
            around.release(node)
            changed = True
            continue
        around.know(node)
        made = next((made for rule in rules if (made := rule(node, around)) is not None), None)
        if made is None:
            around.append(node)
            continue
        changed = True
        for one in made:
            around.insert(one)
        around.release(node)
    return around.graph() if changed else graph


class Around:
    """A graph during a sweep: what rules ask, and what becomes of it.

    Parameters
    ----------
    graph : Graph
        Before the sweep.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants = dict(graph.constants)
        self._values = {value.name: value for value in (*graph.values.values(), *graph.inputs)}
        self._made: dict[str, Node] = {}
        self._nodes: list[Node] = []
        self._gone: set[Node] = set()
        self._names: dict[str, str] = {}
        self.reads = Counter(name for node in graph.nodes for name in node.inputs if name)
        """How often each value is read: by nodes, and as an output of the graph."""
        self.reads.update(graph.results)
        self.outputs = frozenset(graph.results)
        self._taken = {*self._constants, *self._values, *self.outputs}
        self._taken.update(name for node in graph.nodes for name in node.outputs)

    # ---- questions

    def node(self, name: str, *operators: str) -> Node | None:
        """The node that computes a value, if it is one of these operators (of any, without them)."""
        found = self._made.get(name)
        return found if found is not None and (not operators or found.operator in operators) else None

    def inner(self, name: str, *operators: str) -> Node | None:
        """The same, for a node whose one result is read once: it goes when its reader goes."""
        found = self.node(name, *operators)
        alone = found is not None and sum(self.reads[one] for one in found.outputs if one) == 1
        return found if alone else None

    def data(self, name: str) -> Array | None:
        """A constant; None for other values."""
        return self._constants.get(name)

    def number(self, name: str) -> float | None:
        """The element of a real constant that has one; None for other values."""
        data = self._constants.get(name)
        if data is None or data.size != 1 or not is_real(data.dtype):
            return None
        return float(data.reshape(()))

    def value(self, name: str) -> Value:
        """What is known of a value."""
        data = self._constants.get(name)
        return (
            Value(name, data.shape, data.dtype) if data is not None else self._values.get(name, Value(name))
        )

    def dims(self, name: str) -> Dims | None:
        """Its dims, None where not even their number is known."""
        return self.value(name).dims

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """Its data type, as far as it is known."""
        return self.value(name).dtype

    def floating(self, name: str) -> bool:
        """Whether it is f32 or f64: types in which rounding is small beside what rules compare."""
        return self.dtype(name) in (np.float32, np.float64)

    def operands(self, node: Node) -> Iterator[tuple[str, str]]:
        """The two inputs of a node, and exchanged where its operator doesn't mind."""
        if len(node.inputs) == 2:
            yield node.inputs[0], node.inputs[1]
            if node.operator in ("Add", "Mul", "Sum", "Max", "Min"):
                yield node.inputs[1], node.inputs[0]

    def with_constant(self, node: Node) -> tuple[str, Array] | None:
        """The operand of a node with two that is computed, and the other one, a constant."""
        for name, other in self.operands(node):
            data = self.data(other)
            if data is not None and self.data(name) is None:
                return name, data
        return None

    # ---- what rules make

    def fresh(self, near: str) -> str:
        """A name that no value has."""
        return fresh(near, self._taken)

    def constant(self, data: Array, near: Node | str) -> str:
        """The name of a new constant, one like that of a value or of a node's result."""
        name = self.fresh(f"{near if isinstance(near, str) else near.outputs[0]}/constant")
        self._constants[name] = data
        return name

    # ---- the sweep

    def renamed(self, node: Node) -> Node:
        """A node that reads what stands for its inputs now."""
        if self._names.keys().isdisjoint(node.inputs):
            return node
        inputs = tuple(self._names.get(name, name) for name in node.inputs)
        return Node(node.operator, inputs, node.outputs, node.attributes, node.name)

    def is_dead(self, node: Node) -> bool:
        """Whether nobody reads a result."""
        return not any(self.reads[name] for name in node.outputs if name)

    def append(self, node: Node) -> None:
        """Let a node stand as it is."""
        self._nodes.append(node)
        self._made.update((name, node) for name in node.outputs if name)

    def insert(self, node: Node) -> None:
        """Put a new node behind all others."""
        node = self.renamed(node)
        source, target = node.inputs[:1], node.outputs[0]
        if node.operator == "Identity" and target not in self.outputs:
            for name, stands in self._names.items():
                if stands == target:
                    self._names[name] = source[0]
            self._names[target] = source[0]
            self.reads[source[0]] += self.reads.pop(target, 0)
            return
        self.reads.update(filter(None, node.inputs))
        self.know(node)
        self.append(node)

    def know(self, node: Node) -> None:
        """Find out the dims and data types of its results, where they are not known."""
        before = [self._values.get(name) for name in node.outputs if name]
        if all(value is not None and value.known for value in before):
            return
        for name, fact in facts_of(node, self._fact).items():
            known = self._values.get(name, Value(name))
            dims = fact.dims if known.dims is None else known.dims
            self._values[name] = Value(name, dims, fact.dtype if known.dtype is None else known.dtype)

    def release(self, node: Node) -> None:
        """Forget that a node reads its inputs, and what nobody reads then."""
        left = [node]
        while left:
            node = left.pop()
            for name in filter(None, node.inputs):
                self.reads[name] -= 1
                source = self._made.get(name)
                if source is not None and source not in self._gone and self.is_dead(source):
                    self._gone.add(source)
                    left.append(source)

    def graph(self) -> Graph:
        """What is left."""
        nodes = tuple(node for node in self._nodes if node not in self._gone)
        read = {*self.outputs, *(name for node in nodes for name in node.inputs)}
        made = {name for node in nodes for name in node.outputs}
        return self._graph.replaced(
            nodes=nodes,
            constants={name: data for name, data in self._constants.items() if name in read},
            values={name: value for name, value in self._values.items() if name in made},
        )

    def _fact(self, name: str) -> Fact:
        value = self.value(name)
        return Fact(value.dims, value.dtype, self._constants.get(name))


def attribute(node: Node, name: str) -> Any:
    """An attribute, or its default."""
    return node.attributes.get(name, OPERATORS[node.operator].attributes[name])


def sizes(dims: Dims | None) -> tuple[int, ...] | None:
    """Dims that are all numbers; None for others."""
    if dims is None:
        return None
    known = tuple(n for n in dims if isinstance(n, int))
    return known if len(known) == len(dims) else None


def equal_dims(one: Dims | None, other: Dims | None) -> bool:
    """Whether dims are known to be the same; sizes of one name are."""
    return one is not None and other is not None and one == other and None not in one


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether elements are numbers, other than complex ones."""
    return dtype.kind in "iuf" or dtype.name.startswith(("bfloat", "float"))
