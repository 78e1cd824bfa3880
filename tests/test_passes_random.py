"""Each pass on random graphs: what it returns computes the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings

from graphs import assert_same, operators, random_graphs
from relayout.graph.graph import Graph
from relayout.graph.passes import PASSES, fused, log, optimized, transposes_moved, unfused
from strategies import tried


@pytest.mark.parametrize("change", PASSES, ids=lambda one: one.__name__)
@given(graph=random_graphs(longest=8))
@settings(max_examples=tried(25), deadline=None)
def test_pass_keeps_results(change: Callable[[Graph], Graph], graph: Graph) -> None:
    assert_same(graph, change(graph))


@given(graph=random_graphs())
@settings(max_examples=tried(120), deadline=None)
def test_optimized_keeps_results(graph: Graph) -> None:
    made = optimized(graph)
    assert_same(graph, made)
    assert log(made) == ()
    assert operators(made).count("Transpose") <= operators(graph).count("Transpose")


@given(graph=random_graphs())
@settings(max_examples=tried(100), deadline=None)
def test_transposes_never_grow(graph: Graph) -> None:
    made = transposes_moved(graph)
    assert_same(graph, made)
    assert operators(made).count("Transpose") <= operators(graph).count("Transpose")


@given(graph=random_graphs())
@settings(max_examples=tried(80), deadline=None)
def test_chains_and_back(graph: Graph) -> None:
    made = fused(graph)
    assert_same(graph, made)
    for node in made.nodes:
        if node.operator == "relayout.Fused":
            chain = node.attributes["graph"].nodes
            assert len(chain) > 1
            assert all(
                one.outputs[0] in after.inputs[:2] or chain[0].operator == "Softmax"
                for one, after in pairwise(chain)
            )
    back = unfused(made)
    assert_same(graph, back)
    assert sorted(operators(back)) == sorted(operators(graph))
