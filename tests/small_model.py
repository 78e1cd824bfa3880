"""A small ONNX model for tests of the pages: two convolutions, as a converter from NHWC leaves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write(path: Path, batch: int | str = "batch") -> None:
    """Write it: a normalisation, a ReLU between two transposes, a residual, a mean."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    ones = np.ones(16, np.float32)
    constants = {
        "w1": rng.standard_normal((16, 3, 3, 3)).astype(np.float32) / 8,
        "w2": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 8,
        "scale": 2 * ones,
        "bias": ones,
        "mean": ones,
        "var": 3 * ones,
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["a"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "var"], ["n"], "norm"),
        helper.make_node("Transpose", ["n"], ["t"], "there", perm=[0, 2, 3, 1]),
        helper.make_node("Relu", ["t"], ["r"], "relu"),
        helper.make_node("Transpose", ["r"], ["u"], "back", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["u", "w2"], ["c"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "u"], ["s"], "sum"),
        helper.make_node("GlobalAveragePool", ["s"], ["scores"], "pool"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 16, 1, 1])],
        [numpy_helper.from_array(data, name) for name, data in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
