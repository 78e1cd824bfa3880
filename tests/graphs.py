"""Small graphs: built by hand in tests, or random ones whose nodes fit each other.

::

    Building()                 nodes and constants with as little text as possible
    random_graphs(...)         a strategy: graphs of f32 values of up to 5 axes
    assert_same(before, after) the same inputs and outputs, nodes that can run, results within rounding
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from relayout.graph.graph import Array, Graph, Node, Value
from relayout.graph.inference import inferred

F32 = np.dtype("float32")


class Building:
    """A graph that grows: each operator returns the name of its result."""

    def __init__(self, *shapes: tuple[Any, ...], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs = tuple(Value(f"x{i}", shape, F32) for i, shape in enumerate(shapes))
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}

    def __call__(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        made = tuple(f"v{len(self.nodes)}_{i}" for i in range(outputs))
        self.nodes.append(Node(operator, tuple(names), made, attributes, f"n{len(self.nodes)}"))
        return made[0] if outputs == 1 else made

    def constant(self, data: Any) -> str:
        """A constant; numbers are f32, lists axes and shapes."""
        name = f"c{len(self.constants)}"
        if isinstance(data, list):
            self.constants[name] = np.array(data, np.int64)
        else:
            self.constants[name] = data if isinstance(data, np.ndarray) else np.array(data, np.float32)
        return name

    def random(self, *shape: int) -> Array:
        """Numbers for weights."""
        return self.rng.standard_normal(shape).astype(np.float32)

    def graph(self, *outputs: str) -> Graph:
        """What has been built."""
        return inferred(
            Graph(self.inputs, outputs or self.nodes[-1].outputs, tuple(self.nodes), self.constants)
        )


def operators(graph: Graph) -> list[str]:
    """The operators of its nodes."""
    return [node.operator for node in graph.nodes]


def assert_same(
    before: Graph, after: Graph, *, seed: int = 0, scale: float = 1.0, tolerance: float = 1e-5
) -> None:
    """Two graphs compute the same, but for rounding."""
    assert before.inputs == after.inputs
    assert before.results == after.results
    after.verify()
    rng = np.random.default_rng(seed)
    arrays = []
    for value in before.inputs:
        shape = [n if isinstance(n, int) else 2 for n in value.dims or ()]
        arrays.append((scale * rng.standard_normal(shape)).astype(value.dtype))
    for name, one, other in zip(
        before.results, before.evaluate(*arrays), after.evaluate(*arrays), strict=True
    ):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        known = after.value(name)
        assert known.dims is None or all(
            n == m for n, m in zip(known.dims, one.shape, strict=True) if isinstance(n, int)
        )
        largest = max(1.0, float(np.abs(one).max(initial=0)))
        np.testing.assert_allclose(
            other, one, rtol=0, atol=tolerance * largest, err_msg=f"{before}\n\n{after}"
        )


ORDERS = {4: [(0, 2, 3, 1), (0, 3, 1, 2)], 3: [(0, 2, 1)], 5: [(0, 2, 3, 4, 1), (0, 4, 1, 2, 3)]}


@st.composite
def random_graphs(draw: Callable[[st.SearchStrategy[Any]], Any], *, longest: int = 14) -> Graph:
    """Graphs of one or two inputs, whose nodes are drawn one after the other."""
    rank = draw(st.sampled_from([2, 3, 4, 4, 4, 5]))
    dims = tuple(draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank)))
    count = draw(st.integers(1, 2))
    b = Building(*(dims,) * count, seed=draw(st.integers(0, 2**16)))
    shapes: dict[str, tuple[int, ...]] = {value.name: dims for value in b.inputs}

    def pick(options: Any) -> Any:
        return draw(st.sampled_from(list(options)))

    for _ in range(draw(st.integers(1, longest))):
        name = pick(list(shapes)[-5:])
        shape = shapes[name]
        kind = pick([one for one in STEPS if shape or one in (_unary, _binary)])
        made = kind(b, name, shape, shapes, pick)
        shapes.update(made)
    read = {name for node in b.nodes for name in node.inputs}
    loose = [name for node in b.nodes for name in node.outputs if name not in read]
    more = draw(st.lists(st.sampled_from([name for node in b.nodes for name in node.outputs]), max_size=1))
    return b.graph(*dict.fromkeys([*loose, *more]))


Made = dict[str, tuple[int, ...]]


def _unary(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    operator = pick(
        ["Relu", "Sigmoid", "Tanh", "Identity", "Neg", "Gelu", "HardSwish", "Dropout", "Softplus"]
    )
    return {b(operator, x): shape}


def _binary(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    operator = pick(["Add", "Mul", "Sub", "Add", "Max"])
    alike = [name for name, other in shapes.items() if other == shape]
    kind = pick(["value", "value", "scalar", "channel", "last", "one", "zero"])
    if kind == "value":
        other: Any = pick(alike)
    elif kind == "scalar":
        other = float(pick([0.5, -1, 2]))
    elif kind == "channel" and len(shape) > 1:
        other = b.random(shape[1], *(1,) * (len(shape) - 2))
    elif kind == "last" and shape:
        other = b.random(shape[-1])
    else:
        other = 1.0 if operator == "Mul" else 0.0
    pair = pick([(x, other), (x, other), (other, x)])
    return {b(operator, *pair): shape}


def _transpose(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    usual = ORDERS.get(len(shape), [tuple(reversed(range(len(shape))))])
    perm = pick(
        [*usual, *usual, tuple(np.random.default_rng(pick(range(20))).permutation(len(shape)).tolist())]
    )
    return {b("Transpose", x, perm=perm): tuple(shape[i] for i in perm)}


def _convolution(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    if len(shape) != 4:
        return _unary(b, x, shape, shapes, pick)
    n, c, h, w = shape
    if pick([True, False]):  # as converters write it
        c = shape[3]
        before = b("Transpose", x, perm=(0, 3, 1, 2))
        weights = [b.random(c + 1, c, 1, 1), *pick([[], [b.random(c + 1)]])]
        made = b("Conv", before, *weights)
        return {b("Transpose", made, perm=(0, 2, 3, 1)): (n, shape[1], shape[2], c + 1)}
    return {b("Conv", x, b.random(2, c, 1, 1), pads=(0, 0, 0, 0)): (n, 2, h, w)}


def _normal(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    if len(shape) < 2:
        return _unary(b, x, shape, shapes, pick)
    c = shape[1]
    parameters = [b.random(c), b.random(c), b.random(c), np.abs(b.random(c)) + 1]
    return {b("BatchNormalization", x, *parameters): shape}


def _product(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    if len(shape) < 2:
        return _unary(b, x, shape, shapes, pick)
    made = b("MatMul", x, b.random(shape[-1], 3))
    return {pick([made, b("Add", made, b.random(3))]): (*shape[:-1], 3)}


def _joined(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    alike = [name for name, other in shapes.items() if other == shape]
    axis = pick(range(len(shape)))
    more = [pick(alike) for _ in range(pick([0, 1, 2]))]
    dims = (*shape[:axis], shape[axis] * (1 + len(more)), *shape[axis + 1 :])
    return {b("Concat", x, *more, axis=pick([axis, axis - len(shape)])): dims}


def _cut(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    axis = pick(range(len(shape)))
    if shape[axis] < 2:
        return {b("Slice", x, [0], [2**40], [axis]): shape}
    first = pick(range(1, shape[axis]))
    if pick([True, False]):
        end = (*shape[:axis], shape[axis] - first, *shape[axis + 1 :])
        return {b("Slice", x, [first], [2**40], [axis - len(shape)]): end}
    names = b("Split", x, [first, shape[axis] - first], axis=axis, outputs=2)
    sizes = (first, shape[axis] - first)
    return {name: (*shape[:axis], n, *shape[axis + 1 :]) for name, n in zip(names, sizes, strict=True)}


def _padded(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    pads = [pick([0, 0, 1]) for _ in range(2 * len(shape))]
    if sum(pads) > 2:
        pads = [0] * len(pads)
    dims = tuple(n + pads[i] + pads[i + len(shape)] for i, n in enumerate(shape))
    return {b("Pad", x, pads): dims}


def _reduced(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    axes = sorted({pick(range(len(shape))), pick(range(len(shape)))})
    keeps = pick([0, 1])
    operator = pick(["ReduceMean", "ReduceSum", "ReduceMax"])
    dims = tuple(1 if i in axes else n for i, n in enumerate(shape) if keeps or i not in axes)
    made = b(operator, x, axes, keepdims=keeps)
    if keeps and pick([True, False]):
        return {b("Mul", x, made): shape}
    return {made: dims}


def _softmax(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    return {b("Softmax", x, axis=pick(range(-len(shape), len(shape)))): shape}


def _reshaped(b: Building, x: str, shape: Any, shapes: Any, pick: Any) -> Made:
    axis = pick(range(len(shape)))
    kind = pick(["same", "flat", "unsqueeze", "pair"])
    if kind == "unsqueeze" and len(shape) < 5:
        return {b("Unsqueeze", x, [axis]): (*shape[:axis], 1, *shape[axis:])}
    if kind == "pair" and axis:
        dims = (*shape[: axis - 1], shape[axis - 1] * shape[axis], *shape[axis + 1 :])
        return {b("Reshape", x, list(dims)): dims}
    if kind == "flat":
        dims = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
        return {b("Flatten", x, axis=axis): dims}
    return {b("Reshape", x, list(shape)): shape}


STEPS = [
    *(_unary, _binary, _binary, _transpose, _transpose, _transpose, _convolution, _convolution, _normal),
    *(_product, _joined, _cut, _padded, _reduced, _softmax, _reshaped),
]
