"""Operators with what follows them element by element, as one node ``relayout.Fused``.

::

    Conv ---> Add ---> Relu          Fused { head: Conv,  then: Add(residual), Relu }
               ^
    residual --'

The inner graph is a straight chain: a head, and behind it nodes of which each reads the result of the one
before as its first or second operand. All results but the last are read by nobody else. A node of the chain
is

* an activation function;
* an Add, Sub, Mul, Div, Max or Min whose other operand is broadcast to the dims of the chain: a scalar, a
  value for each channel, a gate, a residual;
* a Clip, a Pow, and the guard of a Softmax, ``Where(IsNaN(s), 0, s)``, which stays two nodes.

Constants of one element are constants of the inner graph, so that who reads the chain finds the numbers. All
other operands are inputs of the node and of the inner graph, under the names that they have around it;
weights stay constants of the outer graph.

The node stands where the last one of its chain stood: all that the chain reads has been computed there, a
residual too. An Add of two convolutions goes with the one that is computed last. Elementwise nodes that
follow no head make chains of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from relayout.graph.graph import Graph, Node, Value, fresh
from relayout.graph.operators.blockwise import BLOCKWISE
from relayout.graph.operators.fused import FUSED
from relayout.graph.operators.integers import CONV, MATMUL
from relayout.graph.operators.registry import Fact, broadcast
from relayout.graph.passes.rewriting import equal_dims
from relayout.ops.functions import OF_ONNX

__all__ = ["FUSED", "fused", "unfused"]


PRODUCTS: Final = frozenset(
    ("Conv", "ConvTranspose", "Gemm", "MatMul", "relayout.ConvGradInput", BLOCKWISE, CONV, MATMUL)
)

POOLS: Final = frozenset(
    ("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "Softmax")
)
"""Further heads, whose kernels apply post-ops; a Softmax has its guard alone."""

FUNCTIONS: Final = frozenset((*OF_ONNX, "Swish", "LeakyRelu", "Neg", "Reciprocal"))

BINARY: Final = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min"))

FLOATS: Final = frozenset(("float16", "bfloat16", "float32", "float64"))

LONGEST: Final = 32
"""Nodes of a chain, at most."""


def fused(graph: Graph) -> Graph:
    """The graph with chains gathered into nodes ``relayout.Fused``.

    Parameters
    ----------
    graph : Graph
        With dims that are known, as :func:`relayout.graph.passes.optimized` returns it.

    Returns
    -------
    Graph
        That computes the same, with the same inputs and outputs.

    See Also
    --------
    unfused : the way back.

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph.graph import Value
    >>> from relayout.graph.inference import inferred
    >>> x = Value("x", (2, 3), np.dtype("float32"))
    >>> product, add = Node("MatMul", ("x", "w"), ("a",)), Node("Add", ("a", "b"), ("c",))
    >>> nodes = product, add, Node("Relu", ("c",), ("y",))
    >>> constants = {"w": np.ones((3, 4), np.float32), "b": np.ones(4, np.float32)}
    >>> made = fused(inferred(Graph((x,), ("y",), nodes, constants)))
    >>> print(made)
    x f32 2x3
    y = relayout.Fused(x, w, b, graph={3 nodes})
    -> y
    >>> print(made.nodes[0].attributes["graph"])
    x f32 2x3
    w f32 3x4
    b f32 4
    a = MatMul(x, w)
    c = Add(a, b)
    y = Relu(c)
    -> y
    """
    chains = _chains(graph)
    if not chains:
        return graph
    last = {chain[-1]: chain for chain in chains}
    inside = {node for chain in chains for node in chain}
    nodes = []
    for node in graph.nodes:
        if node in last:
            nodes.append(_gathered(graph, last[node]))
        elif node not in inside:
            nodes.append(node)
    read = {name for node in nodes for name in (*node.inputs, *node.outputs)} | set(graph.results)
    return graph.replaced(
        nodes=tuple(nodes),
        constants={name: data for name, data in graph.constants.items() if name in read},
        values={name: value for name, value in graph.values.items() if name in read},
    )


def unfused(graph: Graph, keep: Callable[[Node], bool] = lambda _: False) -> Graph:
    """The graph with the nodes of chains in the place of ``relayout.Fused``, but for those to ``keep``.

    Names are what they were before :func:`fused`, unless another value has taken one since.
    """
    taken = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
    taken |= {*graph.constants, *graph.results, *(value.name for value in graph.inputs)}
    nodes: list[Node] = []
    constants, values = dict(graph.constants), dict(graph.values)
    for node in graph.nodes:
        if node.operator != FUSED or keep(node):
            nodes.append(node)
            continue
        inner = node.attributes["graph"]
        names = {value.name: name for value, name in zip(inner.inputs, node.inputs, strict=True)}
        names |= dict(zip(inner.results, node.outputs, strict=True)) | {"": ""}
        for name in (*inner.constants, *(name for one in inner.nodes for name in one.outputs)):
            if name not in names:
                names[name] = fresh(name, taken)
        constants |= {names[name]: data for name, data in inner.constants.items()}
        known = (value for value in inner.values.values() if value.name in names)
        values |= {names[value.name]: Value(names[value.name], value.dims, value.dtype) for value in known}
        for one in inner.nodes:
            inputs = tuple(names[name] for name in one.inputs)
            outputs = tuple(names[name] for name in one.outputs)
            nodes.append(Node(one.operator, inputs, outputs, one.attributes, one.name))
    return graph.replaced(nodes=tuple(nodes), constants=constants, values=values)


def _chains(graph: Graph) -> list[tuple[Node, ...]]:
    """Nodes that go together: heads from the last one on, then what is left, in its order."""
    reads = Counter(name for node in graph.nodes for name in node.inputs if name)
    reads.update(graph.results)
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(filter(None, node.inputs)):
            readers.setdefault(name, []).append(node)
    taken: set[Node] = set()
    chains = []
    heads = [node for node in graph.nodes if node.operator in PRODUCTS]
    pools = [node for node in graph.nodes if node.operator in POOLS]
    for head in (*reversed(heads), *reversed(pools), *graph.nodes):
        if head in taken or not (head.operator in PRODUCTS | POOLS or _follows(head, None, graph)):
            continue
        chain = _chain(head, graph, reads, readers, taken)
        if len(chain) > 1:
            chains.append(chain)
            taken.update(chain)
    return chains


def _chain(
    head: Node, graph: Graph, reads: Counter[str], readers: dict[str, list[Node]], taken: set[Node]
) -> tuple[Node, ...]:
    """A head and what follows it."""
    chain = [head]
    if any(head.outputs[1:]) or not _floating(head.outputs[0], graph):
        return (head,)
    while len(chain) < LONGEST:
        value = chain[-1].outputs[0]
        guard = _guard(chain[-1], graph, reads, readers)
        if guard and taken.isdisjoint(guard):
            chain.extend(guard)
            continue
        if reads[value] != 1 or value in graph.results or head.operator == "Softmax":
            break
        reader = readers[value][0]
        if reader in taken or not _follows(reader, value, graph):
            break
        chain.append(reader)
    return tuple(chain)


def _floating(name: str, graph: Graph) -> bool:
    dtype = graph.value(name).dtype
    return dtype is not None and dtype.name in FLOATS


def _follows(node: Node, value: str | None, graph: Graph) -> bool:
    """Whether a node computes element by element from a value; from either of its operands, without one."""
    target = node.outputs[0]
    if not target or not _floating(target, graph):
        return False
    if node.operator in FUNCTIONS:
        return True
    if node.operator == "Clip":
        return value in (None, node.inputs[0]) and all(map(_single(graph), filter(None, node.inputs[1:])))
    if node.operator == "Pow":
        return value in (None, node.inputs[0]) and _single(graph)(node.inputs[1])
    if node.operator not in BINARY or len(node.inputs) != 2 or node.inputs[0] == node.inputs[1]:
        return False
    dims = graph.value(target).dims
    if value is None:
        return dims is not None and not all(name in graph.constants for name in node.inputs)
    place = node.inputs.index(value)
    other = node.inputs[1 - place]
    if (
        node.operator in ("Sub", "Div")
        and place == 1
        and not (node.operator == "Sub" and _single(graph)(other))
    ):
        return False
    return _fits(graph.value(other), graph.value(value), dims)


def _fits(other: Value, value: Value, dims: object) -> bool:
    """Whether an operand is broadcast to the dims of the chain, and not the chain to its."""
    if value.dims is None or other.dims is None:
        return other.dims == ()
    both = broadcast(Fact(value.dims), Fact(other.dims))
    padded = (1,) * (len(value.dims) - len(other.dims)) + tuple(other.dims)
    same = len(other.dims) <= len(value.dims) and all(
        n == 1 or (n is not None and n == m) for n, m in zip(padded, value.dims, strict=True)
    )
    return same and both == value.dims and dims == value.dims


def _single(graph: Graph) -> Callable[[str], bool]:
    """Whether a value is a constant of one element."""
    return lambda name: name in graph.constants and graph.constants[name].size == 1


def _guard(node: Node, graph: Graph, reads: Counter[str], readers: dict[str, list[Node]]) -> tuple[Node, ...]:
    """The two nodes that make 0 of what is no number behind a Softmax; none if there are others."""
    value = node.outputs[0]
    if node.operator != "Softmax" or reads[value] != 2 or value in graph.results:
        return ()
    by = {one.operator: one for one in readers.get(value, ())}
    test, choice = by.get("IsNaN"), by.get("Where")
    if test is None or choice is None or reads[test.outputs[0]] != 1 or choice.inputs[0] != test.outputs[0]:
        return ()
    zero = graph.constants.get(choice.inputs[1])
    plain = zero is not None and zero.size == 1 and choice.inputs[2] == value
    same = equal_dims(graph.value(choice.outputs[0]).dims, graph.value(value).dims)
    return (test, choice) if plain and same else ()


def _gathered(graph: Graph, chain: tuple[Node, ...]) -> Node:
    """A chain as one node."""
    made = {name for node in chain for name in node.outputs if name}
    names = dict.fromkeys(name for node in chain for name in node.inputs if name and name not in made)
    head = {name for name in chain[0].inputs if chain[0].operator in PRODUCTS | POOLS}
    single = [name for name in names if _single(graph)(name) and name not in head]
    inputs = tuple(name for name in names if name not in single)
    target = chain[-1].outputs[0]
    inner = Graph(
        tuple(graph.value(name) for name in inputs),
        (target,),
        chain,
        {name: graph.constants[name] for name in single},
        {name: graph.value(name) for name in made},
        chain[0].name,
    )
    return Node(FUSED, inputs, (target,), {"graph": inner}, chain[0].name)
