"""Joint graphs in 16 bits: what training adds is computed by kernels there, too, and near what f32 gives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from covering import covering
from elementwise import machine_code
from relayout.graph.backward import backward
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.step import Step, compiled_step, planned_step

pytestmark = pytest.mark.skipif(not machine_code(), reason="there is no machine code on this host")
TYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}
STEP = {"bf16": 2.0**-7, "f16": 2.0**-10}
LABELS = np.array([0, 2, 1, 1])
SPECS: dict[str, tuple[Any, ...]] = {
    "convolution": ("Conv", (2, 8, 5, 6), (6, 8, 3, 3), (6,), {"pads": (1, 1, 1, 1)}),
    "depthwise": ("Conv", (2, 8, 5, 6), (8, 1, 3, 3), (8,), {"pads": (1, 1, 1, 1), "group": 8}),
    "deconvolution": ("ConvTranspose", (2, 8, 5, 6), (8, 6, 3, 3), (6,), {"strides": (2, 2)}),
    "gemm": ("Gemm", (5, 8), (8, 7), (7,)),
    "gemm of a layer": ("Gemm", (5, 8), (7, 8), (7,), {"transB": 1}),
    "products of four axes": ("MatMul", (2, 3, 5, 8), (2, 3, 8, 7)),
    "products with broadcasting": ("MatMul", (2, 3, 5, 8), (3, 8, 7)),
    "batch": ("relayout.BatchNormalizationTraining", (4, 20, 5, 3), (20,), (20,), {"outputs": 3}),
    "layer": ("LayerNormalization", (2, 5, 20), (20,), (20,)),
    "group": ("GroupNormalization", (2, 20, 5, 3), (20,), (20,), {"num_groups": 5}),
    "softmax": ("Softmax", (2, 5, 20)),
    "cross entropy": ("SoftmaxCrossEntropyLoss", (4, 3), LABELS),
    "cross entropy sum": ("SoftmaxCrossEntropyLoss", (4, 3), LABELS, {"reduction": "sum", "ignore_index": 2}),
    "cross entropy weighed": ("SoftmaxCrossEntropyLoss", (4, 3), LABELS, (3,)),
    "likelihood": ("NegativeLogLikelihoodLoss", (4, 3), LABELS, {"reduction": "none"}),
    "embedding": ("Gather", (9, 20), np.array([[0, 4], [4, -1]])),
    "embedding with padding": ("Gather", (9, 20), np.array([[0, 4], [4, 2]]), {"padding_idx": 4}),
    "elements": ("GatherElements", (3, 4), np.array([[0, 1, 1, 0]])),
    "points": ("GatherND", (3, 4), np.array([[0, 1], [2, 3], [0, 1]])),
    "pooling": ("MaxPool", (2, 8, 6, 6), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "reflected": ("Pad", (4, 6), np.array([1, 0, 0, 2]), {"mode": "reflect"}),
    "error function": ("Erf", (3, 37)),
    "softsign": ("Softsign", (3, 37)),
    "celu": ("Celu", (3, 37), {"alpha": 0.7}),
    "gelu": ("Gelu", (3, 37)),
}


def lossy(dtype: np.dtype[Any], spec: tuple[Any, ...]) -> Graph:
    """An operator whose result is weighed and summed, all of one data type but for indices."""
    operator, *inputs = spec
    attributes = dict(inputs.pop()) if isinstance(inputs[-1], dict) else {}
    further = [f"y{k}" for k in range(1, attributes.pop("outputs", 1))]
    names = [f"x{k}" for k in range(len(inputs))]
    both = list(zip(names, inputs, strict=True))
    values = [Value(name, one, dtype) for name, one in both if isinstance(one, tuple)]
    constants = {name: np.asarray(one) for name, one in both if not isinstance(one, tuple)}
    node = Node(operator, tuple(names), ("y", *further), attributes)
    dims = inferred(Graph(tuple(values), ("y",), (node,), constants)).value("y").dims
    values.append(Value("weighing", dims, dtype))
    nodes = (
        node,
        Node("Mul", ("y", "weighing"), ("weighed",)),
        Node("ReduceSum", ("weighed",), ("loss",), {"keepdims": 0}),
    )
    return Graph(tuple(values), ("loss",), nodes, constants)


@pytest.mark.turns(2)
@pytest.mark.parametrize(("name", "dtype"), covering(SPECS, ["bf16", "f16"], strength=1))
def test_kernels_compute_gradients_of_16_bits(dtype: str, name: str) -> None:
    graph, wide = (lossy(TYPES[one], SPECS[name]) for one in (dtype, "f32"))
    of = [value.name for value in graph.inputs]
    rng = np.random.default_rng(1)
    given = [rng.uniform(0.25, 2, value.dims).astype(TYPES[dtype]) for value in graph.inputs]  # type: ignore[arg-type]
    step = Step(backward(graph, "loss", of), {})
    plan = planned_step(step)
    assert [one.case.operator for one in plan.chosen if one.way.name == "NumPy"] == []
    found = compiled_step(step, plan)(*given)
    wanted = backward(wide, "loss", of).evaluate(*(one.astype(np.float32) for one in given))
    for one, expected, result in zip(found, wanted, step.graph.results, strict=True):
        bound = 8 * STEP[dtype] * (1 + np.abs(expected).max(initial=0))
        got = one.numpy().astype(np.float32).reshape(expected.shape)
        np.testing.assert_allclose(got, expected, rtol=0, atol=bound, err_msg=result)
