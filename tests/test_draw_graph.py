"""Drawings of planned networks: everything is there, and nothing stands on anything else."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import Building
from relayout.draw.graph import graph
from relayout.draw.ranks import places
from strategies import examples


def network(blocks):
    """A chain of convolutions with residuals, so many."""
    make = Building((1, 16, 8, 8))
    value = "x0"
    for _ in range(blocks):
        conv = make("Conv", value, make.constant(np.ones((16, 16, 3, 3), np.float32)), pads=(1, 1, 1, 1))
        value = make("Add", make("Relu", conv), value)
    return make.graph(value)


def drawn(text, name):
    """The elements with some data, with their boxes."""
    found = {}
    for one in ET.fromstring(text).iter():
        if one.get(f"data-{name}") is not None:
            box = next(iter(one.iter("{http://www.w3.org/2000/svg}rect")), None)
            at = None if box is None else tuple(float(box.get(k)) for k in ("x", "y", "width", "height"))
            found[one.get(f"data-{name}")] = at
    return found


@given(st.data())
@examples(40)
def test_places_are_ordered_and_apart(data):
    """Edges go down, boxes of a rank keep their distance, and bends are one in each rank that is passed."""
    count = data.draw(st.integers(1, 12))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    widths = data.draw(st.lists(st.floats(5, 90), min_size=count, max_size=count))
    placed = places(widths, edges, gap=10)
    for (src, dst), bends in zip(edges, placed.bends, strict=True):
        assert placed.ranks[src] < placed.ranks[dst]
        assert [rank for rank, _ in bends] == list(range(placed.ranks[src] + 1, placed.ranks[dst]))
    for a in range(count):
        for b in range(a):
            if placed.ranks[a] == placed.ranks[b]:
                assert abs(placed.x[a] - placed.x[b]) >= (widths[a] + widths[b]) / 2 + 10 - 1e-6


def test_every_node_and_conversion_is_drawn():
    plan = network(4).plan()
    text = graph(plan)
    names = [one.case.name for one in plan.chosen]
    assert list(drawn(text, "node")) == ["x0", *names, *plan.graph.results]
    assert sorted(drawn(text, "conversion")) == sorted({one.value for one in plan.solution.conversions})
    boxes = sorted(drawn(text, "node").values(), key=lambda box: box[1])
    assert all(a[1] + a[3] <= b[1] or a[1] == b[1] for a, b in zip(boxes, boxes[1:], strict=False))
    assert graph(plan) == text


def test_chains_of_large_networks_are_one_box():
    plan = network(4).plan()
    few = drawn(graph(plan, most=1), "node")
    assert len(few) <= len(drawn(graph(plan), "node"))
    told = [name for names in few for name in names.split(", ")]
    assert sorted(told) == sorted(drawn(graph(plan), "node"))


@pytest.mark.parametrize("name", ["a<b", 'a"b', "a&b"])
def test_names_are_escaped(name):
    made = network(1)
    nodes = tuple(type(n)(n.operator, n.inputs, n.outputs, n.attributes, name) for n in made.nodes)
    assert name in drawn(made.replaced(nodes=nodes).plan().svg(), "node")
