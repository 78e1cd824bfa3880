"""Networks of f32 in bf16 and f16: what becomes narrow, and how far results are from those in f32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relayout.errors import LayoutError
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.passes.precision import with_precision
from test_cli import call, refused

EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11}
DEPTH = 8  # roundings one behind the other, at most, in what is run here


def network() -> Graph:
    """Convolutions with a residual, a pool, a normalisation, attention, a classifier; an exponential, too."""
    rng = np.random.default_rng(0)

    def weights(*dims: int) -> Any:
        return (rng.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32)

    nodes = (
        Node("Conv", ("x", "w1", "b1"), ("a",), {"pads": (1, 1, 1, 1)}),
        Node("Relu", ("a",), ("b",)),
        Node("Conv", ("b", "w2"), ("c",), {"pads": (1, 1, 1, 1)}),
        Node("Add", ("c", "b"), ("d",)),
        Node("MaxPool", ("d",), ("e",), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        Node("Reshape", ("e", "tokens"), ("f",)),
        Node("Transpose", ("f",), ("g",), {"perm": (0, 2, 1)}),
        Node("LayerNormalization", ("g", "gamma", "beta"), ("h",)),
        Node("MatMul", ("h", "f"), ("scores",)),
        Node("Add", ("scores", "mask"), ("masked",)),
        Node("Softmax", ("masked",), ("shares",)),
        Node("MatMul", ("shares", "h"), ("i",)),
        Node("Gelu", ("i",), ("j",)),
        Node("Exp", ("j",), ("k",)),
        Node("ReduceMean", ("k", "one"), ("l",), {"keepdims": 0}),
        Node("Gemm", ("l", "w3", "b3"), ("y",), {"transB": 1}),
    )
    mask = np.zeros((16, 16), np.float32)
    mask[:, 12:] = np.finfo(np.float32).min
    constants = {
        "w1": weights(16, 3, 3, 3),
        "b1": weights(16),
        "w2": weights(16, 16, 3, 3),
        "w3": weights(10, 16),
        "b3": weights(10),
        "gamma": weights(16),
        "beta": weights(16),
        "mask": mask,
        "tokens": np.array([2, 16, 16]),
        "one": np.array([1]),
    }
    x = Value("x", (2, 3, 8, 8), np.dtype(np.float32))
    return inferred(Graph((x,), ("y", "shares"), nodes, constants))


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_errors_are_those_of_the_type(precision: str) -> None:
    graph, x = network(), np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    exact = evaluate(graph, x)
    by_definition = evaluate(inferred(with_precision(graph, precision)), x)
    by_kernels = graph.compile(precision=precision)(x)
    for found in (by_definition, by_kernels):
        for one, other in zip(found, exact, strict=True):
            assert one.dtype == np.float32
            assert np.isfinite(one).all()
            assert np.abs(one - other).max() <= DEPTH * EPSILON[precision] * np.abs(other).max()
    assert np.abs(by_kernels[0] - exact[0]).max() > 0  # it was computed in the narrower type


def test_what_is_narrow_and_what_is_not() -> None:
    made = inferred(with_precision(network(), "bf16"))
    kinds = {node.operator: made.value(node.outputs[0]).dtype for node in made.nodes}
    narrow = {name for name, kind in kinds.items() if kind == ml_dtypes.bfloat16}
    assert {"Conv", "Relu", "MaxPool", "LayerNormalization", "MatMul", "Softmax", "Gemm"} <= narrow
    assert kinds["Exp"] == kinds["ReduceMean"] == np.float32
    assert made.inputs[0].dtype == np.float32
    assert all(value.dtype == np.float32 for value in made.outputs)


def test_constants_of_f16_are_finite() -> None:
    made = with_precision(network(), "f16")
    assert np.isfinite(made.constants["mask/f16"]).all()


def test_kernels_do_all_of_it() -> None:
    run = network().compile(precision="bf16")
    assert run.steps is not None
    assert not any("definition" in layer.implementation for layer in run.steps.layers())


def test_f32_is_the_network_itself() -> None:
    graph = network()
    assert with_precision(graph, "f32") is graph
    assert with_precision(graph, None) is graph
    x = np.ones((2, 3, 8, 8), np.float32)
    for one, other in zip(graph.compile()(x), graph.compile(precision="f32")(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_others_are_refused() -> None:
    for made in (network().compile, network().plan):
        with pytest.raises(LayoutError, match="none of f32, bf16, f16"):
            made(precision="int8")


def test_open_sizes() -> None:
    graph = network()
    x = Value("x", ("batch", 3, 8, 8), np.dtype(np.float32))
    conv = Graph((x,), ("a",), graph.nodes[:1], {name: graph.constants[name] for name in ("w1", "b1")})
    run = conv.compile(precision="bf16")
    data = np.random.default_rng(2).standard_normal((3, 3, 8, 8)).astype(np.float32)
    found, exact = run(data)[0], evaluate(conv, data)[0]
    assert 0 < np.abs(found - exact).max() <= 2 * EPSILON["bf16"] * np.abs(exact).max()


def test_the_command_line(tmp_path: Any) -> None:
    onnx = pytest.importorskip("onnx")
    from relayout.exporters.onnx import export

    path = str(tmp_path / "net.onnx")
    onnx.save(export(network()), path)
    for command in (["run", path, "--repeat", "1"], ["plan", path]):
        assert call(*command, "--precision", "bf16")
        assert "int8" in refused(*command, "--precision", "int8")
    assert "--dtype" in refused("run", "resnet50", "--precision", "bf16")


@pytest.mark.parametrize("precision", ["bf16", "f16"])
@pytest.mark.parametrize("dims", [(0, 7), (3, 0)])
def test_softmax_of_nothing(precision: str, dims: tuple[int, int]) -> None:
    x = Value("x", dims, np.dtype(np.float32))
    graph = Graph((x,), ("y",), (Node("Neg", ("x",), ("n",)), Node("Softmax", ("n",), ("y",))))
    (found,) = inferred(graph).compile(precision=precision)(np.zeros(dims, np.float32))
    assert found.shape == dims
    data = np.zeros(dims, ml_dtypes.bfloat16)
    narrow = Graph((Value("x", dims, data.dtype),), ("y",), (Node("Softmax", ("x",), ("y",)),))
    assert evaluate(inferred(narrow), data)[0].shape == dims


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_recurrent_layers(operator: str, precision: str) -> None:
    """Data and weights of bf16; biases, initial states and memory as they are. In f16 all of it."""
    rng, gates = np.random.default_rng(3), {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    shapes = {"w": (2, gates * 24, 10), "r": (2, gates * 24, 24), "b": (2, gates * 48), "c": (2, 3, 24)}
    constants = {name: (rng.standard_normal(dims) / 5).astype(np.float32) for name, dims in shapes.items()}
    inputs = ("x", "w", "r", "b", "", "h", *(["c"] if operator == "LSTM" else []))
    more = {"linear_before_reset": 1} if operator == "GRU" else {}
    layer = Node(operator, inputs, ("y", "yh"), {"hidden_size": 24, "direction": "bidirectional", **more})
    dims = Value("x", (5, 3, 10), np.dtype("f4")), Value("h", (2, 3, 24), np.dtype("f4"))
    graph = inferred(Graph(dims, ("y", "yh"), (layer, Node("Tanh", ("y",), ("t",))), constants))
    made = with_precision(graph, precision)
    (node,) = (one for one in made.nodes if one.operator == operator)
    kinds = [str(made.value(name).dtype) for name in node.inputs if name]
    narrow = 3 if precision == "bf16" else 0
    assert kinds == ["bfloat16"] * narrow + ["float32"] * (len(kinds) - narrow)
    x, h = (rng.standard_normal(one.dims).astype(np.float32) for one in dims)
    run = graph.compile(precision=precision)
    assert not any("definition" in one.implementation for one in run.steps.layers())
    for found, wanted in zip(run(x, h), evaluate(graph, x, h), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=0.02 if narrow else 1e-5)
