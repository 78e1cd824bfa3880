"""Sums of parts that lie side by side in zeros, and concatenations of the same part twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import F32, assert_same, operators
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.passes import optimized
from relayout.graph.passes.disjoint import without_disjoint_sums
from strategies import tried


def sums(axis: int, layouts: list[list[tuple[str, int]]], dims: tuple[int, ...]) -> Graph:
    """The sum of concatenations, each of parts with a name and a length; ``"0"`` is zeros."""
    constants: dict[str, Any] = {}
    inputs: dict[str, Value] = {}
    nodes: list[Node] = []
    total = ""
    for k, layout in enumerate(layouts):
        names = []
        for name, length in layout:
            own = (*dims[:axis], length, *dims[axis + 1 :])
            if name == "0":
                name = f"zeros{length}"
                constants[name] = np.zeros(own, F32)
            else:
                inputs[name] = Value(name, own, np.dtype(F32))
            names.append(name)
        nodes.append(Node("Concat", tuple(names), (f"c{k}",), {"axis": axis}))
        if total:
            nodes.append(Node("Add", (total, f"c{k}"), (f"s{k}",)))
        total = f"s{k}" if total else f"c{k}"
    return Graph(tuple(inputs.values()), (total,), tuple(nodes), constants)


def test_parts_that_were_cut_from_one_value_are_joined() -> None:
    three = [[("q", 2), ("0", 4)], [("0", 2), ("k", 2), ("0", 2)], [("0", 4), ("v", 2)]]
    for axis in (0, 1, 2):
        dims = (6, 6, 6)
        graph = sums(axis, three, dims)
        made = optimized(graph)
        assert operators(made) == ["Concat"]
        assert made.nodes[0].inputs == ("q", "k", "v")
        assert_same(graph, made)


def test_gaps_are_zeros() -> None:
    graph = sums(0, [[("a", 2), ("0", 5)], [("0", 4), ("b", 1), ("0", 2)]], (7, 3))
    made = without_disjoint_sums(graph)
    assert [len(one) for one in (made.nodes, made.nodes[0].inputs)] == [1, 4]
    assert_same(graph, made)


@pytest.mark.parametrize(
    "layouts",
    [
        [[("a", 3), ("0", 3)], [("0", 2), ("b", 4)]],  # they overlap
        [[("a", 3), ("b", 3)], [("0", 3), ("c", 3)]],
        [[("a", 3), ("b", 3)], [("c", 3), ("d", 3)]],  # none has zeros
    ],
)
def test_what_overlaps_is_added(layouts: Any) -> None:
    graph = sums(0, layouts, (6, 2))
    assert without_disjoint_sums(graph) is graph


def test_what_others_read_stays() -> None:
    graph = sums(0, [[("a", 3), ("0", 3)], [("0", 3), ("b", 3)]], (6, 2))
    assert without_disjoint_sums(graph.replaced(results=("s1", "c0"))).nodes == graph.nodes


def test_sums_that_broadcast_stay() -> None:
    zeros = np.zeros((1, 2), F32)
    inputs = Value("a", (1, 2), np.dtype(F32)), Value("b", (3, 2), np.dtype(F32))
    nodes = (
        Node("Concat", ("a", "z"), ("x",), {"axis": 1}), Node("Concat", ("zz", "b"), ("y",), {"axis": 1}),
        Node("Add", ("x", "y"), ("c",)),
    )  # fmt: skip
    graph = Graph(inputs, ("c",), nodes, {"z": zeros, "zz": np.zeros((3, 2), F32)})
    assert without_disjoint_sums(graph) is graph


@settings(max_examples=tried(60), deadline=None)
@given(st.data())
def test_any_sum_stays_what_it_is(data: Any) -> None:
    """Terms with parts at random places; a name may come once."""
    length, count = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    layouts: list[list[tuple[str, int]]] = []
    for k in range(count):
        layout: list[tuple[str, int]] = []
        left = length
        while left:
            size = data.draw(st.integers(1, left))
            name = "0" if data.draw(st.integers(0, 2)) else f"x{k}.{left}"
            layout.append((name, size))
            left -= size
        layouts.append(layout)
    graph = sums(0, layouts, (length, 2))
    if not graph.inputs:
        return
    arrays = [
        np.random.default_rng(k).standard_normal(one.dims or ()).astype(F32)
        for k, one in enumerate(graph.inputs)
    ]
    (wanted,), (found,) = evaluate(graph, *arrays), evaluate(optimized(graph), *arrays)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("names", [("x", "x"), ("x", "y", "x"), ("z", "x", "z"), ("x", "z", "x", "z", "y")])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_that_come_twice_are_copied_by_kernels(names: tuple[str, ...], axis: int) -> None:
    dims = (2, 3, 4)
    values = tuple(Value(name, dims, np.dtype(F32)) for name in "xy" if name in names)
    nodes = (
        *(Node("Relu", (one.name,), (f"{one.name}+",)) for one in values),
        Node("Concat", tuple(one if one == "z" else f"{one}+" for one in names), ("c",), {"axis": axis}),
        Node("Tanh", ("c",), ("t",)),
    )
    graph = Graph(values, ("c", "t"), nodes, {"z": np.full(dims, 7, F32)})
    arrays = [np.random.default_rng(k).standard_normal(dims).astype(F32) for k, _ in enumerate(values)]
    run = graph.compile()
    assert run.plan is not None
    assert all(one.way.name != "NumPy" for one in run.plan.chosen)
    for found, wanted in zip(run(*arrays), evaluate(graph, *arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_part_that_comes_twice_within_another_concatenation() -> None:
    dims = (1, 16, 4, 4)
    x, y = (Value(name, dims, np.dtype(F32)) for name in "xy")
    nodes = (
        Node("Relu", ("x",), ("a",)), Node("Tanh", ("y",), ("b",)),
        Node("Concat", ("a", "b", "a"), ("c",), {"axis": 1}), Node("Sigmoid", ("c",), ("d",)),
        Node("Concat", ("c", "d", "c", "b"), ("e",), {"axis": 1}),
    )  # fmt: skip
    graph = Graph((x, y), ("e", "d"), nodes)
    arrays = [np.random.default_rng(k).standard_normal(dims).astype(F32) for k in range(2)]
    for found, wanted in zip(graph.compile()(*arrays), evaluate(graph, *arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
