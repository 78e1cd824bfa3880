"""The rules of a graph: each is broken once."""

import numpy as np
import pytest

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value

X = Value("x", (2,), np.dtype("f4"))
RELU = Node("Relu", ("x",), ("y",), name="n")
INNER = Graph((), ("z",), (Node("Relu", ("x",), ("z",), name="within"),))


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (
            Graph((X,), ("y",), (Node("Relu", ("q",), ("y",), name="n"),)),
            "reads 'q', which no node before",
        ),
        (Graph((X,), ("y", "q"), (RELU,)), "nothing makes the output 'q'"),
        (Graph((X, X), ("y",), (RELU,)), "the input 'x' is also an input"),
        (Graph((X,), ("y",), (RELU,), {"x": np.ones(2)}), "the input 'x' is also a constant"),
        (Graph((X,), ("y",), (RELU, RELU)), "makes 'y', which is also made by node 'n'"),
        (Graph((X,), ("x",), (Node("Relu", ("x",), ("x",)),)), "makes 'x', which is also an input"),
        (Graph((X,), ("y",), (Node("Rleu", ("x",), ("y",)),)), "there is no operator 'Rleu'"),
        (Graph((X,), ("y",), (Node("Relu", ("x",), ("y",), {"alpha": 1}),)), "has no attribute 'alpha'"),
        (Graph((X,), ("y",), (Node("Relu", ("x", "x"), ("y",)),)), "got 2 inputs"),
        (
            Graph((X,), ("y",), (Node("If", ("x",), ("y",), {"then_branch": INNER, "else_branch": INNER}),)),
            "in its graph 'then_branch', node 'within' .* reads 'x'",
        ),
    ],
)
def test_broken(graph, said):
    with pytest.raises(LayoutError, match=said):
        graph.verify()


def test_sound():
    graph = Graph((X,), ("y", "x", "c"), (RELU,), {"c": np.ones(2)})
    assert graph.verify() is graph


def test_long_lists_are_cut():
    nodes = tuple(Node("Relu", ("q",), (f"y{i}",)) for i in range(30))
    with pytest.raises(LayoutError, match=r"breaks 30 rules:(.|\n)*and 10 more$"):
        Graph((), (), nodes).verify()
