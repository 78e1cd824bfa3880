"""What notebooks show of formats, layouts, tensors, primitives and graphs: bounded, and escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

import relayout as rl
from relayout.graph import Graph, Node, Value
from relayout.primitives import Convolution, Reorder

SVG = "{http://www.w3.org/2000/svg}"


def words(picture: str) -> list[str]:
    """All labels of a picture."""
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]


def test_a_format_shows_its_digits() -> None:
    assert {"c//16", "c%16"} <= set(words(rl.Format("nChw16c")._repr_svg_() or ""))
    assert rl.Format("contiguous_format")._repr_svg_() is None


@pytest.mark.parametrize("dims", [(1, 3, 4, 4), (64, 1000, 224, 224), (0, 3, 4, 4)])
def test_layouts_and_descriptors_are_bounded(dims: tuple[int, ...]) -> None:
    layout = rl.Layout(dims, "nChw8c")
    for picture in (layout._repr_svg_(), rl.MemoryDesc(dims, "bf16", layout)._repr_svg_()):
        assert len(picture) < 150_000
        assert words(picture)
    assert ("not drawn:" in " ".join(words(layout._repr_svg_()))) == (1000 in dims)


def test_a_tensor_shows_its_values() -> None:
    x = rl.tensor(np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4) / 7, "nChw8c")
    said = words(x._repr_svg_())
    assert "the tensor by index, in slices; cells hold values" in said
    assert {"0.143", "6.71"} <= set(said)
    assert "-7" in words(rl.tensor([[1, -7]], dtype="s4")._repr_svg_())
    big = rl.tensor(np.zeros((64, 64, 64, 16), np.float32), "nchw")
    assert len(big._repr_svg_()) < 150_000


def test_a_primitive_shows_the_formats_of_its_arguments() -> None:
    conv = Convolution(
        rl.MemoryDesc((1, 3, 8, 8), "f32", "nChw8c"), rl.MemoryDesc((16, 3, 3, 3), "f32", rl.any), padding=1
    )
    html = conv._repr_html_()
    ET.fromstring(html)
    assert "<b>Convolution</b>" in html
    src = ("src", "read", "nChw8c", "1x3x8x8", "f32", "2,048", "1,280")
    assert "".join(f"<td>{text}</td>" for text in src) in html
    assert f"<td>{conv.dst.layout.format}</td>" in html
    reorder = Reorder(rl.MemoryDesc((2, 3), "f32", "ab"), rl.MemoryDesc((2, 3), "s8", "ba"))
    ET.fromstring(reorder._repr_html_())


def test_a_graph_is_bounded_and_escaped() -> None:
    names = [f"<v{k}>&" for k in range(200)]
    nodes = [Node("Relu", (a,), (b,)) for a, b in pairwise(names)]
    graph = Graph((Value(names[0], (1, "N", None), np.dtype("f4")),), (names[-1],), tuple(nodes), name="<b>&")
    html = graph._repr_html_()
    ET.fromstring(html)  # is well-formed, so that nothing went unescaped
    assert "&lt;b&gt;&amp;" in html
    assert "199 Relu" in html
    assert "187 more nodes are not shown." in html
    assert len(re.findall("<tr>", html)) == 2 + 1 + 12
    assert "199 nodes: Relu" in html  # a chain is one box
    assert len(html) < 20_000


def test_a_graph_is_drawn() -> None:
    pairs = [("x", "a"), ("a", "b"), ("a", "c"), ("b", "y"), ("c", "z")]
    nodes = [Node("Relu" if k else "Tanh", (a,), (b,)) for k, (a, b) in enumerate(pairs)]
    graph = Graph((Value("x", (2, 3), np.dtype("f4")),), ("y", "z"), tuple(nodes))
    html = graph._repr_html_()
    picture = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert [g.get("data-value") for g in picture.iter(f"{SVG}g") if g.get("data-value")] == [
        *("x", "a", "a", "b", "c", "y", "z")
    ]
    assert sorted(g.get("data-node", "") for g in picture.iter(f"{SVG}g") if g.get("data-node")) == [
        *("Relu",) * 4, "Tanh", "x", "y", "z",
    ]  # fmt: skip
    wide = [Node("Relu", ("x",), (f"y{k}",)) for k in range(100)]
    many = Graph((Value("x", (2, 3), np.dtype("f4")),), tuple(f"y{k}" for k in range(100)), tuple(wide))
    huge = Graph(many.inputs, ("y0",), tuple(wide) * 100)
    assert ", nor are nodes behind the first 800" in huge._repr_html_()
    assert "100 nodes; 161 more boxes are not drawn" in many._repr_html_()


def test_a_descriptor_without_a_format_is_plain_text() -> None:
    assert rl.MemoryDesc((1, 2, 3, 4), "f32", "any")._repr_svg_() is None


def test_a_plan_is_drawn() -> None:
    x = Value("<x>&", (1, 3), np.dtype("f4"))
    plan = Graph((x,), ("y",), (Node("Relu", ("<x>&",), ("y",)),)).plan()
    assert plan._repr_svg_() == plan.svg()
    ET.fromstring(plan._repr_svg_())


def test_a_plan_of_many_boxes_says_what_it_leaves_out() -> None:
    wide = [Node("Relu", ("x",), (f"y{k}",)) for k in range(100)]
    x = Value("x", (2, 3), np.dtype("f4"))
    plan = Graph((x,), tuple(f"y{k}" for k in range(100)), tuple(wide)).plan()
    picture = ET.fromstring(plan._repr_svg_())
    drawn = [g for g in picture.iter(f"{SVG}g") if g.get("data-node")]
    every = [g for g in ET.fromstring(plan.svg()).iter(f"{SVG}g") if g.get("data-node")]
    assert len(drawn) == 150 < len(every)
    assert f"{len(every) - 150} more boxes not drawn" in " ".join(words(plan._repr_svg_()))
    assert "not drawn" not in plan.svg()
