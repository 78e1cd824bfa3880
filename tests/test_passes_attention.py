"""Attention as products of matrices, joined to the definition of the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.passes.attentions import with_plain_attention
from strategies import tried

INF = float("inf")


@st.composite
def problems(draw: Any) -> tuple[Graph, tuple[Any, ...]]:
    """An Attention with all that the pass takes apart: any mask, rows that see nothing, NaN."""
    size = st.integers(1, 4)
    batch, heads, queries, keys, features, values = (draw(size) for _ in range(6))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    dims = [(batch, heads, queries, features), (batch, heads, keys, features), (batch, heads, keys, values)]
    arrays = [random.standard_normal(one).astype(np.float32) for one in dims]
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if draw(st.booleans()):  # of a hidden key that is no number the operator makes more, where all are hidden
        spoiled = arrays[draw(st.sampled_from([0, 2] if kind != "none" else [0, 1, 2]))]
        spoiled[tuple(draw(st.integers(0, n - 1)) for n in spoiled.shape)] = np.nan
    if kind != "none":
        whole = (batch, heads, queries)
        rank = draw(st.integers(1, 4))
        front = [draw(st.sampled_from([1, n])) for n in whole[4 - rank :]]
        mask: Any = random.random((*front, keys)) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
        if kind == "float":
            mask = np.where(mask, random.standard_normal(mask.shape), -INF).astype(np.float32)
        arrays.append(mask)
    attributes: dict[str, Any] = {}
    if draw(st.booleans()):
        attributes["is_causal"] = 1
    if draw(st.booleans()):
        attributes["scale"] = draw(st.sampled_from([0.1, 1.0, 2.0]))
    names = ["q", "k", "v", "mask"][: len(arrays)]
    inputs = tuple(Value(name, one.shape, one.dtype) for name, one in zip(names, arrays, strict=True))
    node = Node("Attention", tuple(names), ("y",), attributes)
    return Graph(inputs, ("y",), (node,)), tuple(arrays)


@settings(max_examples=tried(150), deadline=None)
@given(problems())
def test_what_it_computes_is_what_the_operator_means(problem: Any) -> None:
    graph, arrays = problem
    plain = with_plain_attention(graph)
    assert all(node.operator != "Attention" for node in plain.nodes)
    with np.errstate(invalid="ignore"):
        (wanted,), (found,) = evaluate(graph, *arrays), evaluate(plain, *arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attributes", [{"left_window_size": 1}, {"softcap": 1.0}])
def test_other_kinds_stay(attributes: dict[str, Any]) -> None:
    inputs = tuple(Value(name, (1, 2, 3, 4), np.dtype("float32")) for name in "qkv")
    graph = Graph(inputs, ("y",), (Node("Attention", tuple("qkv"), ("y",), attributes),))
    assert with_plain_attention(graph).nodes == graph.nodes
