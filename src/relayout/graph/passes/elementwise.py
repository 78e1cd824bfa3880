"""Elementwise operators between DequantizeLinear and QuantizeLinear as one node of bytes.

::

    bytes -> DQ -+-> Sigmoid -> Q -> DQ -+-> Mul -> Q -> bytes        relayout.Elementwise
                 +-----------------------+

A node is taken in if nobody outside reads what it makes, and if it has the dims of the result. A
DequantizeLinear may be taken in beside others that read it: each reads the bytes then.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from relayout.graph.graph import Graph, Node
from relayout.graph.operators.fused import ELEMENTWISE
from relayout.graph.passes.quantities import BYTES
from relayout.graph.passes.rewriting import attribute
from relayout.ops.functions import OF_ONNX

__all__ = ["in_bytes"]

FUNCTIONS: Final = frozenset((*OF_ONNX, "LeakyRelu", "Selu", "Neg", "Swish", "Clip"))
BINARY: Final = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min"))
MOST: Final = 24  # nodes of a tree
OPERANDS: Final = 4  # that move, at most


def in_bytes(graph: Graph) -> Graph:
    """The graph with trees of elementwise operators gathered into nodes that read and write bytes.

    >>> from relayout.graph.graph import Value
    >>> from relayout.graph.inference import inferred
    >>> x = Value("x", (2, 3), np.dtype("u1"))
    >>> nodes = (
    ...     Node("DequantizeLinear", ("x", "s", "z"), ("a",)), Node("Sigmoid", ("a",), ("b",)),
    ...     Node("Mul", ("a", "b"), ("c",)), Node("QuantizeLinear", ("c", "s", "z"), ("y",)),
    ... )
    >>> constants = {"s": np.float32(0.1), "z": np.uint8(3)}
    >>> print(in_bytes(inferred(Graph((x,), ("y",), nodes, constants))))
    x u8 2x3
    y = relayout.Elementwise(x, graph={4 nodes})
    -> y
    """
    if not any(node.operator == "QuantizeLinear" for node in graph.nodes):
        return graph
    readers: dict[str, set[Node]] = defaultdict(set)  # results of the graph may have none
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            readers[name].add(node)
    place = {node: k for k, node in enumerate(graph.nodes)}
    makers = {name: node for node in graph.nodes for name in node.outputs if name}
    gone: set[Node] = set()
    made: dict[Node, Node] = {}
    for last in reversed(graph.nodes):
        if last in gone or not _whole(last, "QuantizeLinear", graph):
            continue
        tree = _tree(last, graph, readers, makers, place)
        if len(tree) < 2:
            continue
        found = _gathered(last, tree, graph)
        if found is None:
            continue
        made[last] = found
        gone.add(last)
        for node in tree - {last}:
            outside = any(readers[name] - tree or name in graph.results for name in node.outputs)
            gone |= set() if outside else {node}
    if not made:
        return graph
    nodes = [made.get(node, node) for node in graph.nodes if node in made or node not in gone]
    read = {name for node in nodes for name in node.inputs} | set(graph.results)
    kept = [node for node in nodes if node.operator != "DequantizeLinear" or set(node.outputs) & read]
    written = {name for node in kept for name in node.outputs}
    return graph.replaced(
        nodes=tuple(kept),
        constants={name: data for name, data in graph.constants.items() if name in read},
        values={name: value for name, value in graph.values.items() if name in written},
    )


def _whole(node: Node, operator: str, graph: Graph) -> bool:
    """Whether a node quantises whole tensors, by constants, from f32 to bytes or back."""
    if node.operator != operator or attribute(node, "block_size"):
        return False
    given = [graph.constants.get(name) for name in node.inputs[1:] if name]
    if any(one is None or one.size != 1 for one in given) or given[0].dtype != np.float32:  # type: ignore[union-attr]
        return False
    if operator == "QuantizeLinear" and attribute(node, "precision") not in (0, 1):
        return False
    sides = graph.value(node.inputs[0]).dtype, graph.value(node.outputs[0]).dtype
    bytes_of, real = sides if operator == "DequantizeLinear" else sides[::-1]
    return bytes_of in BYTES and real == np.float32


def _tree(
    last: Node,
    graph: Graph,
    readers: dict[str, set[Node]],
    makers: dict[str, Node],
    place: dict[Node, int],
) -> set[Node]:
    """The nodes that go together with a QuantizeLinear."""
    dims = graph.value(last.outputs[0]).dims
    tree = {last}
    waiting = [makers[name] for name in last.inputs[:1] if name in makers]
    while waiting and len(tree) < MOST:
        node = max(waiting, key=lambda one: place[one])  # whoever reads it has been looked at
        waiting = [one for one in waiting if one is not node]
        alone = all(readers[name] <= tree and name not in graph.results for name in node.outputs if name)
        same = graph.value(node.outputs[0]).dims == dims
        if _whole(node, "DequantizeLinear", graph):
            tree.add(node)
            if not alone:
                continue
        elif not (alone and same and _elementwise(node, graph)):
            continue
        tree.add(node)
        waiting += [makers[name] for name in node.inputs if name in makers and makers[name] not in tree]
    return tree


def _elementwise(node: Node, graph: Graph) -> bool:
    if _whole(node, "QuantizeLinear", graph):
        return True
    if any(graph.value(name).dtype != np.float32 for name in (*filter(None, node.inputs), *node.outputs)):
        return False
    if node.operator in FUNCTIONS:
        further = [graph.constants.get(name) for name in node.inputs[1:] if name]
        return all(one is not None and one.size == 1 for one in further)
    return node.operator in BINARY


def _gathered(last: Node, tree: set[Node], graph: Graph) -> Node | None:
    """A tree as one node."""
    nodes = tuple(node for node in graph.nodes if node in tree)
    made = {name for node in nodes for name in node.outputs}
    names = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    single = {name: graph.constants[name] for name in names if _single(name, graph)}
    inputs = tuple(name for name in names if name not in single)
    if not inputs or len(inputs) > OPERANDS or all(name in graph.constants for name in inputs):
        return None
    values: dict[str, Any] = {name: graph.value(name) for name in made}
    inner = Graph(
        tuple(graph.value(name) for name in inputs), last.outputs, nodes, single, values, nodes[-1].name
    )
    return Node(ELEMENTWISE, inputs, last.outputs, {"graph": inner}, nodes[-1].name)


def _single(name: str, graph: Graph) -> bool:
    return name in graph.constants and graph.constants[name].size == 1
