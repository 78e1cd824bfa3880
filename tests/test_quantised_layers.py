"""A small transformer, dynamically quantised by ONNX Runtime: every layer within one step of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantised_layers as layers
from relayout.bench.zoo.quantising import quantise, saturates
from relayout.targets.machine import host

WIDTH, HEADS, TOKENS = 32, 4, 13


def transformer(path: Path, blocks: int = 3) -> dict[str, Any]:
    """Blocks of attention and of two products, with normalisations in front; the input."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(4)
    nodes: list[Any] = []
    constants: dict[str, Any] = {"parts": np.array([1, TOKENS, HEADS, WIDTH // HEADS])}
    constants |= {"rows": np.array([1, TOKENS, WIDTH]), "small": np.float32((WIDTH // HEADS) ** -0.5)}

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def weights(*dims: int) -> str:
        name = f"w{len(constants)}"
        constants[name] = (rng.standard_normal(dims) / np.sqrt(dims[0])).astype(np.float32)
        return name

    def linear(x: str, inputs: int, outputs: int) -> str:
        return add("Add", add("MatMul", x, weights(inputs, outputs)), weights(outputs))

    def normal(x: str) -> str:
        return add("LayerNormalization", x, weights(WIDTH), weights(WIDTH), axis=-1)

    x = "x"
    for _ in range(blocks):
        y = normal(x)
        q, k, v = (add("Reshape", linear(y, WIDTH, WIDTH), "parts") for _ in range(3))
        q, v = (add("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
        scores = add("Mul", add("MatMul", q, add("Transpose", k, perm=[0, 2, 3, 1])), "small")
        mixed = add("MatMul", add("Softmax", scores, axis=-1), v)
        rows = add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), "rows")
        x = add("Add", x, linear(rows, WIDTH, WIDTH))
        x = add("Add", x, linear(add("Relu", linear(normal(x), WIDTH, 4 * WIDTH)), 4 * WIDTH, WIDTH))
    nodes.append(helper.make_node("Identity", [x], ["y"], name="last"))
    dims = (1, TOKENS, WIDTH)
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return {"x": rng.standard_normal(dims).astype(np.float32)}


@pytest.mark.parametrize("per_channel", [False, True])
def test_every_layer_is_within_one_step(tmp_path: Path, per_channel: bool) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxruntime.quantization")
    real, model = tmp_path / "real.onnx", tmp_path / "quantised.onnx"
    given = transformer(real)
    quantise(real, model, "dynamic", [list(given.values())], per_channel, saturates(host()))
    found = layers.compared(model, given)
    count = {kind: sum(one.kind == kind for one in found) for kind in ("range", "bytes", "product", "real")}
    assert count["product"] == 3 * 6
    assert count["bytes"] >= 3 * 4
    assert count["real"] >= 3 * 4
    for one in found:
        if one.kind == "bytes":  # the same range, divided and rounded by the same rule
            assert one.most <= 1, one
            assert one.same > 0.999, one
        else:  # the same sums of integers; all else is f32
            assert one.most < 0.01, one
