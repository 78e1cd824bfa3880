r"""Activation functions that exporters write out, as one node.

``x * sigmoid(x)`` is a Swish, ``x * 0.5 * (1 + erf(x / sqrt(2)))`` a Gelu; there are many ways to write
either. None of them is listed here. Nodes between one value and another that compute element by element,
from that value and constants of one element, are a function of one number. It is evaluated, in f64, and
compared with the functions that there are operators for: between -12 and 12, far outside, and around each of
its constants. Where all points agree within the rounding of f32 constants, the operator takes the place of
the nodes::

    x ---> Div ---> Erf ---> Add ---> Mul ---> Mul ---> y          x ---> Gelu ---> y
      \________________________________/

What the functions are made of is analytic between few points, so that agreement at hundreds of points is no
chance. Whatever has parameters (Swish's alpha, the bounds of Clip) tells them by its values at a few points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node
from relayout.graph.operators import OPERATORS
from relayout.graph.passes.rewriting import Around, equal_dims, rewritten

__all__ = ["with_activations"]

Reals: TypeAlias = NDArray[np.float64]

PARTS: Final = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Neg", "Pow", "Sqrt", "Reciprocal", "Abs", "Exp", "Log", "Erf", "Tanh"),
        *("Sigmoid", "HardSigmoid", "Softplus", "Relu", "LeakyRelu", "Clip", "Min", "Max", "Sum"),
    )
)
"""What functions are written out with."""

ENDS: Final = frozenset(("Add", "Sub", "Mul", "Div", "Log", "Min", "Max", "Clip"))
"""Their last steps."""

BENT: Final = PARTS - {"Add", "Sub", "Mul", "Neg", "Sum"}
"""One of these is among the steps of every function looked for."""

LONGEST: Final = 16
"""Nodes of a function that is written out, at most."""

POINTS: Final = np.concatenate(
    (np.linspace(-12, 12, 193), [s * m for s in (-1, 1) for m in (1e-6, 1e-3, 17.3, 50, 300, 9e3)])
)

TOLERANCE: Final = 2.0**-20
"""How far results may be apart, relative to the result or the argument: some roundings of f32."""


def with_activations(graph: Graph) -> Graph:
    """The graph with one node for each activation function that is written out.

    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (2,), np.dtype("float32"))
    >>> nodes = Node("Sigmoid", ("x",), ("s",)), Node("Mul", ("s", "x"), ("y",))
    >>> print(with_activations(Graph((x,), ("y",), nodes)))
    x f32 2
    y = Swish(x)
    -> y
    """
    return rewritten(graph, _recognised)


def _recognised(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator not in ENDS or not around.floating(node.outputs[0]):
        return None
    for source, cone in _cones(node, around):
        if len(cone) < 2 or not any(one.operator in BENT for one in cone):
            continue
        if not equal_dims(around.dims(source), around.dims(node.outputs[0])):
            continue
        found = _named(_Function(source, tuple(cone), around))
        if found is not None:
            inputs = (source, *(around.constant(_scalar(n, node, around), node) for n in found.bounds))
            return (Node(found.operator, inputs, node.outputs, found.attributes, node.name),)
    return None


def _scalar(number: float, node: Node, around: Around) -> NDArray[Any]:
    return np.array(number, around.dtype(node.outputs[0]))


def _cones(root: Node, around: Around) -> Iterator[tuple[str, list[Node]]]:
    """Values that a node is a function of, the furthest first, with the nodes between: in their order."""
    found = []
    cone, open_ = [root], set(filter(lambda name: around.number(name) is None, filter(None, root.inputs)))
    while True:
        if len(open_) == 1:
            found.append((next(iter(open_)), cone[::-1]))
        if len(cone) == LONGEST:
            break
        reads = [name for node in cone for name in node.inputs]
        further = None
        for name in open_:
            node = around.node(name)
            if node is None or node.operator not in PARTS or len(node.outputs) > 1:
                continue
            if reads.count(name) == around.reads[name]:  # nobody else reads it
                further = name, node
                break
        if further is None:
            break
        cone = [*cone, further[1]]
        open_ = open_ - {further[0]} | {n for n in further[1].inputs if n and around.number(n) is None}
    yield from reversed(found)


class _Function:
    """Nodes as a function of numbers."""

    def __init__(self, source: str, nodes: tuple[Node, ...], around: Around) -> None:
        self.source = source
        self.nodes = _ordered(source, nodes)
        names = {name for node in nodes for name in node.inputs}
        self.numbers = {name: n for name in names if (n := around.number(name)) is not None}

    def __call__(self, x: Reals) -> Reals:
        known: dict[str, Any] = {name: np.asarray(n) for name, n in self.numbers.items()}
        known |= {self.source: x, "": None}
        for node in self.nodes:
            made = OPERATORS[node.operator](*(known[name] for name in node.inputs), **node.attributes)
            known[node.outputs[0]] = made[0]
        return np.asarray(known[self.nodes[-1].outputs[0]], np.float64)

    @property
    def points(self) -> Reals:
        """Where it is looked at."""
        around = [s * n * (1 + d) for n in self.numbers.values() for s in (-1, 1) for d in (-1e-3, 0, 1e-3)]
        return np.concatenate((POINTS, np.clip(around, -1e4, 1e4)))


def _ordered(source: str, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes behind those whose results they read."""
    made = {node.outputs[0]: node for node in nodes}
    done: dict[str, Node] = {}

    def visit(node: Node) -> None:
        for name in node.inputs:
            if name in made and name not in done and name != source:
                visit(made[name])
        done[node.outputs[0]] = node

    visit(nodes[-1])
    return tuple(done.values())


class _Candidate(NamedTuple):
    operator: str
    attributes: Mapping[str, Any]
    bounds: tuple[float, ...] = ()


def _plain(operator: str, **attributes: Any) -> Callable[[Callable[[float], Any]], _Candidate]:
    return lambda f: _Candidate(operator, attributes)


def _swish(f: Callable[[float], Any]) -> _Candidate:
    return _Candidate("Swish", {"alpha": _rounded(-np.log(1 / f(1) - 1))})


def _hard_sigmoid(f: Callable[[float], Any]) -> _Candidate:
    alpha = (f(1e-3) - f(-1e-3)) / 2e-3
    return _Candidate("HardSigmoid", {"alpha": _rounded(alpha), "beta": _rounded(f(0))})


def _leaky_relu(f: Callable[[float], Any]) -> _Candidate:
    return _Candidate("LeakyRelu", {"alpha": _rounded(-f(-1))})


def _clip(f: Callable[[float], Any]) -> _Candidate:
    return _Candidate("Clip", {}, (float(f(-9e3)), float(f(9e3))))


def _rounded(number: Any) -> float:
    """A parameter as it was meant: 1.702, not 1.7019999999."""
    return float(f"{number:.7g}")


FUNCTIONS: Final[tuple[Callable[[Callable[[float], Any]], _Candidate], ...]] = (
    *(
        _plain("Relu"),
        _plain("Gelu"),
        _plain("Gelu", approximate="tanh"),
        _plain("HardSwish"),
        _plain("Mish"),
    ),
    *(_plain("Swish"), _plain("Sigmoid"), _plain("Softplus"), _plain("Tanh"), _plain("Elu")),
    *(_swish, _hard_sigmoid, _leaky_relu, _clip),
)


def _named(function: _Function) -> _Candidate | None:
    """The operator that computes a function; None where there is none."""
    with np.errstate(all="ignore"):
        try:
            points = function.points
            wanted = function(points)
            if not np.isfinite(wanted).all():
                return None
            scale = np.maximum(np.abs(wanted), np.minimum(np.abs(points), 1))
            for candidate in FUNCTIONS:
                found = candidate(lambda x: function(np.array([x], np.float64))[0])
                bounds = map(np.asarray, found.bounds)
                made = OPERATORS[found.operator](points, *bounds, **found.attributes)[0]
                if (np.abs(made - wanted) <= TOLERANCE * scale + 1e-12).all():
                    return found
        except LayoutError:
            return None
    return None
