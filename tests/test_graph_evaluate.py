"""Graphs run by definition: inputs are checked, errors name nodes, values are freed."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from relayout.errors import LayoutError
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.operators import OPERATORS, operator

F32 = np.dtype("float32")
X = Value("x", ("n", 2), F32)


def test_a_graph_computes_what_its_operators_mean() -> None:
    nodes = (Node("MatMul", ("x", "w"), ("h",)), Node("Relu", ("h",), ("y",)))
    one = Graph((X,), ("y", "h", "x"), nodes, {"w": np.float32([[1], [-2]])})
    x = np.float32([[1, 1], [3, 1]])
    y, h, same = one.evaluate(x)
    assert (y.tolist(), h.tolist(), same.tolist()) == ([[0], [1]], [[-1], [1]], x.tolist())


def test_left_out_inputs_and_outputs() -> None:
    nodes = (Node("Clip", ("x", "", "high"), ("y",)), Node("TopK", ("x", "k"), ("", "places")))
    one = Graph((X,), ("y", "places"), nodes, {"high": np.float32(1), "k": np.int64([1])})
    y, places = one.evaluate(np.float32([[0, 5]]))
    assert (y.tolist(), places.tolist()) == ([[0, 1]], [[1]])


def test_sequences_and_optional_values_pass() -> None:
    one = Graph((Value("s"),), ("t",), (Node("Identity", ("s",), ("t",)),))
    values = [np.ones(2), np.ones(3)]
    assert len(one.evaluate(values)[0]) == 2
    assert one.evaluate(None) == (None,)


def test_values_are_freed_behind_their_last_reader() -> None:
    alive: list[Any] = []

    class Watched(np.ndarray[Any, Any]):
        """Arrays can be watched only where they are of a class of their own."""

    @operator("WatchForThisTest")
    def watch(x: Any, /) -> Any:
        made = np.array(x).view(Watched)
        alive.append(weakref.ref(made))
        return made

    @operator("CountForThisTest")
    def count(x: Any, /) -> Any:
        return np.asarray(sum(one() is not None for one in alive))

    try:
        names = [f"v{i}" for i in range(5)]
        nodes = [Node("WatchForThisTest", (a,), (b,)) for a, b in zip(["x", *names], names, strict=False)]
        one = Graph((Value("x"),), ("c",), (*nodes, Node("CountForThisTest", ("v4",), ("c",))))
        assert evaluate(one, np.zeros(3))[0] == 1
    finally:
        del OPERATORS["WatchForThisTest"], OPERATORS["CountForThisTest"]


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ((), r"1 input \(x f32 nx2\); got 0 arrays"),
        ((np.zeros((1, 3), F32),), "x f32 nx2; an array of float32 1x3 was given"),
        ((np.zeros((), F32),), "float32 no dims"),
        ((np.zeros((1, 2)),), "float64 1x2"),
        (([1, 2],), "x f32 nx2 takes an array, got list"),
        ((None,), "got NoneType"),
    ],
)
def test_inputs_that_do_not_fit(arrays: tuple[Any, ...], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        evaluate(Graph((X,), ("x",), ()), *arrays)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (
            Node("MatMul", ("x", "x"), ("y",), {}, "product"),
            r"node 'product': MatMul of float32 3x2, float32 3x2",
        ),
        (Node("Relu", ("z",), ("y",)), "node 'y': nothing computes 'z'"),
        (Node("Strange", ("x",), ("y",)), "node 'y': there is no operator 'Strange'"),
        (Node("Relu", ("x",), ("z",)), "nothing computes the output 'y'"),
    ],
)
def test_errors_name_the_node(node: Node, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        evaluate(Graph((X,), ("y",), (node,)), np.zeros((3, 2), F32))
