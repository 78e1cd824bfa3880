"""Small graphs that a network needed and the lowering got wrong, or left to definitions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from covering import covering
from relayout.dtypes import dtype
from relayout.graph.compiling import compiled
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.lowering.case import label
from relayout.graph.run import Run
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.functions import OF_ONNX
from relayout.ops.reductions import REDUCTIONS
from strategies import tried


def test_how_a_format_is_spelled_does_not_depend_on_who_asked_first() -> None:
    """Axes of size 1 may stand anywhere, and descriptors are equal; those with gaps stand for dense ones."""
    random = Random(1)
    for _ in range(tried(300)):
        dims = tuple(random.choice((1, 1, 2, 3)) for _ in range(random.randint(2, 6)))
        letters = "abcdef"[: len(dims)]
        several = [axis for axis, size in zip(letters, dims, strict=True) if size > 1]
        order, found = random.sample(several, len(several)), set()
        for _ in range(6):
            tag = list(order)
            for axis in set(letters) - set(several):
                tag.insert(random.randint(0, len(tag)), axis)
            desc = MemoryDesc(dims, "f32", "".join(tag))
            label.cache_clear()
            assert label(desc) == desc
            found.add(label(desc).tag)
            wider = MemoryDesc(dims, "f32", strides=[2 * stride for stride in desc.strides])
            label.cache_clear()
            found.add(label(wider).tag)
        assert len(found) == 1, (dims, order, found)


def graph(nodes: Sequence[Node], constants: dict[str, Any], **dims: tuple[int, ...]) -> Graph:
    inputs = tuple(Value(name, size, np.dtype("f4")) for name, size in dims.items())
    return inferred(Graph(inputs, nodes[-1].outputs, tuple(nodes), constants))


def ran(made: Graph, *given: Any, atol: float = 1e-5, format: str | None = None) -> Run:
    """The compiled graph, which agrees with definitions."""
    if not given:
        rng = np.random.default_rng(0)
        given = tuple(rng.standard_normal(value.dims).astype(value.dtype) for value in made.inputs)
    run = compiled(made, format, threads=2)
    assert run.steps is not None, run.why
    for found, expected in zip(run(*given), evaluate(made, *given), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=atol, rtol=1e-5)
    return run


def defined(run: Run) -> list[str]:
    """The kinds of steps that definitions do."""
    assert run.steps is not None
    return [layer.kind for layer in run.steps.layers() if "definition" in layer.implementation]


@pytest.mark.parametrize("columns", [1, 7, 64, 301])
def test_attention_that_masks_all_is_guarded(columns: int) -> None:
    nodes = [
        Node("Softmax", ("x",), ("s",), {"axis": -1}),
        Node("IsNaN", ("s",), ("n",)),
        Node("Where", ("n", "zero", "s"), ("y",)),
    ]
    x = np.random.default_rng(0).standard_normal((2, 5, columns)).astype("f4")
    x[0, 3] = -np.inf
    run = ran(graph(nodes, {"zero": np.float32(0)}, x=x.shape), x)
    assert defined(run) == []
    assert np.isfinite(run(x)[0]).all()


@pytest.mark.parametrize(
    ("equation", "one", "two"),
    [
        ("bhqd,bhkd->bhqk", (2, 3, 5, 4), (2, 3, 6, 4)),
        ("bhqk,bkhd->bqhd", (2, 3, 5, 6), (2, 6, 3, 4)),
        ("hwij,bcw->bchij", (3, 4, 2, 5), (2, 6, 4)),
        ("ij,jk->ki", (3, 4), (4, 5)),
        ("bci,i->bc", (2, 3, 4), (4,)),
        ("i,j->ij", (3,), (4,)),
        ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
        ("bij,bjk->ik", (2, 3, 4), (2, 4, 5)),
        ("ijb,bk->bi", (2, 3, 4), (4, 5)),
    ],
)
def test_einsum(equation: str, one: tuple[int, ...], two: tuple[int, ...]) -> None:
    node = Node("Einsum", ("x", "y"), ("z",), {"equation": equation})
    ran(graph([node], {}, x=one, y=two))


@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceL1", "ReduceSumSquare"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_norms_are_by_kernels(operator: str, keepdims: int) -> None:
    node = Node(operator, ("x", "axes"), ("y",), {"keepdims": keepdims})
    run = ran(graph([node], {"axes": np.array([-1])}, x=(2, 3, 40)), atol=1e-4)
    assert defined(run) == []


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((1, 4, 6, 3), (1, 1, 3, 5)),
        ((4, 6, 3), (3, 5)),
        ((6, 3), (4, 3, 5)),
        ((1, 4, 6, 1, 3), (1, 1, 6, 3, 5)),
        ((2, 1, 6, 3), (4, 3, 5)),
    ],
)
@pytest.mark.parametrize("added", [None, (5,), (6, 1)])
def test_products_of_matrices_that_serve_several(
    one: tuple[int, ...], two: tuple[int, ...], added: tuple[int, ...] | None
) -> None:
    nodes = [Node("MatMul", ("x", "y"), ("p",))]
    if added is not None and len(one) != 5:
        nodes.append(Node("Add", ("p", "a"), ("z",)))
    made = graph(nodes, {"a": np.ones(added or (1,), "f4")}, x=one, y=two)
    assert "MatMul" not in defined(ran(made))


@pytest.mark.parametrize(
    ("one", "two"),
    [((1, 6, 1, 1), (1, 1, 5, 4)), ((6, 1), (4,)), ((2, 1, 3), (4, 1)), ((3, 1, 4), (3, 5, 1))],
)
@pytest.mark.parametrize("operator", ["Mul", "Sub"])
def test_operands_that_are_both_repeated(operator: str, one: tuple[int, ...], two: tuple[int, ...]) -> None:
    nodes = [Node(operator, ("x", "y"), ("a",)), Node("Relu", ("a",), ("z",))]
    assert defined(ran(graph(nodes, {}, x=one, y=two))) == []


@pytest.mark.parametrize(
    ("mode", "where", "sizes"),
    covering(
        ["linear", "cubic", "nearest"],
        ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"],
        [(2, 3, 14, 15), (2, 3, 3, 20), (2, 3, 7, 1)],
    ),
)
def test_interpolation_has_kernels(mode: str, where: str, sizes: tuple[int, ...]) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": where, "antialias": int(mode == "cubic")}
    node = Node("Resize", ("x", "", "", "sizes"), ("y",), attributes)
    assert defined(ran(graph([node], {"sizes": np.array(sizes)}, x=(2, 3, 7, 5)))) == []


@pytest.mark.parametrize(
    "attributes",
    [
        *({"mode": mode} for mode in ("nearest", "linear", "cubic")),
        {"mode": "cubic", "antialias": 1},
        {"mode": "linear", "axes": (0, 3)},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    ],
)
def test_resized_infinities_and_nan_reach_their_neighbours_only(attributes: dict[str, Any]) -> None:
    """Weights of 0 are no products: they would make NaN of an infinity, all along an axis."""
    data = np.random.default_rng(0).standard_normal((2, 3, 40, 36)).astype("f4")
    for k, value in enumerate((np.inf, -np.inf, np.nan)):
        data[k % 2, k, 7 + 9 * k, 30 - 7 * k] = value
    sizes = np.array((3, 51) if "axes" in attributes else (2, 3, 50, 23))
    made = graph([Node("Resize", ("x", "", "", "sizes"), ("y",), attributes)], {"sizes": sizes}, x=data.shape)
    (wanted,), (found,) = made.evaluate(data), made.compile()(data)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert 0 < np.count_nonzero(~np.isfinite(found)) < found.size / 20


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_narrow_types_are_resized_by_kernels(kind: str, mode: str) -> None:
    node = Node("Resize", ("x", "", "", "sizes"), ("y",), {"mode": mode})
    narrow = Value("x", (2, 3, 7, 12), dtype(kind).numpy)
    made = inferred(Graph((narrow,), ("y",), (node,), {"sizes": np.array((2, 3, 14, 9))}))
    x = np.random.default_rng(0).standard_normal(narrow.dims).astype(narrow.dtype)
    run = compiled(made, None, threads=2)
    found, wanted = (np.asarray(one, "f4") for (one,) in (run(x), evaluate(made, x)))
    np.testing.assert_allclose(found, wanted, rtol=2.0**-7, atol=1e-6)
    assert defined(run) == []


@pytest.mark.parametrize("size", [(10, 12), (50, 41)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("format", ["nchw", "nhwc"])
def test_interpolation_behind_a_convolution(format: str, mode: str, size: tuple[int, int]) -> None:
    nodes = [
        Node("Conv", ("x", "w"), ("a",), {"pads": (1, 1, 1, 1)}),
        Node("Resize", ("a", "", "scales"), ("b",), {"mode": mode}),
        Node("Conv", ("b", "v"), ("y",)),
    ]
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((32, 16, 3, 3)).astype("f4") / 12,
        "v": rng.standard_normal((8, 32, 1, 1)).astype("f4") / 6,
        "scales": np.array([1, 1, 2, 1.5], "f4"),
    }
    assert defined(ran(graph(nodes, constants, x=(2, 16, *size)), format=format)) == []


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [(0, 0, 1, 2, 0, 0, 3, 0), (0, 2, 0, 1, 1, 3, 0, 1), (0,) * 8])
def test_padding(mode: str, pads: tuple[int, ...]) -> None:
    nodes = [
        Node("Conv", ("x", "w"), ("a",)),
        Node("Pad", ("a", "pads", "number"), ("b",), {"mode": mode}),
        Node("Relu", ("b",), ("y",)),
    ]
    if mode == "reflect":
        pads = tuple(n * (k % 4 > 1) for k, n in enumerate(pads))
    w = np.random.default_rng(0).standard_normal((32, 16, 1, 1)).astype("f4")
    constants = {"w": w, "pads": np.array(pads), "number": np.float32(1.5)}
    assert defined(ran(graph(nodes, constants, x=(2, 16, 5, 7)))) == []


@pytest.mark.parametrize("dims", [(), (1,), (1, 1), (4,), (3, 1), (3, 4)], ids=str)
@pytest.mark.parametrize("numbers", [{}, {"alpha": 0.5, "beta": 0.0, "transB": 1}], ids=str)
def test_what_a_gemm_adds_may_have_any_dims(dims: tuple[int, ...], numbers: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((4, 7) if numbers else (7, 4)).astype("f4")
    constants = {"w": weights, "c": rng.standard_normal(dims).astype("f4")}
    run = ran(graph([Node("Gemm", ("x", "w", "c"), ("y",), numbers)], constants, x=(3, 7)))
    assert defined(run) == []


@pytest.mark.parametrize("dims", [(), (1,), (5, 1)], ids=str)
def test_numbers_that_a_call_brings_follow_a_product(dims: tuple[int, ...]) -> None:
    nodes = [Node("MatMul", ("x", "w"), ("a",)), Node("Mul", ("a", "factor"), ("y",))]
    ran(graph(nodes, {"w": np.ones((7, 4), "f4")}, x=(2, 5, 7), factor=dims))


@pytest.mark.parametrize("operator", OF_ONNX)
def test_functions_of_the_table_are_kernels_of_networks(operator: str) -> None:
    """Alone and behind a product, with their own attributes."""
    number = {"Elu": {"alpha": 0.5}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}}.get(operator, {})
    x = np.random.default_rng(0).uniform(0.1, 2, (3, 5, 7)).astype("f4")
    alone = ran(graph([Node(operator, ("x",), ("y",), number)], {}, x=x.shape), x)
    nodes = [Node("MatMul", ("x", "w"), ("a",)), Node(operator, ("a",), ("y",), number)]
    behind = ran(graph(nodes, {"w": np.ones((7, 4), "f4")}, x=x.shape), x, atol=2e-4)
    assert defined(alone) == defined(behind) == []
    assert behind.steps is not None
    assert len(behind.steps.layers()) == 1


@pytest.mark.parametrize("operator", [one.onnx for one in REDUCTIONS.values() if one.onnx])
def test_reductions_of_the_table_are_kernels_of_networks(operator: str) -> None:
    x = np.random.default_rng(0).uniform(0.1, 2, (3, 5, 7)).astype("f4")
    nodes = [Node(operator, ("x", "axes"), ("y",), {"keepdims": 0})]
    assert defined(ran(graph(nodes, {"axes": np.array([0, -1])}, x=x.shape), x)) == []


@pytest.mark.parametrize("way", ["pad", "linear", "nearest", "cubic"])
def test_single_pixels_grow_in_the_order_that_is_wanted(way: str) -> None:
    """Of one position row-major and channels-last are the same; of more, the result's format decides."""
    x, size = np.array([1, 16, 1, 1]), np.array([1, 16, 4, 6])
    shapes = {"dims": x, "size": size, "pads": np.array([0, 0, 1, 2, 0, 0, 2, 3])}
    if way == "pad":
        node = Node("Pad", ("y", "pads"), ("z",), {"mode": "constant"})
    else:
        how = {"mode": way, "coordinate_transformation_mode": "half_pixel"}
        node = Node("Resize", ("y", "", "", "size"), ("z",), how)
    made = graph([Node("Reshape", ("x", "dims"), ("y",)), node], shapes, x=(1, 16))
    for format in (None, "nhwc"):
        run = ran(made, format=format)
        assert not run.plan.conversions
