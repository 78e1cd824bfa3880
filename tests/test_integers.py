"""Quantised networks: products of integers are what the network says, on kernels, and ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import quantised_models as models
import relayout
from covering import covering
from relayout.bench.zoo.quantising import KINDS, quantise, saturates
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.operators.fused import ELEMENTWISE
from relayout.graph.operators.integers import AVERAGE, CONV, MATMUL
from relayout.graph.passes import optimized
from relayout.graph.passes.integers import in_integers
from relayout.ops.expressions import Writing
from relayout.primitives.pointwise import Pointwise
from relayout.targets.machine import host

SHARE = 0.999  # of elements that are within one step
MOST = 2  # steps


def steps_apart(found: Any, expected: Any) -> Any:
    """How far bytes are from each other."""
    return np.abs(found.astype(np.int64) - expected.astype(np.int64))


def check_bytes(graph: Graph, *arrays: Any) -> Graph:
    """A graph into bytes is computed alike by its definition, with integers, and by kernels."""
    expected = evaluate(graph, *arrays)
    made = in_integers(inferred(optimized(graph)))
    by_definition = evaluate(made, *arrays)
    by_kernels = graph.compile()(*arrays)
    for one, other, third in zip(expected, by_definition, by_kernels, strict=True):
        assert one.dtype == other.dtype == third.dtype
        for found in (other, third):
            apart = steps_apart(found, one)
            assert (apart <= 1).all()
            assert (apart == 0).mean() > 0.99
    return made


def operators(graph: Graph) -> set[str]:
    return {node.operator for node in graph.nodes}


@pytest.mark.parametrize(
    ("kinds", "zero", "window", "channels"),
    covering(
        [("uint8", "int8", "uint8"), ("int8", "int8", "int8"), ("uint8",) * 3],
        [0, 7],
        [(1, 1, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2)],
        [(8, 16), (3, 20), (16, 16)],
    ),
)
def test_convolution(
    kinds: tuple[str, str, str], zero: int, window: tuple[int, int, int], channels: tuple[int, int]
) -> None:
    rng = np.random.default_rng(crc32(repr((kinds, zero, window, channels)).encode()))
    kernel, stride, pad = window
    dims = (2, channels[0], 9, 11)
    graph = models.pair(
        rng,
        dims,
        (channels[1], channels[0], kernel, kernel),
        kinds,
        (zero, 3),
        strides=(stride, stride),
        pads=(pad,) * 4,
    )
    limits = np.iinfo(kinds[0])
    x = rng.integers(limits.min, limits.max, dims, kinds[0], endpoint=True)
    made = check_bytes(graph, x)
    assert CONV in operators(made)
    assert not {"DequantizeLinear", "QuantizeLinear"} & operators(made)


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("zero", [0, 31])
@pytest.mark.parametrize("each", [False, True])
def test_weights_of_any_zero_point(groups: int, zero: int, each: bool) -> None:
    rng = np.random.default_rng(crc32(repr((groups, zero, each)).encode()))
    dims = (1, 16, 8, 9)
    graph = models.pair(
        rng,
        dims,
        (16, 16 // groups, 3, 3),
        ("uint8", "uint8", "uint8"),
        (zero, 120),
        group=groups,
        pads=(1, 2, 0, 1),
    )
    points = rng.integers(60, 200, 16 if each else 1, np.uint8)
    graph = graph.replaced(constants={**graph.constants, "zw": points, "sy": np.float32(0.5)})
    if not each:
        graph = graph.replaced(constants={**graph.constants, "sw": np.float32([0.004])})
    made = check_bytes(graph, rng.integers(0, 255, dims, np.uint8))
    assert operators(made) == {CONV}


@pytest.mark.parametrize("channels", [8, 17, 32])
def test_formats_are_those_that_have_kernels_with_zero_points(channels: int) -> None:
    rng = np.random.default_rng(18)
    dims = (1, channels, 14, 14)
    kinds = ("uint8", "int8", "uint8")
    graph = models.pair(rng, dims, (channels, 1, 3, 3), kinds, (100, 3), group=channels, pads=(1,) * 4)
    check_bytes(graph, rng.integers(0, 255, dims, np.uint8))
    assert not defined(graph)


@pytest.mark.parametrize(
    "behind",
    [
        (Node("Relu", ("c",), ("d",)),),
        (Node("Clip", ("c", "low", "high"), ("d",)),),
        (Node("Clip", ("c", "low", "high"), ("d",)), Node("Relu", ("d",), ("e",))),
        (Node("Clip", ("c", "high", "low"), ("d",)),),
    ],
)
@pytest.mark.parametrize("zero", [0, 50])
def test_bounds_are_in_the_epilogue(behind: tuple[Node, ...], zero: int) -> None:
    rng = np.random.default_rng(0)
    graph = models.pair(rng, (1, 8, 6, 6), (16, 8, 1, 1), ("uint8", "int8", "uint8"), (0, zero), behind)
    graph = graph.replaced(constants={**graph.constants, "low": np.float32(-1.1), "high": np.float32(2.05)})
    made = check_bytes(inferred(graph), rng.integers(0, 255, (1, 8, 6, 6), np.uint8))
    assert operators(made) == {CONV}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("relu", [False, True])
def test_a_residual_is_added_by_the_convolution(kind: str, relu: bool) -> None:
    rng = np.random.default_rng(1)
    dims = (1, 16, 7, 7)
    graph = models.pair(rng, dims, (16, 16, 3, 3), (kind, "int8", kind), (5, 3), pads=(1,) * 4)
    more = (
        Node("DequantizeLinear", ("y", "sy", "zy"), ("c2",)),
        Node("DequantizeLinear", ("r", "sr", "zr"), ("r2",)),
        Node("Add", ("c2", "r2"), ("s",)),
        *([Node("Relu", ("s",), ("t",))] if relu else []),
        Node("QuantizeLinear", ("t" if relu else "s", "st", "zt"), ("z",)),
    )
    constants = {
        **graph.constants,
        "sr": np.float32(0.031),
        "zr": np.array(9, kind),
        "st": np.float32(0.06),
        "zt": np.array(20, kind),
    }
    whole = Graph((*graph.inputs, Value("r", dims, np.dtype(kind))), ("z",), (*graph.nodes, *more), constants)
    limits = np.iinfo(kind)
    x, r = (rng.integers(limits.min, limits.max, dims, kind, endpoint=True) for _ in range(2))
    made = check_bytes(inferred(whole), x, r)
    assert sum(node.operator == CONV for node in made.nodes) == 1
    assert "Add" not in operators(made)


@pytest.mark.parametrize(
    ("kind", "zeros", "behind", "residual"),
    covering(
        ["uint8", "int8"],
        [(6, 20), (7, 20), (6, 21), (7, 21)],
        ["nothing", "Relu", "Clip"],
        [False, True],
    ),
)
def test_ties_are_rounded_before_the_zero_point(
    kind: str, zeros: tuple[int, int], behind: str, residual: bool
) -> None:
    """To the even number, which is another one once an odd zero point is added."""
    rng = np.random.default_rng(5)
    dims = (1, 16, 7, 7)
    graph = models.pair(rng, dims, (16, 16, 1, 1), (kind, "int8", kind), (5, zeros[0]))
    filters = rng.integers(-3, 4, (16, 16, 1, 1), np.int8)
    known = {"w": filters, "sw": np.full(16, 0.25, np.float32), "sx": np.float32(0.5), "sy": np.float32(0.25)}
    constants = {**graph.constants, **known, "b": rng.integers(-8, 8, 16).astype(np.float32) / 8}
    constants |= {"sr": np.float32(0.125), "zr": np.array(9, kind), "st": np.float32(0.5)}
    constants |= {"zt": np.array(zeros[1], kind), "low": np.float32(-1.125), "high": np.float32(2.25)}
    first, last = graph.nodes[:-1], graph.nodes[-1]
    more: tuple[Node, ...] = ()
    if residual:
        more = (
            Node("DequantizeLinear", ("y", "sy", "zy"), ("c2",)),
            Node("DequantizeLinear", ("r", "sr", "zr"), ("r2",)),
            Node("Add", ("c2", "r2"), ("s",)),
            Node("QuantizeLinear", ("s", "st", "zt"), ("z",)),
        )
    if behind != "nothing":
        bounds = ("low", "high") if behind == "Clip" else ()
        before = "s" if residual else "c"
        between = Node(behind, (before, *bounds), ("d",))
        if residual:
            more = (*more[:-1], between, Node("QuantizeLinear", ("d", *more[-1].inputs[1:]), ("z",)))
        else:
            first, last = (*first, between), Node("QuantizeLinear", ("d", *last.inputs[1:]), ("y",))
    inputs = (*graph.inputs, *[Value("r", dims, np.dtype(kind))] * residual)
    whole = inferred(Graph(inputs, ("z" if residual else "y",), (*first, last, *more), constants))
    given = [rng.integers(0, 12, dims, kind) for _ in inputs]
    expected = evaluate(whole, *given)[0]
    made = in_integers(inferred(optimized(whole)))
    assert operators(made) == {CONV}
    np.testing.assert_array_equal(evaluate(made, *given)[0], expected)
    np.testing.assert_array_equal(whole.compile()(*given)[0], expected)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("rank", [2, 3])
def test_matrix_products(turned: int, rank: int) -> None:
    rng = np.random.default_rng(2)
    dims = (5, 24) if rank == 2 else (2, 5, 24)
    weights = rng.integers(-128, 127, (20, 24) if turned and rank == 2 else (24, 20), np.int8)
    axis = 0 if turned and rank == 2 else 1
    product = (
        Node("Gemm", ("a", "f", "b"), ("c",), {"transB": turned})
        if rank == 2
        else Node("MatMul", ("a", "f"), ("c",))
    )
    constants = {
        "w": weights,
        "sw": rng.uniform(0.001, 0.01, 20).astype(np.float32),
        "sx": np.float32(0.03),
        "zx": np.uint8(17),
        "b": rng.standard_normal(20).astype(np.float32),
        "sy": np.float32(0.05),
        "zy": np.uint8(100),
    }
    nodes = (
        Node("DequantizeLinear", ("x", "sx", "zx"), ("a",)),
        Node("DequantizeLinear", ("w", "sw"), ("f",), {"axis": axis}),
        product,
        Node("QuantizeLinear", ("c", "sy", "zy"), ("y",)),
    )
    graph = inferred(Graph((Value("x", dims, np.dtype(np.uint8)),), ("y",), nodes, constants))
    made = check_bytes(graph, rng.integers(0, 255, dims, np.uint8))
    assert operators(made) == {MATMUL}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_averages(padded: bool, whole: bool) -> None:
    rng = np.random.default_rng(4)
    attributes: Any = {} if whole else {"kernel_shape": (3, 3), "pads": (padded,) * 4, "strides": (2, 2)}
    nodes = (
        Node("DequantizeLinear", ("x", "sx", "zx"), ("a",)),
        Node("GlobalAveragePool" if whole else "AveragePool", ("a",), ("c",), attributes),
        Node("QuantizeLinear", ("c", "sy", "zy"), ("y",)),
    )
    constants = {"sx": np.float32(0.03), "zx": np.uint8(17), "sy": np.float32(0.021), "zy": np.uint8(10)}
    graph = inferred(Graph((Value("x", (2, 16, 9, 9), np.dtype(np.uint8)),), ("y",), nodes, constants))
    made = check_bytes(graph, rng.integers(0, 255, (2, 16, 9, 9), np.uint8))
    assert operators(made) == {AVERAGE}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("zero", [10, 17])
def test_averages_that_are_ties_are_rounded_before_the_zero_point(kind: str, zero: int) -> None:
    rng = np.random.default_rng(4)
    nodes = (
        Node("DequantizeLinear", ("x", "s", "zx"), ("a",)),
        Node("AveragePool", ("a",), ("c",), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        Node("QuantizeLinear", ("c", "s", "zy"), ("y",)),
    )
    constants = {"s": np.float32(0.25), "zx": np.array(3, kind), "zy": np.array(zero, kind)}
    graph = inferred(Graph((Value("x", (2, 16, 8, 8), np.dtype(kind)),), ("y",), nodes, constants))
    x = rng.integers(0, 100, (2, 16, 8, 8), kind)
    made = in_integers(inferred(optimized(graph)))
    assert operators(made) == {AVERAGE}
    expected = evaluate(graph, x)[0]
    np.testing.assert_array_equal(evaluate(made, x)[0], expected)
    np.testing.assert_array_equal(graph.compile()(x)[0], expected)


def test_bytes_move_and_maxima_commute() -> None:
    rng = np.random.default_rng(5)
    nodes = (
        Node("DequantizeLinear", ("x", "s", "z"), ("a",)),
        Node("MaxPool", ("a",), ("b",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
        Node("Transpose", ("b",), ("c",), {"perm": (0, 2, 3, 1)}),
        Node("Flatten", ("c",), ("d",)),
        Node("QuantizeLinear", ("d", "s", "z"), ("y",)),
    )
    constants = {"s": np.float32(0.03), "z": np.int8(17)}
    graph = inferred(Graph((Value("x", (2, 16, 9, 9), np.dtype(np.int8)),), ("y",), nodes, constants))
    x = rng.integers(-128, 127, (2, 16, 9, 9), np.int8)
    made = in_integers(inferred(optimized(graph)))
    assert operators(made) == {"MaxPool", "Transpose", "Flatten"}
    np.testing.assert_array_equal(graph.compile()(x)[0], evaluate(graph, x)[0])


def test_concatenations_of_bytes_of_several_scales() -> None:
    rng = np.random.default_rng(15)
    nodes = (
        Node("DequantizeLinear", ("x", "s", "z"), ("a",)),
        Node("DequantizeLinear", ("r", "t", "z"), ("b",)),
        Node("Concat", ("a", "b"), ("c",), {"axis": 1}),
        Node("QuantizeLinear", ("c", "t", "z"), ("y",)),
    )
    constants = {"s": np.float32(0.03), "t": np.float32(0.05), "z": np.uint8(17)}
    values = (Value(name, (2, 16, 9, 9), np.dtype(np.uint8)) for name in "xr")
    graph = inferred(Graph(tuple(values), ("y",), nodes, constants))
    x, r = (rng.integers(0, 255, (2, 16, 9, 9), np.uint8) for _ in range(2))
    made = check_bytes(graph, x, r)
    assert operators(made) == {"Concat", ELEMENTWISE}


def test_a_graph_without_quantisation_is_itself() -> None:
    x = Value("x", (2, 3), np.dtype(np.float32))
    graph = Graph((x,), ("y",), (Node("Relu", ("x",), ("y",)),))
    assert in_integers(graph) is graph


@pytest.mark.parametrize("dims", [(3, 5), (2, 16, 3, 4)])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_numbers_to_bytes_and_back_are_kernels(dims: tuple[int, ...], each: bool, kind: str) -> None:
    rng = np.random.default_rng(6)
    scale = rng.uniform(0.01, 0.1, dims[1]).astype(np.float32) if each else np.float32(0.04)
    zero = rng.integers(0, 50, dims[1] if each else None).astype(kind)
    nodes = (
        Node("QuantizeLinear", ("x", "s", "z"), ("q",), {"axis": 1}),
        Node("DequantizeLinear", ("q", "s", "z"), ("y",), {"axis": 1}),
    )
    graph = Graph(
        (Value("x", dims, np.dtype(np.float32)),), ("q", "y"), nodes, {"s": scale, "z": np.asarray(zero)}
    )
    x = (rng.standard_normal(dims) * 3).astype(np.float32)
    x.reshape(-1)[:3] = np.inf, -np.inf, 1e30
    run = graph.compile()
    for found, expected in zip(run(x), evaluate(inferred(graph), x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert run.steps is not None
    assert not any("definition" in layer.implementation for layer in run.steps.layers())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dynamic"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu"])
def test_networks_of_onnx_runtime(tmp_path: Path, kind: str, per_channel: bool, activation: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxruntime.quantization")
    real, path = tmp_path / "real.onnx", tmp_path / "quantised.onnx"
    given = models.convolutional(real, activation)
    rng = np.random.default_rng(7)
    samples = [given, *([rng.standard_normal(models.DIMS).astype(np.float32)] for _ in range(3))]
    quantise(real, path, kind, samples, per_channel, saturates(host()))
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    run = relayout.load(path).compile()
    scales = {
        name: data for name, data in relayout.load(path).constants.items() if name.startswith("y_scale")
    }
    (scale,) = scales.values()
    for x in samples:
        expected, found = session.run(None, {"x": x[0]})[0], run(x[0])[0]
        apart = np.abs(found - expected) / scale
        assert apart.max() < MOST + 0.01
        assert (apart < 1.01).mean() >= SHARE


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("operator", ["Sigmoid", "HardSwish", "LeakyRelu", "Gelu", "Tanh"])
def test_elementwise_trees_are_one_kernel(kind: str, operator: str) -> None:
    rng = np.random.default_rng(8)
    dims = (2, 16, 5, 7)
    nodes = (
        Node("DequantizeLinear", ("x", "s", "z"), ("a",)),
        Node(operator, ("a",), ("b",)),
        Node("QuantizeLinear", ("b", "t", "u"), ("c",)),
        Node("DequantizeLinear", ("c", "t", "u"), ("d",)),
        Node("Mul", ("a", "d"), ("e",)),
        Node("DequantizeLinear", ("g", "v", "u"), ("f",)),
        Node("Mul", ("e", "f"), ("h",)),
        Node("QuantizeLinear", ("h", "s", "z"), ("y",)),
    )
    constants = {
        "s": np.float32(0.05),
        "z": np.array(30, kind),
        "t": np.float32(0.01),
        "u": np.array(0, kind),
        "v": np.float32(0.011),
    }
    values = Value("x", dims, np.dtype(kind)), Value("g", (2, 16, 1, 1), np.dtype(kind))
    graph = inferred(Graph(values, ("y",), nodes, constants))
    limits = np.iinfo(kind)
    x, gate = (rng.integers(limits.min, limits.max, v.dims, kind, endpoint=True) for v in values)
    made = check_bytes(graph, x, gate)
    assert operators(made) == {ELEMENTWISE}
    run = graph.compile()
    assert run.steps is not None
    assert not any("definition" in layer.implementation for layer in run.steps.layers())


def test_what_others_read_stays() -> None:
    nodes = (
        Node("DequantizeLinear", ("x", "s", "z"), ("a",)),
        Node("Sigmoid", ("a",), ("b",)),
        Node("QuantizeLinear", ("b", "s", "z"), ("y",)),
        Node("Exp", ("a",), ("e",)),
    )
    constants = {"s": np.float32(0.05), "z": np.uint8(3)}
    x = Value("x", (3, 17), np.dtype(np.uint8))
    graph = inferred(Graph((x,), ("y", "e", "b"), nodes, constants))
    data = np.random.default_rng(9).integers(0, 255, (3, 17), np.uint8)
    for found, expected in zip(graph.compile()(data), evaluate(graph, data), strict=True):
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=1e-6)


def defined(graph: Graph) -> list[str]:
    """The steps of a run that no kernel does."""
    run = graph.compile()
    assert run.steps is not None
    return [layer.name for layer in run.steps.layers() if "definition" in layer.implementation]


@pytest.mark.parametrize("data", ["normal", "positive", "negative", "zero", "large"])
def test_ranges_are_found_as_the_definition_does(data: str) -> None:
    x = np.random.default_rng(10).standard_normal((5, 77)).astype(np.float32)
    x = {"normal": x, "positive": abs(x), "negative": -abs(x), "zero": 0 * x, "large": 1e30 * x}[data]
    node = Node("DynamicQuantizeLinear", ("x",), ("y", "s", "z"))
    graph = Graph((Value("x", x.shape, x.dtype),), ("y", "s", "z"), (node,))
    assert not defined(graph)
    for found, expected in zip(graph.compile()(x), evaluate(graph, x), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("kind", "rank", "written", "beside"),
    covering(["int8", "uint8"], [2, 3], ["integer", "real"], [0, 31]),
)
def test_dynamic_products(kind: str, rank: int, written: str, beside: int) -> None:
    rng = np.random.default_rng(11)
    dims = (7, 40) if rank == 2 else (2, 7, 40)
    limits = np.iinfo(kind)
    constants = {
        "w": rng.integers(limits.min, limits.max, (40, 24), kind, endpoint=True),
        "sw": rng.uniform(0.001, 0.01, 24).astype(np.float32),
        "zw": np.array((128 if kind == "uint8" else 0) - beside, kind),
        "b": rng.standard_normal(24).astype(np.float32),
    }
    first = Node("DynamicQuantizeLinear", ("x",), ("q", "s", "z"))
    if written == "integer":
        inner: tuple[Node, ...] = (
            Node("MatMulInteger", ("q", "w", "z", "zw"), ("a",)),
            Node("Cast", ("a",), ("c",), {"to": 1}),
            Node("Mul", ("s", "sw"), ("f",)),
            Node("Mul", ("c", "f"), ("d",)),
        )
    else:
        constants["zw"] = np.full(24, constants["zw"])
        inner = (
            Node("DequantizeLinear", ("q", "s", "z"), ("a",)),
            Node("DequantizeLinear", ("w", "sw", "zw"), ("f",), {"axis": -1}),
            Node("MatMul", ("a", "f"), ("d",)),
        )
    nodes = (first, *inner, Node("Add", ("d", "b"), ("e",)), Node("Gelu", ("e",), ("y",)))
    graph = inferred(Graph((Value("x", dims, np.dtype(np.float32)),), ("y",), nodes, constants))
    assert not defined(graph)
    x = rng.standard_normal(dims).astype(np.float32)
    np.testing.assert_allclose(graph.compile()(x)[0], evaluate(graph, x)[0], atol=1e-4)


@pytest.mark.parametrize("group", [1, 2])
def test_dynamic_convolution(group: int) -> None:
    rng = np.random.default_rng(12)
    nodes = (
        Node("DynamicQuantizeLinear", ("x",), ("q", "s", "z")),
        Node("ConvInteger", ("q", "w", "z"), ("a",), {"group": group, "strides": (2, 2)}),
        Node("Cast", ("a",), ("c",), {"to": 1}),
        Node("Mul", ("c", "s"), ("y",)),
    )
    constants = {"w": rng.integers(-128, 127, (16, 8 // group, 2, 2), np.int8)}
    graph = inferred(Graph((Value("x", (2, 8, 10, 10), np.dtype(np.float32)),), ("y",), nodes, constants))
    assert not defined(graph)
    x = rng.standard_normal((2, 8, 10, 10)).astype(np.float32)
    expected = evaluate(graph, x)[0]
    np.testing.assert_allclose(graph.compile()(x)[0], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("windows", [{"pads": (1, 0, 2, 1)}, {"auto_pad": "SAME_UPPER"}])
@pytest.mark.parametrize("points", [[0], [9], range(-5, 11)])
def test_padding_of_dynamic_convolutions_is_their_zero_point(
    group: int, windows: dict[str, Any], points: Sequence[int]
) -> None:
    rng = np.random.default_rng(16)
    nodes = (
        Node("DynamicQuantizeLinear", ("x",), ("q", "s", "z")),
        Node("ConvInteger", ("q", "w", "z", "zw"), ("a",), {"group": group, "strides": (2, 1), **windows}),
        Node("Cast", ("a",), ("c",), {"to": 1}),
        Node("Mul", ("c", "s"), ("y",)),
    )
    constants = {"w": rng.integers(-128, 127, (16, 8 // group, 3, 2), np.int8), "zw": np.int8(points)}
    graph = inferred(Graph((Value("x", (2, 8, 9, 10), np.dtype(np.float32)),), ("y",), nodes, constants))
    assert group > 1 or not defined(graph)
    x = rng.standard_normal((2, 8, 9, 10)).astype(np.float32)
    expected = evaluate(graph, x)[0]
    np.testing.assert_allclose(graph.compile()(x)[0], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("operator", ["MatMulInteger", "ConvInteger"])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_large_sums_of_dynamic_products_are_exact(operator: str, kind: str) -> None:
    """Beyond 2**24 the zero point is taken off integers; off f32 it would be one of 4 or 8 neighbours."""
    rng = np.random.default_rng(15)
    limits, conv = np.iinfo(kind), operator == "ConvInteger"
    dims, filters = ((1, 512, 5, 5), (8, 512, 3, 3)) if conv else ((3, 5000), (5000, 8))
    weights = rng.integers(limits.max - 20, limits.max, filters, kind, endpoint=True)
    nodes = (
        Node("DynamicQuantizeLinear", ("x",), ("q", "s", "z")),
        Node(operator, ("q", "w", "z"), ("a",), {"pads": (1, 1, 1, 1)} if conv else {}),
        Node("Cast", ("a",), ("c",), {"to": 1}),
        Node("Mul", ("c", "s"), ("y",)),
    )
    inputs = (Value("x", dims, np.dtype(np.float32)),)
    graph = inferred(Graph(inputs, ("y",), nodes, {"w": weights}))
    x = rng.uniform(0.7, 1.0, dims).astype(np.float32)
    x.flat[0] = -0.5
    expected = evaluate(graph, x)[0]
    scale = (x.max() - x.min()) / 255
    assert abs(expected / scale).max() > 1 << 24
    assert not defined(graph)
    np.testing.assert_array_equal(graph.compile()(x)[0], expected)


@pytest.mark.parametrize("taken", ["zx/u8", "c"])
def test_zero_points_of_other_types_take_no_names(taken: str) -> None:
    """Bytes between are u8 in the place of s8, and their zero points are constants of their own."""
    rng = np.random.default_rng(17)
    nodes = (
        Node("QuantizeLinear", ("x", "s", "zx"), ("q",)),
        Node("DequantizeLinear", ("q", "s", "zx"), ("d",)),
        Node("Exp", ("d",), (taken,)),
        Node("Neg", (taken,), ("y",)),
    )
    constants = {"s": np.float32(0.02), "zx": np.int8(5)}
    graph = inferred(Graph((Value("x", (3, 7), np.dtype(np.float32)),), ("y",), nodes, constants))
    x = rng.standard_normal((3, 7)).astype(np.float32)
    np.testing.assert_allclose(graph.compile()(x)[0], evaluate(graph, x)[0], rtol=1e-6)


def test_weights_of_products_in_f32_are_dequantised_once() -> None:
    rng = np.random.default_rng(13)
    nodes = (
        Node("DequantizeLinear", ("w", "s"), ("f",), {"axis": 0}),
        Node("Conv", ("x", "f"), ("y",), {"pads": (1, 1, 1, 1)}),
    )
    constants = {"w": rng.integers(-128, 127, (8, 4, 3, 3), np.int8), "s": np.full(8, 0.01, np.float32)}
    graph = inferred(Graph((Value("x", (1, 4, 6, 6), np.dtype(np.float32)),), ("y",), nodes, constants))
    assert operators(in_integers(inferred(optimized(graph)))) == {"Conv"}
    x = rng.standard_normal((1, 4, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(graph.compile()(x)[0], evaluate(graph, x)[0], atol=1e-4)


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["u8", "s8", "s16", "s32"])
def test_real_numbers_are_saturated(source: str, target: str) -> None:
    edges = [0.0, -0.0, 0.5, -0.5, 0.99, 126.9, 127.5, 128, 254.9, 255, 255.5, 256, -127.5, -128, -128.9]
    edges += [32767.4, 32768, -32768.5, -40000, 2147483520, 2147483648, -2147483648, 3e9, -3e9, 1e30, -1e30]
    more = np.random.default_rng(14).standard_normal(500) * 300
    x = np.concatenate([[*edges, np.inf, -np.inf, np.nan], more]).astype("f4" if source == "f32" else "f8")
    writing = Writing(source)
    writing.put("cast", target, 0)
    given = relayout.tensor(x, "a")
    made = Pointwise(writing.written(), [given.desc], relayout.MemoryDesc(x.shape, target, "a"))
    np.testing.assert_array_equal(made(given).numpy(), writing.written().definition(x))


def test_results_of_the_network_that_nobody_reads_are_left_as_they_are() -> None:
    """A Split gives two, of which one alone is quantised."""
    nodes = (
        Node("Split", ("x",), ("a", "y"), {"axis": 0, "num_outputs": 2}),
        Node("QuantizeLinear", ("a", "s", "z"), ("b",)),
        Node("DequantizeLinear", ("b", "s", "z"), ("c",)),
    )
    constants = {"s": np.float32(0.05), "z": np.uint8(3)}
    x = Value("x", (2, 17), np.dtype(np.float32))
    graph = inferred(Graph((x,), ("y", "c"), nodes, constants))
    data = np.random.default_rng(9).standard_normal((2, 17), np.float32)
    for found, expected in zip(graph.compile()(data), evaluate(graph, data), strict=True):
        np.testing.assert_array_equal(found, expected)
