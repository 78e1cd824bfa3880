"""Passes on what exporters write: each pattern is found, and computes the same."""

from __future__ import annotations

import io
import math
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from graphs import F32, Building, assert_same, operators
from relayout.errors import LayoutError
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.passes import fused, log, optimized, unfused
from relayout.graph.passes.affine import with_affine_absorbed
from relayout.graph.passes.common import shared
from relayout.graph.passes.identities import without_identities
from relayout.graph.passes.transposes import transposes_moved

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def assert_becomes(graph: Graph, *wanted: str, scale: float = 1.0) -> Graph:
    """The operators of the optimised graph, which computes the same."""
    made = optimized(graph)
    assert_same(graph, made, scale=scale)
    assert operators(made) == list(wanted), f"{graph}\n\n{made}"
    assert optimized(made).nodes == made.nodes or log(made) == ()
    return made


# ---- nodes that change nothing, and pairs


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Identity", (), {}),
        ("Dropout", (), {}),
        ("Dropout", (0.3, np.array(False)), {}),
        ("Cast", (), {"to": 1}),
        ("Transpose", (), {"perm": (0, 1, 2, 3)}),
        ("Reshape", ([0, 3, -1, 5],), {}),
        ("Expand", ([1, 4, 1],), {}),
        ("Pad", ([0] * 8,), {}),
        ("Slice", ([0, 0], [2**60, 4], [1, 2]), {}),
        ("Concat", (), {"axis": 1}),
        ("Tile", ([1, 1, 1, 1],), {}),
        ("Mul", (1.0,), {}),
        ("Add", (np.zeros((3, 1, 1), np.float32),), {}),
        ("Sub", (0.0,), {}),
        ("Div", (1.0,), {}),
        ("Pow", (1.0,), {}),
        ("Sum", (), {}),
        ("Clip", (), {}),
        ("Where", (), {}),
    ],
)
def test_nodes_that_change_nothing(
    operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    b = Building((2, 3, 4, 5))
    if operator == "Where":
        b("Where", np.array(True), "x0", 7.0)
    else:
        b(operator, "x0", *inputs, **attributes)
    assert_becomes(b.graph(b("Tanh", b.nodes[-1].outputs[0])), "Tanh")


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Add", (np.zeros((2, 3, 4, 5), np.float32),), {}),  # it is broadcast
        ("Mul", (np.ones((7, 1, 3, 1, 1), np.float32),), {}),
        ("Slice", ([-1, 3], [-(2**60), -(2**60)], [1, 2], [-1, -1]), {}),  # backwards
        ("Dropout", (0.0, np.array(True)), {}),
        ("Pad", ([0, 0, 0, 0, 0, 0, 0, 1],), {}),
        ("Resize", ("", np.ones(4, np.float32)), {"coordinate_transformation_mode": "tf_crop_and_resize"}),
    ],
)
def test_nodes_that_change_something(
    operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    b = Building((1, 3, 4, 5))
    if operator == "Resize":
        inputs = (np.zeros(8, np.float32), inputs[1])
    x = b(operator, "x0", *inputs, **attributes)
    made = optimized(b.graph(b("Tanh", x)))
    assert operator in operators(made)


def test_an_output_that_is_an_input_stays() -> None:
    b = Building((2,))
    graph = b.graph(b("Identity", "x0"), b("Identity", "x0"))
    assert_becomes(graph, "Identity", "Identity")


def test_outputs_keep_their_names() -> None:
    b = Building((2, 3))
    y = b("Relu", "x0")
    graph = b.graph(b("Identity", y), b("Dropout", y), y)
    made = optimized(graph)
    assert_same(graph, made)
    b = Building((2, 3))
    y = b("Exp", b("Identity", "x0"))
    made = optimized(b.graph(b("Identity", y)))
    assert [str(node) for node in made.nodes] == ["v2_0 = Exp(x0)"]


def test_unknown_dims_are_left_alone() -> None:
    b = Building(("n", None, 4))
    graph = b.graph(b("Tanh", b("Add", b("Expand", "x0", [1, 1, 4]), 0.0)))
    made = optimized(graph)
    assert_same(graph, made)
    assert operators(without_identities(graph)) == ["Expand", "Tanh"]


def test_transposes_compose() -> None:
    b = Building((2, 3, 4, 5))
    graph = b.graph(b("Transpose", b("Transpose", "x0", perm=NHWC), perm=(3, 0, 1, 2)))
    made = assert_becomes(graph, "Transpose")
    assert made.nodes[0].attributes["perm"] == (1, 0, 2, 3)
    b = Building((2, 3, 4, 5))
    assert_becomes(b.graph(b("Relu", b("Transpose", b("Transpose", "x0", perm=NHWC), perm=NCHW))), "Relu")


def test_a_transpose_of_ones_is_a_reshape() -> None:
    b = Building((2, 7, 1, 1))
    assert_becomes(b.graph(b("Transpose", "x0", perm=NHWC)), "Reshape")
    b = Building(("batch", 7, 1, 1))
    made = assert_becomes(b.graph(b("Flatten", b("Transpose", "x0", perm=NHWC))), "Reshape")
    assert made.constants[made.nodes[0].inputs[1]].tolist() == [-1, 7]


def test_reshapes_compose() -> None:
    b = Building((2, 3, 4, 5))
    x = b("Unsqueeze", b("Flatten", b("Reshape", "x0", [2, 12, 5]), axis=1), [1])
    made = assert_becomes(b.graph(b("Tanh", x)), "Reshape", "Tanh")
    assert made.value(made.nodes[0].outputs[0]).dims == (2, 1, 60)
    b = Building((2, 0, 4))
    assert_becomes(b.graph(b("Reshape", b("Reshape", "x0", [2, 0, 2, 2]), [0, 5, 1], allowzero=1)), "Reshape")


def test_equal_nodes_and_constants() -> None:
    b = Building((2, 3))
    weights = b.random(3, 4)
    x, y = b("MatMul", "x0", weights), b("MatMul", "x0", weights.copy())
    made = shared(b.graph(b("Mul", b("Tanh", x), b("Tanh", y))))
    assert operators(made) == ["MatMul", "Tanh", "Mul"]
    assert len(made.constants) == 1
    b = Building((2, 3))
    x, y = b("RandomUniformLike", "x0"), b("RandomUniformLike", "x0")
    assert operators(shared(b.graph(b("Add", x, y)))) == ["RandomUniformLike"] * 2 + ["Add"]
    b = Building((2, 3))
    graph = b.graph(b("Add", "x0", np.float32(0.0)), b("Add", "x0", np.float32(-0.0)))
    assert len(shared(graph).constants) == 2  # equal, but not the same


def test_concats_compose() -> None:
    b = Building((2, 3), (2, 4))
    graph = b.graph(b("Concat", b("Concat", "x0", "x1", axis=1), "x0", axis=-1))
    assert_becomes(graph, "Concat", "Concat")  # 1 and -1 are compared as they are written
    b = Building((2, 3), (2, 4))
    assert_becomes(b.graph(b("Concat", b("Concat", "x0", "x1", axis=1), "x0", axis=1)), "Concat")


def test_matrices_that_are_repeated_for_a_product() -> None:
    """As PyTorch writes a linear layer of a source whose rows don't lie as one."""
    b = Building((5, 3, 32))
    repeated = b("Expand", b.random(32, 60), [5, 32, 60])
    made = assert_becomes(b.graph(b("MatMul", "x0", repeated)), "MatMul")
    assert [data.shape for data in made.constants.values()] == [(32, 60)]
    b = Building((5, 3, 8), (1, 4, 3))
    assert_becomes(b.graph(b("MatMul", b("Expand", "x1", [5, 4, 3]), "x0")), "MatMul")
    b = Building((10, 3, 32))  # seen as ten matrices, all of them the same
    repeated = b("Expand", b.random(1, 32, 60), [5, 2, 32, 60])
    made = assert_becomes(b.graph(b("MatMul", "x0", b("Reshape", repeated, [10, 32, 60]))), "MatMul")
    assert [data.shape for data in made.constants.values()] == [(1, 32, 60)]
    b = Building((10, 3, 8), (2, 8, 6))  # as ten matrices, of which there are two kinds
    repeated = b("Reshape", b("Expand", "x1", [5, 2, 8, 6]), [10, 8, 6])
    assert_becomes(b.graph(b("MatMul", "x0", repeated)), "Expand", "Reshape", "MatMul")
    b = Building((3, 8), (1, 8, 6))  # the repetition is that of the result
    assert_becomes(b.graph(b("MatMul", "x0", b("Expand", "x1", [5, 8, 6]))), "Expand", "MatMul")
    b = Building((5, 3, 8), (1, 6))  # a row that becomes a matrix
    assert_becomes(b.graph(b("MatMul", "x0", b("Expand", "x1", [5, 8, 6]))), "Expand", "MatMul")


def test_masks_are_not_repeated() -> None:
    """As PyTorch hands one mask to all images and heads: added, or true where it hides."""
    b = Building((2, 3, 40, 40))
    hidden = np.triu(np.ones((1, 1, 40, 40), bool), 1)
    mask = b("Expand", np.where(hidden, np.float32(-np.inf), np.float32(0)), [2, 3, 40, 40])
    scores = b("Where", b("Cast", mask, to=9), -np.inf, "x0")
    made = assert_becomes(b.graph(b("Softmax", scores, axis=-1)), "Where", "Softmax")
    assert sorted(data.shape for data in made.constants.values()) == [(), (1, 1, 40, 40)]
    b = Building((3, 4), (4,))  # a condition that decides about the dims
    graph = b.graph(b("Where", b("Cast", b("Expand", "x1", [2, 3, 4]), to=9), "x0", 0.0))
    assert_becomes(graph, "Cast", "Expand", "Where")


def test_vectors_have_no_axes_of_matrices() -> None:
    b = Building((4,), (4, 5))
    assert_becomes(b.graph(b("MatMul", "x0", b("Expand", "x1", [3, 4, 5]))), "Expand", "MatMul")
    b = Building((5,), (4, 5))
    assert_becomes(b.graph(b("MatMul", b("Expand", "x1", [3, 4, 5]), "x0")), "Expand", "MatMul")


def test_rows_that_are_repeated_and_seen_as_matrices_are_no_repeated_matrices() -> None:
    b = Building((4, 3, 2), (2, 1))
    view = b("Reshape", b("Expand", "x1", [2, 4]), [4, 2, 1])
    assert_becomes(b.graph(b("MatMul", "x0", view)), "Expand", "Reshape", "MatMul")
    b = Building((3, 3, 2), (3, 1))
    view = b("Reshape", b("Expand", "x1", [3, 3]), [3, 3, 1])
    assert_becomes(
        b.graph(b("MatMul", view, b("Slice", "x0", [0], [1], [1]))), "Expand", "Reshape", "Slice", "MatMul"
    )


def test_large_constants_are_repeated_where_nobody_does_without() -> None:
    b = Building((5, 3, 80))
    x, w = b("Expand", b.random(80, 700), [5, 80, 700]), b("Expand", b.random(1, 3, 1), [5, 3, 90000])
    graph = b.graph(b("MatMul", "x0", x), b("Concat", w, w, axis=0))
    assert sorted(operators(inferred(graph))) == ["Concat", "Expand", "Expand", "MatMul"]
    assert operators(inferred(graph, repeat=True)) == ["MatMul"]
    assert_becomes(graph, "MatMul")


def test_filters_that_are_repeated_take_up_what_follows() -> None:
    b = Building((1, 256, 5, 5))
    blur = b("Expand", np.ones((1, 1, 3, 3), np.float32), [256, 1, 3, 3])
    y = b("Conv", "x0", blur, group=256, pads=(1, 1, 1, 1))
    assert_becomes(b.graph(normalization(b, y, 256)), "Conv")


# ---- constants behind an operator


def normalization(b: Building, x: str, channels: int) -> str:
    parameters = [b.random(channels) for _ in range(3)]
    return str(b("BatchNormalization", x, *parameters, np.abs(b.random(channels)) + 0.5))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_batch_normalization_in_convolutions(operator: str, group: int, bias: bool) -> None:
    b = Building((2, 4, 5, 5))
    shape = (6, 4 // group, 3, 3) if operator == "Conv" else (4, 6 // group, 3, 3)
    more = [b.random(6)] if bias else []
    x = b(operator, "x0", b.random(*shape), *more, group=group, pads=(1, 1, 1, 1))
    x = b("Sub", b("Div", normalization(b, x, 6), b.random(6, 1, 1)), b.random(1, 6, 1, 1))
    assert_becomes(b.graph(b("Relu", b("Mul", x, -2.0))), operator, "Relu")


@pytest.mark.parametrize("attributes", [{}, {"transB": 1, "beta": 0.5, "alpha": 2.0}])
@pytest.mark.parametrize("bias", [(), (4,), (1, 4), (1,)])
def test_batch_normalization_in_gemm(attributes: dict[str, Any], bias: tuple[int, ...]) -> None:
    b = Building((2, 3))
    more = [b.random(*bias)] if bias else []
    weights = b.random(3, 4)
    x = b("Gemm", "x0", weights.T.copy() if attributes else weights, *more, **attributes)
    assert_becomes(b.graph(b("Add", normalization(b, x, 4), 1.0)), "Gemm")


def test_products_with_a_bias() -> None:
    b = Building((2, 3))
    assert_becomes(b.graph(b("Mul", b("Add", b.random(4), b("MatMul", "x0", b.random(3, 4))), 2.0)), "Gemm")
    b = Building((2, 5, 3))
    x = b("Add", b("MatMul", "x0", b.random(3, 4)), b.random(4))
    assert_becomes(b.graph(b("Mul", x, b.random(4))), "MatMul", "Add")
    b = Building((2, 5, 3))
    assert_becomes(b.graph(b("Mul", b("MatMul", "x0", b.random(3, 4)), b.random(5, 1))), "MatMul", "Mul")


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("InstanceNormalization", {}),
        ("GroupNormalization", {"num_groups": 2}),
        ("LayerNormalization", {}),
        ("LayerNormalization", {"axis": -2}),
    ],
)
def test_scales_in_normalizations(operator: str, attributes: dict[str, Any]) -> None:
    b = Building((2, 4, 3, 5))
    axes = attributes.get("axis", -1)
    shape = (2, 4, 3, 5)[axes:] if operator == "LayerNormalization" else (4,)
    more = b.random(5) if operator == "LayerNormalization" else b.random(4, 1, 1)
    x = b(operator, "x0", b.random(*shape), b.random(*shape), **attributes)
    assert_becomes(b.graph(b("Add", b("Mul", x, more), more)), operator)


def test_what_is_not_by_channel_stays() -> None:
    b = Building((2, 4, 3, 3))
    x = b("Conv", "x0", b.random(4, 4, 1, 1))
    assert_becomes(b.graph(b("Mul", x, b.random(3, 3))), "Conv", "Mul")
    b = Building((2, 4, 3, 3))
    x = b("Conv", "x0", b.random(4, 4, 1, 1))
    assert_becomes(b.graph(b("Mul", x, b.random(4, 1, 1)), x), "Conv", "Mul")  # read twice
    b = Building((2, 4, 3, 3))
    assert_becomes(b.graph(b("Relu", normalization(b, "x0", 4))), "BatchNormalization", "Relu")
    b = Building((2, 4, 3, 3), (4, 4, 1, 1))
    assert_becomes(b.graph(normalization(b, b("Conv", "x0", "x1"), 4)), "Conv", "BatchNormalization")
    b = Building((2, 4, 3, 3))
    x = b("Conv", "x0", b.random(1, 4, 1, 1))
    assert_becomes(b.graph(b("Add", x, b.random(5, 1, 1))), "Conv", "Add")  # the sum is larger


def test_infinite_constants_stay() -> None:
    b = Building((2, 3))
    x = b("MatMul", "x0", np.full((3, 3), 3e38, np.float32))
    graph = b.graph(b("Mul", x, 1e3))
    assert operators(with_affine_absorbed(graph)) == ["MatMul", "Mul"]


# ---- functions that are written out


def written(b: Building, name: str, x: str) -> str:
    """A function as some exporter writes it."""
    if name == "gelu: torch":
        e = b("Add", b("Erf", b("Div", x, math.sqrt(2))), 1.0)
        return str(b("Mul", b("Mul", x, e), 0.5))
    if name == "gelu: keras":
        e = b("Add", 1.0, b("Erf", b("Mul", x, math.sqrt(0.5))))
        return str(b("Mul", b("Mul", 0.5, x), e))
    if name == "gelu: halves":
        return str(b("Mul", x, b("Add", b("Mul", b("Erf", b("Div", x, math.sqrt(2))), 0.5), 0.5)))
    if name == "gelu: tanh":
        inner = b("Mul", b("Add", x, b("Mul", b("Pow", x, 3.0), 0.044715)), math.sqrt(2 / math.pi))
        return str(b("Mul", b("Mul", x, 0.5), b("Add", b("Tanh", inner), 1.0)))
    if name == "gelu: tanh of products":
        inner = b("Mul", x, b("Add", b("Mul", b("Mul", x, x), 0.035677408136300125), 0.7978845608028654))
        return str(b("Mul", x, b("Mul", 0.5, b("Add", 1.0, b("Tanh", inner)))))
    if name == "swish":
        return str(b("Mul", x, b("Sigmoid", x)))
    if name == "swish: division":
        return str(b("Div", x, b("Add", b("Exp", b("Neg", x)), 1.0)))
    if name == "swish: clip's":
        return str(b("Mul", b("Sigmoid", b("Mul", x, 1.702)), x))
    if name == "hardswish":
        return str(b("Mul", b("HardSigmoid", x, alpha=1 / 6, beta=0.5), x))
    if name == "hardswish: clip":
        return str(b("Div", b("Mul", x, b("Clip", b("Add", x, 3.0), 0.0, 6.0)), 6.0))
    if name == "hardsigmoid":
        return str(b("Div", b("Clip", b("Add", x, 3.0), 0.0, 6.0), 6.0))
    if name == "mish":
        return str(b("Mul", x, b("Tanh", b("Softplus", x))))
    if name == "relu6":
        return str(b("Min", b("Max", x, 0.0), 6.0))
    assert name == "leaky"
    return str(b("Max", x, b("Mul", x, 0.1)))


@pytest.mark.parametrize(
    ("name", "operator", "attributes"),
    [
        ("gelu: torch", "Gelu", {}),
        ("gelu: keras", "Gelu", {}),
        ("gelu: halves", "Gelu", {}),
        ("gelu: tanh", "Gelu", {"approximate": "tanh"}),
        ("gelu: tanh of products", "Gelu", {"approximate": "tanh"}),
        ("swish", "Swish", {}),
        ("swish: division", "Swish", {}),
        ("swish: clip's", "Swish", {"alpha": 1.702}),
        ("hardswish", "HardSwish", {}),
        ("hardswish: clip", "HardSwish", {}),
        ("hardsigmoid", "HardSigmoid", {"alpha": 0.1666667, "beta": 0.5}),
        ("mish", "Mish", {}),
        ("relu6", "Clip", {}),
        ("leaky", "LeakyRelu", {"alpha": 0.1}),
    ],
)
def test_activations(name: str, operator: str, attributes: dict[str, Any]) -> None:
    b = Building((2, 3, 50))
    x = b("MatMul", "x0", b.random(50, 50))
    made = assert_becomes(b.graph(written(b, name, x)), "MatMul", operator)
    assert made.nodes[-1].attributes == attributes


def test_what_only_looks_like_an_activation() -> None:
    b = Building((2, 50))
    e = b("Add", b("Erf", b("Div", "x0", 1.4)), 1.0)  # not the root of 2
    made = optimized(b.graph(b("Mul", b("Mul", "x0", e), 0.5)))
    assert "Gelu" not in operators(made)
    b = Building((2, 50))
    s = b("Sigmoid", "x0")
    assert_becomes(b.graph(b("Mul", "x0", s), s), "Sigmoid", "Mul")  # the gate is read elsewhere
    b = Building((2, 50), (2, 50))
    assert_becomes(b.graph(b("Mul", "x1", b("Sigmoid", "x0"))), "Sigmoid", "Mul")
    b = Building((2, 1))
    e = b("Sigmoid", b("Add", "x0", np.zeros(3, np.float32)))
    made = optimized(b.graph(b("Mul", "x0", e)))
    assert_same(b.graph(), made)
    assert "Swish" not in operators(made)
    b = Building((2, 50))
    x = b("Mul", "x0", b("Sigmoid", "x0"))
    assert "Swish" in operators(optimized(b.graph(b("Min", x, 40.0))))
    b = Building((50,))
    b.inputs = (Value("x0", (50,), np.dtype("float16")),)
    made = optimized(b.graph(b("Mul", "x0", b("Sigmoid", "x0"))))
    assert operators(made) == ["Sigmoid", "Mul"]  # f16 tells functions apart too badly


# ---- normalisations that are written out


def layer_normalization(b: Building, x: str, axes: list[int], how: str) -> str:
    d = b("Sub", x, b("ReduceMean", x, axes))
    square = b("Mul", d, d) if how == "reciprocal" else b("Pow", d, 2.0)
    variance = b("Add", b("ReduceMean", square, axes), 1e-5)
    if how == "power":
        return str(b("Mul", d, b("Pow", variance, -0.5)))
    root = b("Sqrt", variance) if how != "half" else b("Pow", variance, 0.5)
    if how == "reciprocal":
        return str(b("Mul", b("Reciprocal", root), d))
    return str(b("Div", d, root))


@pytest.mark.parametrize("how", ["division", "reciprocal", "power", "half"])
@pytest.mark.parametrize("axes", [[-1], [2], [1, 2]])
def test_layer_normalization(how: str, axes: list[int]) -> None:
    b = Building((2, 3, 8))
    x = layer_normalization(b, "x0", axes, how)
    made = assert_becomes(b.graph(b("Add", b("Mul", x, b.random(8)), b.random(8))), "LayerNormalization")
    assert made.nodes[0].attributes == {"axis": -len(axes), "epsilon": pytest.approx(1e-5)}
    b = Building((2, 3, 8), (8,), (8,))
    x = layer_normalization(b, "x0", [-1], how)
    assert_becomes(b.graph(b("Add", b("Mul", x, "x1"), "x2")), "LayerNormalization")


def test_rms_normalization() -> None:
    b = Building((2, 3, 8))
    mean = b("ReduceMean", b("Pow", "x0", 2.0), [-1])
    x = b("Mul", "x0", b("Reciprocal", b("Sqrt", b("Add", mean, 1e-6))))
    assert_becomes(b.graph(b("Mul", b.random(8), x)), "RMSNormalization")


def test_instance_and_group_normalization() -> None:
    b = Building((2, 4, 5, 5))
    x = layer_normalization(b, "x0", [2, 3], "division")
    assert_becomes(b.graph(b("Mul", x, b.random(4, 1, 1))), "InstanceNormalization")
    b = Building((2, 6, 5, 5))
    x = b("InstanceNormalization", b("Reshape", "x0", [0, 2, -1]), b.random(2), b.random(2))
    x = b("Reshape", x, [2, 6, 5, 5])
    made = assert_becomes(
        b.graph(b("Add", b("Mul", x, b.random(6, 1, 1)), b.random(6, 1, 1))), "GroupNormalization"
    )
    assert made.nodes[0].attributes["num_groups"] == 2


def test_what_only_looks_like_a_normalization() -> None:
    b = Building((2, 3, 8))
    d = b("Sub", "x0", b("ReduceMean", "x0", [1]))
    variance = b("ReduceMean", b("Pow", d, 2.0), [2])
    made = optimized(b.graph(b("Div", d, b("Sqrt", b("Add", variance, 1e-5)))))
    assert_same(b.graph(), made)
    assert "LayerNormalization" not in operators(made)  # what is subtracted is another mean


@pytest.mark.parametrize("axis", [1, -1])
def test_softmax(axis: int) -> None:
    b = Building((2, 3, 8))
    e = b("Exp", b("Sub", "x0", b("ReduceMax", "x0", [axis])))
    made = assert_becomes(b.graph(b("Div", e, b("ReduceSum", e, [axis]))), "Softmax")
    assert made.nodes[0].attributes["axis"] == axis % 3


def test_norms() -> None:
    b = Building((2, 8))
    norm = b("Sqrt", b("ReduceSum", b("Pow", "x0", 2.0), [1]))
    x = b("Div", "x0", b("Expand", b("Clip", norm, 1e-12), [2, 8]))
    assert_becomes(b.graph(x), "ReduceL2", "Clip", "Div")


def test_means_over_pixels() -> None:
    b = Building((2, 3, 4, 5))
    assert_becomes(b.graph(b("ReduceMean", "x0", [-2, 3])), "GlobalAveragePool")
    b = Building((2, 3, 4, 5))
    assert_becomes(b.graph(b("ReduceMean", "x0", [2, 3], keepdims=0)), "GlobalAveragePool", "Flatten")
    b = Building((2, 3, 4, 5))
    assert_becomes(b.graph(b("AveragePool", "x0", kernel_shape=(4, 5))), "GlobalAveragePool")
    for axes in ([1, 2], [3]):
        b = Building((2, 3, 4, 5))
        assert_becomes(b.graph(b("ReduceMean", "x0", axes)), "ReduceMean")


# ---- quantisation


def test_requantization() -> None:
    scale, zero = np.float32([0.1, 0.2, 0.3]), np.uint8([3, 0, 200])
    x = Value("x", (256, 3), np.dtype("uint8"))
    there = Node("DequantizeLinear", ("x", "scale", "zero"), ("a",))
    back = Node("QuantizeLinear", ("a", "scale", "zero"), ("b",))
    graph = Graph((x,), ("y",), (there, back, Node("Not", ("b",), ("y",))), {"scale": scale, "zero": zero})
    graph = graph.replaced(nodes=(there, back, Node("Max", ("b", "b"), ("y",))))
    made = optimized(graph)
    assert operators(made) == ["Max"]
    given = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    assert np.array_equal(evaluate(graph, given)[0], evaluate(made, given)[0])
    other = graph.replaced(constants={"scale": scale, "zero": zero, "other": np.float32([0.1, 0.2, 0.4])})
    other = other.replaced(
        nodes=(there, Node("QuantizeLinear", ("a", "other", "zero"), ("b",)), graph.nodes[2])
    )
    assert operators(optimized(other)) == ["DequantizeLinear", "QuantizeLinear", "Max"]


def test_quantised_constants_stay_small() -> None:
    b = Building((2, 3))
    weights = b("QuantizeLinear", b.random(3, 4), 0.05, np.array(0, np.int8))
    b("MatMul", "x0", b("DequantizeLinear", weights, 0.05, np.array(0, np.int8)))
    made = assert_becomes(b.graph(), "DequantizeLinear", "MatMul")
    assert max(data.nbytes for data in made.constants.values()) == 12


# ---- Transposes


def convolution(
    b: Building, x: str, channels: int, *, pads: tuple[int, ...] = (1, 1, 1, 1), to: int = 4
) -> str:
    """As NHWC converters write it."""
    made = b("Conv", b("Transpose", x, perm=NCHW), b.random(to, channels, 3, 3), b.random(to), pads=pads)
    return str(b("Transpose", made, perm=NHWC))


def test_networks_of_nhwc_converters() -> None:
    b = Building((1, 3, 8, 8))
    x = b("Transpose", "x0", perm=NHWC)
    x = b("Relu", convolution(b, x, 3))
    for _ in range(3):
        y = convolution(b, b("Clip", b("Mul", convolution(b, x, 4), b.random(4)), 0.0, 6.0), 4)
        gate = b("Sigmoid", b("ReduceMean", y, [1, 2]))
        x = b("Relu", b("Add", x, b("Mul", y, gate)))
    x = b("Concat", x, b("Softmax", x, axis=3), axis=-1)
    x = b("Pad", x, [0, 1, 0, 0, 0, 0, 1, 0])
    a, c = b("Split", x, [3, 5], axis=3, outputs=2)
    x = b(
        "Concat",
        b("Slice", c, [0], [4], [-1]),
        b("Transpose", b("MaxPool", b("Transpose", a, perm=NCHW), kernel_shape=(1, 1)), perm=NHWC),
        axis=3,
    )
    x = b("Add", x, b.random(7))
    x = b("ReduceMean", x, [1, 2], keepdims=0)
    graph = b.graph(b("MatMul", x, b.random(7, 5)))
    made = optimized(graph)
    assert_same(graph, made)
    assert "Transpose" not in operators(made), str(made)
    assert "GlobalAveragePool" in operators(made)


def test_a_channels_last_input_needs_one_transpose() -> None:
    b = Building((1, 8, 8, 3))
    x = convolution(b, b("Div", b("Sub", "x0", b.random(3)), b.random(3)), 3)
    x = b("Add", x, convolution(b, x, 4))
    graph = b.graph(b("ReduceMax", x, [1, 2], keepdims=0))
    made = optimized(graph)
    assert_same(graph, made)
    assert operators(made).count("Transpose") == 1


def test_channels_last_outputs_and_inner_readers() -> None:
    b = Building((1, 3, 8, 8))
    x = b("Transpose", "x0", perm=NHWC)
    y = b("Relu", convolution(b, x, 3))
    z = convolution(b, y, 4)
    flat = b("Reshape", b("Add", y, z), [1, 64, 4])
    graph = b.graph(b("Tanh", flat), y)
    made = optimized(graph)
    assert_same(graph, made)
    assert operators(made).count("Transpose") == 2  # the output y, and what is flattened


def test_outputs_that_become_transposes_are_known() -> None:
    """Their data types and the names of their open sizes go into the file that is written."""
    b = Building(("N", 5, 14, 14))
    turned = b("Transpose", "x0", perm=(2, 1, 0, 3))
    graph = b.graph(b("MatMul", turned, b.random(14, 4)), b("Add", "x0", 1.0))
    made = optimized(graph)
    assert operators(made).count("Transpose") == 1
    assert [str(value).partition(" ")[2] for value in made.outputs] == ["f32 14x5xNx4", "f32 Nx5x14x14"]


@pytest.mark.parametrize(
    ("mode", "order", "moves"),
    [
        ("linear", NHWC, True),
        ("cubic", NHWC, False),
        ("linear", (2, 0, 3, 1), False),
        ("nearest", (2, 0, 3, 1), True),
    ],
)
def test_images_are_resized_where_runtimes_can(mode: str, order: tuple[int, ...], moves: bool) -> None:
    """Channels lie before the sizes or behind them; nothing but nearest neighbours goes in other orders."""
    b = Building((2, 3, 5, 7))
    resized = b("Resize", "x0", "", "", [2, 3, 10, 14], mode=mode)
    graph = b.graph(b("Relu", b("Transpose", resized, perm=order)))
    made = operators(optimized(graph))
    assert made.index("Transpose") < made.index("Resize") if moves else made.index("Resize") == 0


def test_residuals_take_the_order_of_what_is_no_view() -> None:
    """All Transposes but those beside convolutions go, where that makes no more of them."""
    b = Building((1, 4, 8, 8))
    x = b("Conv", "x0", b.random(4, 4, 1, 1))
    for _ in range(2):
        y = b("Transpose", b("Conv", x, b.random(4, 4, 1, 1)), perm=NHWC)
        y = b("MatMul", b("LayerNormalization", y, b.random(4)), b.random(4, 4))
        x = b("Add", x, b("Transpose", y, perm=NCHW))
    graph = b.graph(b("LayerNormalization", b("Transpose", x, perm=NHWC), b.random(4)))
    made = optimized(graph)
    assert_same(graph, made)
    assert operators(made).count("Transpose") <= 5
    by = {name: node for node in made.nodes for name in node.outputs}
    for node in made.nodes:
        if node.operator == "Add":
            turned = [by[name] for name in node.inputs if by[name].operator == "Transpose"]
            assert all(by[one.inputs[0]].operator == "Conv" for one in turned)


def test_attention_keeps_its_transposes() -> None:
    b = Building((2, 5, 8))
    heads = [
        b("Transpose", b("Reshape", b("MatMul", "x0", b.random(8, 8)), [0, 0, 2, 4]), perm=(0, 2, 1, 3))
        for _ in range(3)
    ]
    q, k, v = heads
    s = b("Div", b("MatMul", q, b("Transpose", k, perm=(0, 1, 3, 2))), 2.0)
    s = b("Softmax", b("Add", s, b.random(5, 5)), axis=-1)
    s = b("Where", b("IsNaN", s), 0.0, s)
    x = b("Reshape", b("Transpose", b("MatMul", s, v), perm=(0, 2, 1, 3)), [0, 0, 8])
    graph = b.graph(x)
    made = optimized(graph)
    assert_same(graph, made)
    assert operators(made).count("Transpose") == 4
    chains = [n.attributes["graph"] for n in fused(made).nodes if n.operator == "relayout.Fused"]
    assert ["Softmax", "IsNaN", "Where"] in [operators(one) for one in chains]
    assert ["MatMul", "Mul", "Add"] in [operators(one) for one in chains]
    assert_same(graph, fused(made))


def test_channel_shuffle_stays() -> None:
    b = Building((1, 6, 4, 4))
    x = b("Transpose", b("Reshape", "x0", [1, 2, 3, 4, 4]), perm=(0, 2, 1, 3, 4))
    graph = b.graph(b("Relu", b("Reshape", x, [1, 6, 4, 4])))
    assert_becomes(graph, "Reshape", "Transpose", "Reshape", "Relu")


# ---- chains


def test_a_residual_block() -> None:
    b = Building((1, 4, 6, 6))
    y = b("Relu", b("Conv", "x0", b.random(4, 4, 3, 3), b.random(4), pads=(1, 1, 1, 1)))
    y = b("Conv", y, b.random(4, 4, 3, 3), pads=(1, 1, 1, 1))
    down = b("Conv", "x0", b.random(4, 4, 1, 1))
    graph = b.graph(b("Relu", b("Add", y, down)))
    made = fused(graph)
    assert_same(graph, made)
    assert operators(made) == ["relayout.Fused", "Conv", "relayout.Fused"]
    inner = made.nodes[-1].attributes["graph"]
    assert operators(inner) == ["Conv", "Add", "Relu"]
    assert inner.nodes[0].outputs[0] == inner.nodes[1].inputs[1]  # the one that is computed last
    assert made.nodes[-1].inputs == tuple(value.name for value in inner.inputs)


def test_scalars_are_inside_and_weights_outside() -> None:
    b = Building((2, 3, 6))
    x = b("Add", b("MatMul", "x0", b.random(6, 4)), b.random(4))
    graph = b.graph(b("Clip", b("Mul", x, 0.5), -1.0, 1.0))
    made = fused(graph)
    assert operators(made) == ["relayout.Fused"]
    inner = made.nodes[0].attributes["graph"]
    assert sorted(data.size for data in inner.constants.values()) == [1, 1, 1]
    assert sorted(data.size for data in made.constants.values()) == [4, 24]
    assert_same(graph, made)
    assert operators(unfused(made)) == ["MatMul", "Add", "Mul", "Clip"]
    known = inferred(made.replaced(values={}))
    assert known.value(made.results[0]).dims == (2, 3, 4)


@pytest.mark.parametrize("shape", [(2, 1), (5, 3, 4), (1, 2, 1, 1)])
def test_chains_end_where_the_other_operand_is_larger(shape: tuple[int, ...]) -> None:
    b = Building((1, 3, 4), shape) if shape != (2, 1) else Building((1, 3, 1), (2, 1, 4))
    x = b("Relu", b("MatMul", "x0", b.random(b.inputs[0].dims[-1], b.inputs[0].dims[-1])))  # type: ignore[index, arg-type]
    graph = b.graph(b("Tanh", b("Add", x, "x1")))
    made = fused(graph)
    assert_same(graph, made)
    assert [operators(n.attributes["graph"]) for n in made.nodes] == [["MatMul", "Relu"], ["Add", "Tanh"]]


def test_values_in_another_order_keep_their_dims() -> None:
    """The next pass asks for them before anybody infers again."""
    b = Building((2, 3, 4))
    turned = b("Transpose", "x0", perm=(0, 2, 1))
    made = b("Tanh", b("Softmax", turned, axis=1))
    graph = b.graph(b("Transpose", made, perm=(0, 2, 1)))
    after = transposes_moved(graph)
    assert operators(after) == ["Softmax", "Tanh"]
    assert [after.value(node.outputs[0]).dims for node in after.nodes] == [(2, 3, 4)] * 2
    assert_same(graph, after)


def test_nodes_that_make_no_chain() -> None:
    b = Building((2, 3))
    x = b("MatMul", "x0", b.random(3, 3))
    assert fused(b.graph(b("Relu", x), x)).nodes[0].operator == "MatMul"  # the product is an output
    b = Building((2, 3))
    x = b("MatMul", "x0", b.random(3, 3))
    assert "relayout.Fused" not in operators(fused(b.graph(b("Div", 1.0, x))))
    b = Building((2, 3))
    x = b("MatMul", "x0", b.random(3, 3))
    assert "relayout.Fused" not in operators(fused(b.graph(b("Mul", x, x))))


# ---- the whole


def test_bad_dims_name_the_node() -> None:
    b = Building((2, 3))
    nodes = (Node("MatMul", ("x0", "w"), ("y",), {}, "the product"),)
    graph = Graph(b.inputs, ("y",), nodes, {"w": np.zeros((4, 5), np.float32)})
    with pytest.raises(LayoutError, match="the product"):
        optimized(graph)


def test_graphs_within_nodes() -> None:
    def branch(*operators: str) -> Graph:
        names = ["x", *(f"v{i}" for i in range(len(operators)))]
        nodes = (Node(o, (a,), (b,)) for o, a, b in zip(operators, names, names[1:], strict=False))
        return Graph((Value("x"),), (names[-1],), tuple(nodes))

    attributes = {
        "then_branch": branch("Identity", "Relu", "Relu"),
        "else_branch": branch("Dropout", "Tanh"),
        "captured": 1,
    }
    inputs = Value("c", (), np.dtype(bool)), Value("x", (3,), F32)
    graph = Graph(inputs, ("y",), (Node("If", ("c", "x"), ("y",), attributes),))
    made = optimized(graph)
    node = made.nodes[0]
    assert [operators(node.attributes[name]) for name in ("then_branch", "else_branch")] == [
        ["Relu"],
        ["Tanh"],
    ]
    x = np.float32([-1, 0, 2])
    for condition in (np.array(True), np.array(False)):
        assert np.array_equal(evaluate(graph, condition, x)[0], evaluate(made, condition, x)[0])


def test_empty_graphs() -> None:
    x = Value("x", (2,), F32)
    graph = Graph((x,), ("x",), ())
    assert optimized(graph).results == ("x",)
    assert fused(graph) is graph
    assert log(graph) == ()


def exported(module: Any, *shapes: tuple[int, ...], opset: int) -> Graph:
    """The graph of a module of PyTorch, by way of ONNX."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from relayout.importers.onnx import read

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = tuple(torch.zeros(shape) for shape in shapes)
        torch.onnx.export(
            module.eval(), arguments, file, opset_version=opset, dynamo=False, do_constant_folding=False
        )
    return inferred(read(file.getvalue()))


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("GELU", (2, 8), ["Gelu"]),
        ("SiLU", (2, 8), ["Swish"]),
        ("Hardswish", (2, 8), ["HardSwish"]),
        ("Mish", (2, 8), ["Mish"]),
        ("LayerNorm", (2, 8), ["LayerNormalization"]),
        ("GroupNorm", (2, 8, 4, 4), ["GroupNormalization"]),
        ("AdaptiveAvgPool2d", (2, 8, 4, 4), ["GlobalAveragePool"]),
        ("linear", (2, 5, 8), ["MatMul", "Add"]),
        (
            "convolutions",
            (2, 3, 8, 8),
            ["Conv", "ConvTranspose", "Clip", "GlobalAveragePool", "Flatten", "Gemm"],
        ),
    ],
)
def test_modules_of_pytorch(name: str, shape: tuple[int, ...], wanted: list[str], opset: int) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    makers: dict[str, Any] = {
        "LayerNorm": lambda: nn.LayerNorm(8),
        "GroupNorm": lambda: nn.GroupNorm(2, 8),
        "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d(1),
        "linear": lambda: nn.Linear(8, 4),
        "convolutions": lambda: nn.Sequential(
            *(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 2, groups=2)),
            *(nn.BatchNorm2d(6), nn.ReLU6(), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            *(nn.Linear(6, 4), nn.BatchNorm1d(4)),
        ),
    }
    torch.manual_seed(0)
    module = makers.get(name, getattr(nn, name, None))()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    for one in module.modules():
        if isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(one.running_mean)
            nn.init.uniform_(one.running_var, 0.5, 2)
    assert_becomes(exported(module, shape, opset=opset), *wanted)


def test_equal_constants_are_found_whatever_their_strides() -> None:
    """A transposed weight is not copied to be looked at, and is still known to be equal."""
    data = np.arange(48, dtype=np.float32).reshape(6, 8)
    nodes = (Node("Add", ("x", "a"), ("y",)), Node("Mul", ("y", "b"), ("z",)))
    turned = np.asfortranarray(data)
    graph = Graph((Value("x"),), ("z",), nodes, {"a": data, "b": turned})
    assert [node.inputs[1] for node in shared(graph).nodes] == ["a", "a"]
    changed = turned.copy(order="F")
    changed[0, 0] = 1
    graph = Graph((Value("x"),), ("z",), nodes, {"a": data, "b": changed})
    assert [node.inputs[1] for node in shared(graph).nodes] == ["a", "b"]
    for empty in (np.float32(2).reshape(()), np.empty((0, 3), np.float32)):
        graph = Graph((Value("x"),), ("z",), nodes, {"a": empty, "b": empty.copy()})
        assert [node.inputs[1] for node in shared(graph).nodes] == ["a", "a"]


def test_large_constants_are_not_copied_to_be_compared() -> None:
    data = np.zeros((1024, 1024), np.float32).T
    graph = Graph((Value("x"),), ("y",), (Node("Add", ("x", "a"), ("y",)),), {"a": data})
    tracemalloc.start()
    try:
        shared(graph)
        assert tracemalloc.get_traced_memory()[1] < data.nbytes // 8
    finally:
        tracemalloc.stop()
