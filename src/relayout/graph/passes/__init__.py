"""Passes: functions that take a graph and return one that computes the same with less.

Each is small, has one subject and can be used by itself. What they share is a sweep that applies rules to
nodes, and asks what stands before them (:mod:`.rewriting`).

===================  ==================================================================================
``dead``             what no output needs
``identities``       nodes that change nothing
``common``           equal nodes and equal constants
``quantization``     DequantizeLinear and QuantizeLinear that undo each other
``composition``      Transposes, Reshapes, Concats one behind the other
``activations``      Gelu, Swish, HardSwish, ... that are written out
``normalizations``   Layer-, RMS-, Instance-, GroupNormalization and Softmax that are written out
``arithmetic``       factors and terms in one form
``averages``         means over all pixels as GlobalAveragePool
``contractions``     Einsum as MatMul
``disjoint``         sums of what lies side by side in zeros
``attentions``       Attention as MatMul, Softmax, MatMul
``affine``           BatchNormalization, factors and terms in weights and biases
``transposes``       Transposes that meet and vanish (``orders``: nodes for axes in another order)
``losses``           losses written out, for kernels, in steps of training
``weights``          products by weights that move, learned or computed, for kernels, afterwards
``blockwise``        products by dequantised constants as one operator, for kernels, afterwards
``integers``         products of quantised values as products of integers, for kernels, afterwards
                     (``quantities``, ``moving``, ``dynamic``, ``elementwise``: its parts)
``precision``        products and what follows them in bf16 or f16, for kernels, afterwards
``parts``            parts of concatenations computed where they belong, for kernels, afterwards
``fusion``           heads with their post-ops as one node, afterwards
===================  ==================================================================================

:func:`optimized` runs all but those for kernels and for training until nothing changes. Its result is made of
ONNX's operators; :func:`fused` gathers chains for kernels, and :func:`unfused` takes them apart.

>>> import numpy as np
>>> from relayout.graph.graph import Graph, Node, Value
>>> x = Value("x", (1, 3, 8, 8), np.dtype("float32"))
>>> nodes = (
...     Node("Conv", ("x", "w"), ("a",)), Node("Mul", ("a", "f"), ("b",)),
...     Node("Sigmoid", ("b",), ("c",)), Node("Mul", ("b", "c"), ("y",)),
... )
>>> constants = {"w": np.ones((4, 3, 3, 3), np.float32), "f": np.full((4, 1, 1), 2, np.float32)}
>>> graph = Graph((x,), ("y",), nodes, constants)
>>> print(optimized(graph))
x f32 1x3x8x8
b = Conv(x, b/constant)
y = Swish(b)
-> y
>>> for step in log(graph):
...     print(step)
with_activations: 2 nodes are 1
with_affine_absorbed: 2 nodes are 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from relayout.graph.graph import Graph, Node
from relayout.graph.inference import QUANTISED, RANDOM, REPEATING, inferred
from relayout.graph.passes.activations import with_activations
from relayout.graph.passes.affine import with_affine_absorbed
from relayout.graph.passes.arithmetic import with_plain_arithmetic
from relayout.graph.passes.attentions import with_plain_attention
from relayout.graph.passes.averages import with_global_pools
from relayout.graph.passes.common import shared
from relayout.graph.passes.composition import composed
from relayout.graph.passes.contractions import with_plain_contractions
from relayout.graph.passes.dead import without_dead
from relayout.graph.passes.disjoint import without_disjoint_sums
from relayout.graph.passes.fusion import fused, unfused
from relayout.graph.passes.identities import without_identities
from relayout.graph.passes.normalizations import with_normalizations
from relayout.graph.passes.quantization import without_requantization
from relayout.graph.passes.transposes import transposes_moved
from relayout.records import dataclass

__all__ = ["PASSES", "Step", "folded", "fused", "log", "optimized", "transposes_moved", "unfused"]


def folded(graph: Graph) -> Graph:
    """The graph without nodes of which all inputs are constants (:mod:`relayout.graph.inference`)."""
    left = QUANTISED | RANDOM
    return _computed(graph, lambda operator: operator not in left)


def repeated(graph: Graph) -> Graph:
    """The graph with constants written out that are only repeated: those whose readers want them so.

    It is the last pass: until then readers that broadcast anyway have done without.
    """
    return _computed(graph, REPEATING.__contains__, repeat=True)


def _computed(graph: Graph, wanted: Callable[[str], bool], repeat: bool = False) -> Graph:
    """The graph inferred, if constants are all that a node of a wanted operator reads, and if that helps."""
    if not any(
        wanted(node.operator) and all(name in graph.constants for name in node.inputs if name)
        for node in graph.nodes
    ):
        return graph
    made = inferred(graph, repeat=repeat)
    return made if len(made.nodes) < len(graph.nodes) else graph


PASSES: Final[tuple[Callable[[Graph], Graph], ...]] = (
    without_dead,
    folded,
    without_identities,
    shared,
    without_requantization,
    composed,
    without_disjoint_sums,
    with_activations,
    with_normalizations,
    with_plain_arithmetic,
    with_global_pools,
    with_plain_contractions,
    with_plain_attention,
    with_affine_absorbed,
    transposes_moved,
)
"""In this order: what is written out is recognised before its parts are rewritten, and factors get one form
before they are absorbed. Transposes come last, since what was recognised no longer stops them; those between
a convolution and its BatchNormalization go, and the next round absorbs it."""

ROUNDS: Final = 64
"""At most. Each pass makes nodes fewer or simpler, so that networks take two to five."""


@dataclass(frozen=True)
class Step:
    """What a pass did in one of its turns.

    Attributes
    ----------
    name : str
        Of the pass.
    before, after : int
        Nodes that it took away, and those that it put in their place.
    """

    name: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.name}: {self.before} nodes are {self.after}"


def optimized(graph: Graph) -> Graph:
    """The graph with less to do: all of :data:`PASSES`, in turns, until none changes anything.

    Parameters
    ----------
    graph : Graph
        Any. The more dims are known, the more passes can do.

    Returns
    -------
    Graph
        With the same inputs and outputs, under the same names. Results differ from the graph's by rounding:
        constants are combined, and functions that were written out in steps are computed in one.

    Raises
    ------
    LayoutError
        The dims of the graph don't fit; the message names the node.

    See Also
    --------
    log : what each pass did.
    fused : chains for kernels.
    """
    graph = inferred(graph)
    for _, made in _turns(graph):
        graph = made
    return _with_inner(graph)


def _with_inner(graph: Graph) -> Graph:
    """The graph with the graphs within its nodes optimised: branches, and bodies of loops."""
    nodes = []
    for node in graph.nodes:
        inner = {name: one for name, one in node.attributes.items() if isinstance(one, Graph)}
        for name, one in inner.items():
            for _, made in _turns(one):
                one = made
            inner[name] = _with_inner(one)
        if any(one is not node.attributes[name] for name, one in inner.items()):
            attributes = {**node.attributes, **inner}
            node = Node(node.operator, node.inputs, node.outputs, attributes, node.name)
        nodes.append(node)
    same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    return graph if same else graph.replaced(nodes=tuple(nodes))


def log(graph: Graph) -> tuple[Step, ...]:
    """What each pass does in :func:`optimized`, turn by turn; turns without a change are left out."""
    before = inferred(graph)
    found = []
    if len(before.nodes) != len(graph.nodes):
        found.append(Step("inferred", len(graph.nodes), len(before.nodes)))
    for name, after in _turns(before):
        old, new = set(before.nodes), set(after.nodes)
        found.append(Step(name, len(old - new), len(new - old)))
        before = after
    return tuple(found)


def _turns(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Graphs one after the other, each with the name of the pass that made it."""
    for _ in range(ROUNDS):
        before = graph
        for change in PASSES:
            made = change(graph)
            if made is not graph:
                yield change.__name__, made
                graph = made
        if graph is before:
            graph = repeated(graph)
            if graph is before:
                return
            yield repeated.__name__, graph
