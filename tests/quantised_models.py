"""Small quantised networks for tests: ONNX files for ONNX Runtime's quantiser, and graphs of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred

DIMS = (1, 8, 12, 12)


def convolutional(path: Path, activation: str = "Relu") -> list[Any]:
    """A network with residuals, depthwise convolutions, pools, a Concat and a classifier; its input."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(3)
    weights: dict[str, Any] = {}
    nodes: list[Any] = []

    def constant(name: str, *dims: int) -> str:
        fan = max(1, int(np.prod(dims[1:])))
        weights[name] = (rng.standard_normal(dims) / np.sqrt(fan)).astype(np.float32)
        return name

    def add(operator: str, *inputs: str, into: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, list(inputs), [into], name=into, **attributes))
        return into

    def conv(x: str, name: str, dims: tuple[int, ...], act: bool = True, **attributes: Any) -> str:
        made = add(
            "Conv", x, constant(f"{name}.w", *dims), constant(f"{name}.b", dims[0]), into=name, **attributes
        )
        return add(activation, made, into=f"{name}.act") if act else made

    first = conv("x", "stem", (16, 8, 3, 3), pads=[1, 1, 1, 1])
    pooled = add("MaxPool", first, into="pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    wide = conv(pooled, "wide", (24, 16, 1, 1))
    deep = conv(wide, "deep", (24, 1, 3, 3), group=24, pads=[1, 1, 1, 1])
    back = conv(deep, "back", (16, 24, 1, 1), act=False)
    total = add(activation, add("Add", back, pooled, into="sum"), into="sum.act")
    halves = conv(total, "other", (16, 8, 3, 3), group=2, pads=[1, 0, 1, 0])
    mean = add("AveragePool", halves, into="mean", kernel_shape=[2, 2], strides=[1, 1])
    more = conv(mean, "more", (8, 16, 1, 1), act=False)
    again = conv(mean, "again", (8, 16, 1, 1))
    joined = add("Concat", more, again, into="joined", axis=1)
    vector = add("Flatten", add("GlobalAveragePool", joined, into="gap"), into="vector")
    add("Gemm", vector, constant("fc.w", 10, 16), constant("fc.b", 10), into="y", transB=1)
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, DIMS)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(data, name) for name, data in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(path))
    return [rng.standard_normal(DIMS).astype(np.float32)]


def pair(
    rng: np.random.Generator,
    dims: tuple[int, ...],
    filters: tuple[int, ...],
    kinds: tuple[str, str, str],
    zeros: tuple[int, int],
    behind: tuple[Node, ...] = (),
    **attributes: Any,
) -> Graph:
    """DequantizeLinear, Conv and whatever is behind it from ``c`` to ``d``, QuantizeLinear."""
    src, weights, dst = (np.dtype(kind) for kind in kinds)
    limits = np.iinfo(weights)
    constants = {
        "w": rng.integers(limits.min, limits.max, filters, weights, endpoint=True),
        "sx": np.float32(0.02),
        "zx": np.array(zeros[0], src),
        "sw": rng.uniform(0.001, 0.01, filters[0]).astype(np.float32),
        "zw": np.full(filters[0], 128 if kinds[1] == "uint8" else 0, weights),
        "b": rng.standard_normal(filters[0]).astype(np.float32),
        "sy": np.float32(0.05),
        "zy": np.array(zeros[1], dst),
    }
    last = behind[-1].outputs[0] if behind else "c"
    nodes = (
        Node("DequantizeLinear", ("x", "sx", "zx"), ("a",)),
        Node("DequantizeLinear", ("w", "sw", "zw"), ("f",), {"axis": 0}),
        Node("Conv", ("a", "f", "b"), ("c",), attributes),
        *behind,
        Node("QuantizeLinear", (last, "sy", "zy"), ("y",)),
    )
    return inferred(Graph((Value("x", dims, src),), ("y",), nodes, constants))
