"""Operators of ONNX Runtime's own against ONNX Runtime; models that its optimisers and quantisers write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relayout.errors import LayoutError, Unsupported
from relayout.graph.inference import inferred

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from relayout.importers.onnx import read  # noqa: E402
from relayout.importers.onnx.microsoft import RULES  # noqa: E402

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(5)
F32, U8, S8 = np.float32, np.uint8, np.int8


def real(*dims: int) -> Array:
    return RANDOM.standard_normal(dims).astype(F32)


def byte(*dims: int, kind: Any = U8) -> Array:
    limits = np.iinfo(kind)
    return RANDOM.integers(limits.min, limits.max + 1, dims).astype(kind)


def narrow(*dims: int) -> Array:
    """Weights of 7 bits: the runtime saturates sums of two products where a processor has only those."""
    return byte(*dims, kind=S8) // 2


def scale(number: float) -> Array:
    return np.asarray(number, F32)


def zero(number: int, kind: Any = U8) -> Array:
    return np.asarray(number, kind)


QX = (byte(2, 3, 4, 4), scale(0.02), zero(120))
QY = (byte(2, 3, 4, 4), scale(0.03), zero(110))
OUT = (scale(0.05), zero(128))
QOUT = (scale(0.02), zero(3))
IMAGE = real(1, 4, 6, 6)
FILTER = real(8, 4, 3, 3)
CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
ROWS = real(2, 5, 8)
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], int]] = [
    ("FusedConv", (IMAGE, FILTER, real(8)), {**CONV, "activation": "Relu"}, 1),
    ("FusedConv", (IMAGE, FILTER, real(8), real(1, 8, 6, 6)), {**CONV, "activation": "Relu"}, 1),
    ("FusedConv", (IMAGE, FILTER), {**CONV, "activation": "LeakyRelu", "activation_params": [0.2]}, 1),
    ("FusedConv", (IMAGE, FILTER), {**CONV, "activation": "Clip", "activation_params": [-0.5, 0.5]}, 1),
    ("FusedConv", (IMAGE, FILTER), {**CONV, "activation": "HardSigmoid", "activation_params": [0.3, 0.4]}, 1),
    ("FusedGemm", (real(3, 4), real(4, 5), real(5)), {"activation": "Relu", "alpha": 0.5}, 1),
    (
        "FusedGemm",
        (real(3, 4), real(5, 4)),
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1},
        1,
    ),
    ("FusedMatMul", (real(2, 3, 4), real(2, 5, 4)), {"transB": 1, "alpha": 0.25}, 1),
    ("FusedMatMul", (real(2, 4, 3), real(4, 5)), {"transA": 1}, 1),
    ("Gelu", (ROWS,), {}, 1),
    ("BiasGelu", (ROWS, real(8)), {}, 1),
    ("FastGelu", (ROWS,), {}, 1),
    ("FastGelu", (ROWS, real(8)), {}, 1),
    ("QuickGelu", (ROWS,), {}, 1),
    ("QuickGelu", (ROWS,), {"alpha": 1.5}, 1),
    ("SkipLayerNormalization", (ROWS, real(2, 5, 8), real(8), real(8)), {"epsilon": 1e-5}, 1),
    ("SkipLayerNormalization", (ROWS, real(2, 5, 8), real(8)), {}, 1),
    ("SkipLayerNormalization", (ROWS, real(2, 5, 8), real(8), real(8), real(8)), {}, 4),
    ("SkipSimplifiedLayerNormalization", (ROWS, real(2, 5, 8), real(8)), {"epsilon": 1e-6}, 4),
    (
        "EmbedLayerNormalization",
        (
            RANDOM.integers(0, 9, (2, 5)).astype(np.int32),
            RANDOM.integers(0, 2, (2, 5)).astype(np.int32),
            *(real(9, 8), real(7, 8), real(2, 8), real(8), real(8)),
        ),
        {},
        2,
    ),
    ("Attention", (ROWS, real(8, 24), real(24)), {"num_heads": 2}, 1),
    ("Attention", (ROWS, real(8, 24), real(24)), {"num_heads": 4, "unidirectional": 1}, 1),
    (
        "Attention",
        (ROWS, real(8, 24), real(24), np.int32([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])),
        {"num_heads": 2},
        1,
    ),
    ("Attention", (ROWS, real(8, 20), real(20)), {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}, 1),
    ("MultiHeadAttention", (ROWS, real(2, 4, 8), real(2, 4, 8)), {"num_heads": 2}, 1),
    ("MultiHeadAttention", (ROWS, real(2, 4, 8), real(2, 4, 8), real(24)), {"num_heads": 4, "scale": 0.3}, 1),
    (
        "MultiHeadAttention",
        (ROWS, real(2, 4, 8), real(2, 4, 8), None, np.int32([[1, 1, 1, 0], [1, 0, 0, 0]])),
        {"num_heads": 2},
        1,
    ),
    ("QLinearAdd", (*QX, *QY, *OUT), {}, 1),
    ("QLinearMul", (*QX, *QY, *OUT), {}, 1),
    ("QLinearSigmoid", (*QX, scale(1 / 256), zero(0)), {}, 1),
    ("QLinearLeakyRelu", (*QX, *QOUT), {"alpha": 0.1}, 1),
    ("QLinearSoftmax", (*QX, scale(1 / 256), zero(0)), {"axis": -1, "opset": 13}, 1),
    ("QLinearGlobalAveragePool", (*QX, *OUT), {"channels_last": 0}, 1),
    ("QLinearGlobalAveragePool", (*QX, *OUT), {"channels_last": 1}, 1),
    ("QLinearAveragePool", (*QX, *OUT), {**POOL}, 1),
    ("QLinearAveragePool", (*QX, *OUT), {**POOL, "channels_last": 1}, 1),
    ("QLinearConcat", (*OUT, *QX, *QY), {"axis": 1}, 1),
    ("QGemm", (byte(3, 4), scale(0.02), zero(9), narrow(4, 5), scale(0.03), zero(0, S8)), {}, 1),
    (
        "QGemm",
        (
            *(byte(3, 4), scale(0.02), zero(9), narrow(5, 4), scale(0.03), zero(0, S8)),
            *(RANDOM.integers(-99, 99, 5).astype(np.int32), scale(0.1), zero(120)),
        ),
        {"transB": 1, "alpha": 0.5},
        1,
    ),
    (
        "MatMulIntegerToFloat",
        (byte(3, 4), byte(4, 5, kind=S8), scale(0.1), real(5) ** 2, zero(7), byte(5, kind=S8), real(5)),
        {},
        1,
    ),
    ("DynamicQuantizeMatMul", (real(3, 4), byte(4, 5, kind=S8), scale(0.1), zero(3, S8), real(5)), {}, 1),
    ("DynamicQuantizeMatMul", (real(3, 4), byte(4, 5, kind=U8), scale(0.1), zero(3)), {}, 1),
    ("NhwcMaxPool", (byte(1, 6, 6, 4, kind=U8),), POOL, 1),
    ("QuantizeLinear", (real(3, 4) * 9, real(4) ** 2 + 1, byte(4)), {"axis": 1}, 1),
    ("DequantizeLinear", (byte(3, 4), scale(0.1), zero(7)), {}, 1),
    ("Trilu", (real(4, 4),), {"upper": 0}, 1),
    ("Range", (np.asarray(1, F32), np.asarray(9, F32), np.asarray(2, F32)), {}, 1),
]


def model(
    operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any], outputs: int, fixed: bool
) -> Any:
    names = [f"x{i}" if one is not None else "" for i, one in enumerate(inputs)]
    results = [f"y{i}" if i in (0, 3) or outputs == 2 else "" for i in range(outputs)]
    given = {name: one for name, one in zip(names, inputs, strict=True) if name}
    constants = dict(list(given.items())[1:]) if fixed else {}
    node = helper.make_node(operator, names, results, "the_node", domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
            for name, one in given.items()
            if name not in constants
        ],
        [helper.make_empty_tensor_value_info(name) for name in results if name],
        [numpy_helper.from_array(one, name) for name, one in constants.items()],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=imports)
    made.ir_version = 9
    return made


def expected(proto: Any, feeds: dict[str, Array]) -> list[Array]:
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def agrees(proto: Any, feeds: dict[str, Array], atol: float = 1e-5) -> None:
    graph = read(proto)
    given = [feeds[value.name] for value in graph.inputs]
    for one in (graph, inferred(graph)):
        for got, other in zip(one.evaluate(*given), expected(proto, feeds), strict=True):
            assert (got.shape, got.dtype) == (other.shape, other.dtype)
            if other.dtype.kind in "iu":  # a value between two integers may be rounded either way
                assert np.abs(got.astype(int) - other.astype(int)).max() <= 1
                assert (got == other).mean() > 0.9
            else:
                np.testing.assert_allclose(got, other, 1e-4, atol)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "outputs"),
    CASES,
    ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)],
)
def test_operators_of_the_runtime(
    operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any], outputs: int
) -> None:
    fixed = operator.startswith("Q")  # their scales are constants
    proto = model(operator, inputs, attributes, outputs, fixed)
    first = {f"x{i}": one for i, one in enumerate(inputs) if one is not None}
    agrees(proto, {value.name: first[value.name] for value in proto.graph.input})


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits(bits: int, zeros: bool) -> None:
    n, k, block = 6, 40, 16
    blocks = -(-k // block)
    weights = byte(n, blocks, block * bits // 8)
    inputs = [real(3, k), weights, np.abs(real(n * blocks)) + F32(0.1)]
    if zeros:
        inputs.append(byte(n * -(-blocks * bits // 8)))
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    proto = model("MatMulNBits", tuple(inputs), attributes, 1, True)
    agrees(proto, {"x0": inputs[0]}, 1e-2)


@pytest.mark.parametrize("bits", [4, 8])
def test_an_accuracy_level_permits_to_round_the_source(bits: int) -> None:
    """Level 4 is a permission to round it to 8 bits, which kernels use unless f32 is asked for."""
    n, k, block = 48, 128, 32
    weights, scales = byte(n, k // block, block * bits // 8), np.abs(real(n * k // block)) + F32(0.1)
    inputs = (real(3, k), weights, scales)
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    found = {}
    for level in (0, 1, 4):
        graph = read(model("MatMulNBits", inputs, {**attributes, "accuracy_level": level}, 1, True))
        given = {"x0": inputs[0]}
        permitted = [node for node in graph.nodes if node.attributes.get("source_bits") == 8]
        assert [node.operator for node in permitted] == ["MatMul"] * (level == 4)
        for precision in (None, "f32"):
            plan = graph.plan(precision=precision)
            [product] = [node for node in plan.graph.nodes if node.operator == "relayout.MatMulNBits"]
            assert product.attributes.get("source_bits", 24) == (8 if level == 4 and not precision else 24)
            found[level, precision] = graph.compile(precision=precision)(**given)[0]
        exact = np.asarray(graph.evaluate(**given)[0], np.float64)
        largest = np.abs(exact).max()
        for precision in (None, "f32"):
            within = 2e-2 if level == 4 and not precision else 1e-5
            assert np.abs(found[level, precision] - exact).max() <= within * largest
    np.testing.assert_array_equal(found[4, "f32"], found[0, None])
    assert (found[4, None] != found[0, None]).any()


def test_all_rules_are_tried() -> None:
    tried = {f"com.microsoft.{case[0]}" for case in CASES} | {"com.microsoft.MatMulNBits"}
    others = {"TransposeMatMul", "BiasSoftmax", "GatherND", "Pad", "Unique", "Expand", "GridSample"}
    others |= {"SimplifiedLayerNormalization", "LayerNormalization", "RotaryEmbedding"}
    assert {name for name in RULES if "." in name} - tried == {f"com.microsoft.{name}" for name in others}


def convolutional(opset: int = 17) -> Any:
    """A network with what optimisers fuse and quantisers replace."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], **CONV),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], **CONV),
        helper.make_node("Add", ["c2", "r1"], ["s"]),
        helper.make_node("Relu", ["s"], ["r2"]),
        helper.make_node("AveragePool", ["r2"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    arrays = {
        "w1": real(8, 3, 3, 3),
        "b1": real(8),
        "w2": real(8, 8, 3, 3) / 8,
        "w3": real(10, 8),
        "b3": real(10),
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(one, name) for name, one in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def attending() -> Any:
    """A block of a transformer, as exporters write it before version 17."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[-1]),
        helper.make_node("Sub", ["x", "m"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["v"], axes=[-1]),
        helper.make_node("Add", ["v", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["r"]),
        helper.make_node("Div", ["d", "r"], ["n"]),
        helper.make_node("Mul", ["n", "gamma"], ["h"]),
        helper.make_node("Add", ["h", "beta"], ["l"]),
        helper.make_node("MatMul", ["l", "w"], ["z"]),
        helper.make_node("Add", ["z", "b"], ["a"]),
        helper.make_node("Div", ["a", "root"], ["u"]),
        helper.make_node("Erf", ["u"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["t"]),
        helper.make_node("Mul", ["a", "t"], ["k"]),
        helper.make_node("Mul", ["k", "half"], ["y"]),
    ]
    arrays = {
        "two": scale(2),
        "eps": scale(1e-5),
        "one": scale(1),
        "half": scale(0.5),
        "root": scale(2**0.5),
        "gamma": real(8),
        "beta": real(8),
        "w": real(8, 16),
        "b": real(16),
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5, 16])],
        [numpy_helper.from_array(one, name) for name, one in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    made.ir_version = 7
    return made


@pytest.mark.parametrize("make", [convolutional, attending])
def test_what_the_optimiser_writes(make: Any, tmp_path: Path) -> None:
    proto = make()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    runtime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    fused = onnx.load(tmp_path / "fused.onnx")
    assert any(
        node.domain == "com.microsoft" or node.op_type == "LayerNormalization" for node in fused.graph.node
    )
    x = real(*(n.dim_value or 2 for n in proto.graph.input[0].type.tensor_type.shape.dim))
    (got,) = read(tmp_path / "fused.onnx").evaluate(x)
    np.testing.assert_allclose(got, expected(proto, {"x": x})[0], 1e-4, 1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("style", ["QDQ", "QOperator"])
def test_what_the_quantiser_writes(style: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    onnx.save(convolutional(), tmp_path / "net.onnx")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = [{"x": real(2, 3, 8, 8)} for _ in range(4)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    path = tmp_path / "quantised.onnx"
    quantization.quantize_static(
        tmp_path / "net.onnx", path, Reader(), quant_format=getattr(quantization.QuantFormat, style)
    )
    quantised = onnx.load(path)
    if style == "QOperator":
        assert "com.microsoft" in {node.domain for node in quantised.graph.node}
    x = real(2, 3, 8, 8)
    (got,) = read(path).evaluate(x)
    wanted = expected(quantised, {"x": x})[0]
    assert np.abs(got - wanted).max() <= 0.05 * np.abs(wanted).max()


def test_what_is_not_understood_is_refused() -> None:
    cases = (
        ("FusedConv", (IMAGE, FILTER), {**CONV, "activation": "Strange"}, "'Strange' is unknown"),
        ("FusedMatMul", (real(2, 2), real(2, 2)), {"transBatchA": 1}, "transposed batches"),
        ("Gelu", (ROWS,), {"strange": 1}, "the attribute 'strange'"),
        ("Attention", (ROWS, real(8, 24), real(24)), {}, "num_heads"),
        ("GroupQueryAttention", (ROWS,), {}, "GroupQueryAttention .domain 'com.microsoft', version 1"),
    )
    for operator, inputs, attributes, why in cases:
        with pytest.raises(Unsupported, match=why):
            read(model(operator, inputs, attributes, 1, False))
    short = (real(3, 8), byte(2, 1, 3), real(2))
    with pytest.raises(LayoutError, match="6 bytes of weights"):
        read(model("MatMulNBits", short, {"K": 8, "N": 2, "bits": 4, "block_size": 16}, 1, True))
    points = (real(3, 8), byte(2, 1, 8), real(2), real(2))
    with pytest.raises(Unsupported, match="zero points of float32"):
        read(model("MatMulNBits", points, {"K": 8, "N": 2, "bits": 4, "block_size": 16}, 1, True))
