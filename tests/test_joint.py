"""Joint graphs in kernels: what training adds is computed by machine code, and is what definitions say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elementwise import machine_code
from relayout.errors import LayoutError
from relayout.graph.backward import backward
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.operators import OPERATORS
from relayout.graph.operators.slopes import FROM_RESULT, FROM_SOURCE
from relayout.graph.step import Step, compiled_step, planned_step
from relayout.ops.functions import Function
from relayout.training import SGD, Adam, AdamW, Trainer

F32, S64 = np.dtype("float32"), np.dtype("int64")
pytestmark = pytest.mark.skipif(not machine_code(), reason="there is no machine code on this host")


def lossy(operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Graph:
    """A graph of one operator, whose first result is weighed by an input and summed; arrays are constants."""
    constants, values = {}, []
    names = [f"x{k}" for k in range(len(inputs))]
    for name, one in zip(names, inputs, strict=True):
        if isinstance(one, tuple):
            values.append(Value(name, one, F32))
        else:
            constants[name] = np.asarray(one)
    made = tuple(f"y{k}" for k in range(outputs))
    node = Node(operator, tuple(names), made, attributes)
    dims = inferred(Graph(tuple(values), ("y0",), (node,), constants)).value("y0").dims
    assert dims is not None
    values.append(Value("weighing", dims, F32))
    nodes = (
        node,
        Node("Mul", ("y0", "weighing"), ("weighed",)),
        Node("ReduceSum", ("weighed",), ("loss",), {"keepdims": 0}),
    )
    return Graph(tuple(values), ("loss",), nodes, constants)


def agrees(graph: Graph, format: str | None = None, low: float = -2.0) -> None:
    """The joint graph runs in kernels alone, and computes what it does by definition."""
    of = [value.name for value in graph.inputs if value.dtype == F32]
    joint = backward(graph, graph.results[0], of)
    plan = planned_step(Step(joint, {}), format)
    assert [one.case.operator for one in plan.chosen if one.way.name == "NumPy"] == []
    rng = np.random.default_rng(1)
    given = []
    for value in graph.inputs:
        dims = [int(n) for n in value.dims or ()]  # type: ignore[arg-type]
        real = value.dtype == F32
        given.append(rng.uniform(low, 2, dims).astype(F32) if real else rng.integers(0, 3, dims))
    found = compiled_step(Step(joint, {}), plan)(*given)
    for name, one, wanted in zip(joint.results, found, joint.evaluate(*given), strict=True):
        bound = 2e-5 * (1 + np.abs(wanted).max(initial=0))
        np.testing.assert_allclose(
            one.numpy().reshape(wanted.shape), wanted, rtol=2e-5, atol=bound, err_msg=name
        )


ACTIVATIONS = ("Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu")
ACTIVATIONS = (*ACTIVATIONS, "Sigmoid", "Softplus", "Swish", "Tanh")
LABELS = np.array([0, 2, 1, 1])
GRAPHS: dict[str, Graph] = {
    "layer": lossy("LayerNormalization", (2, 5, 20), (20,), (20,)),
    "layer without bias": lossy("LayerNormalization", (7, 33), (33,)),
    "layer of planes": lossy("LayerNormalization", (2, 3, 4, 5), (4, 5), (1, 5), axis=2),
    "layer of all": lossy("LayerNormalization", (4, 5), (4, 5), (4, 5), axis=0),
    "rms": lossy("RMSNormalization", (2, 5, 20), (20,)),
    "instance": lossy("InstanceNormalization", (2, 20, 5, 3), (20,), (20,)),
    "group": lossy("GroupNormalization", (2, 20, 5, 3), (20,), (20,), num_groups=5),
    "group of tokens": lossy("GroupNormalization", (2, 6, 7), (6,), (6,), num_groups=2),
    "softmax": lossy("Softmax", (2, 5, 20)),
    "softmax of channels": lossy("Softmax", (2, 20, 3, 5), axis=1),
    "log softmax": lossy("LogSoftmax", (2, 5, 20)),
    "response": lossy("LRN", (2, 20, 5, 3), size=5, alpha=0.1),
    "cross entropy": lossy("SoftmaxCrossEntropyLoss", (4, 3), LABELS, outputs=2),
    "cross entropy of pixels": lossy(
        "SoftmaxCrossEntropyLoss", (2, 3, 2, 2), LABELS.reshape(1, 2, 2).repeat(2, 0), outputs=2
    ),
    "cross entropy weighed": lossy(
        "SoftmaxCrossEntropyLoss", (4, 3), LABELS, np.float32([1, 2, 3]), ignore_index=2
    ),
    "cross entropy each": lossy("SoftmaxCrossEntropyLoss", (4, 3), LABELS, reduction="none", ignore_index=0),
    "cross entropy sum": lossy("SoftmaxCrossEntropyLoss", (4, 3), LABELS, reduction="sum"),
    "likelihood": lossy("NegativeLogLikelihoodLoss", (4, 3), LABELS),
    "deconvolution": lossy(
        "ConvTranspose", (2, 8, 5, 6), (8, 6, 3, 3), (6,), strides=(2, 2), pads=(1, 1, 0, 1)
    ),
    "deconvolution of more": lossy(
        "ConvTranspose", (1, 4, 7), (4, 3, 4), strides=(3,), group=2, output_padding=(1,)
    ),
    "deconvolution of a size": lossy(
        "ConvTranspose", (1, 8, 4, 3), (8, 4, 3, 4), strides=(2, 3), output_shape=(8, 9)
    ),
    "deconvolution of the same size": lossy(
        "ConvTranspose", (1, 8, 4, 3), (8, 4, 3, 4), strides=(2, 3), auto_pad="SAME_UPPER"
    ),
    "vector by matrices": lossy("MatMul", (8,), (2, 3, 8, 7)),
    "matrices by vector": lossy("MatMul", (2, 3, 5, 8), (8,)),
    "vector by vector": lossy("MatMul", (8,), (8,)),
    "matrix by vector": lossy("MatMul", (5, 8), (8,)),
    "gemm": lossy("Gemm", (5, 8), (8, 7), (7,)),
    "gemm of both turned": lossy("Gemm", (8, 5), (7, 8), (5, 1), transA=1, transB=1),
    "gemm of a layer": lossy("Gemm", (5, 8), (7, 8), (7,), transB=1),
    "embedding": lossy("Gather", (9, 20), np.array([[0, 4], [4, -1]])),
    **{name: lossy(name, (3, 37)) for name in ACTIVATIONS},
    **{name: lossy(name, (3, 37)) for name in ("Softsign", "ThresholdedRelu", "Celu")},
    "celu stretched": lossy("Celu", (3, 37), alpha=0.7),
    "shrink": lossy("Shrink", (3, 37), lambd=0.6, bias=0.2),
    "shrink hard": lossy("Shrink", (3, 37)),
    "gelu by tanh": lossy("Gelu", (3, 37), approximate="tanh"),
    "clip": lossy("Clip", (3, 37), np.float32(0), np.float32(1.5)),
}


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", GRAPHS)
def test_no_family_runs_by_definition(name: str) -> None:
    agrees(GRAPHS[name])


@pytest.mark.parametrize("format", ["nhwc", "nChw16c"])
@pytest.mark.parametrize("name", ["instance", "group", "softmax of channels", "response"])
def test_images_of_any_format(name: str, format: str) -> None:
    agrees(GRAPHS[name], format)


def test_labels_that_are_no_classes_are_refused() -> None:
    x, labels = Value("x", (4, 3), F32), Value("labels", (4,), S64)
    nodes = (
        Node("Mul", ("x", "w"), ("y",)),
        Node("SoftmaxCrossEntropyLoss", ("y", "labels"), ("loss",), {"ignore_index": -100}),
    )
    trainer = Trainer(Graph((x, labels), ("loss",), nodes, {"w": np.ones(3, F32)}), "loss", SGD(0.1))
    data = np.ones((4, 3), F32)
    assert abs(trainer.step(data, np.array([0, 2, -100, 1])) - np.log(3)) < 1e-6
    for wrong in (-1, 3, 1 << 40):
        with pytest.raises(LayoutError, match="index"):
            trainer.step(data, np.array([0, 2, wrong, 1]))


@pytest.mark.parametrize("algorithm", sorted({*FROM_SOURCE, *FROM_RESULT}))
def test_slopes_are_those_of_primitives(algorithm: str) -> None:
    x = np.append(np.linspace(-9, 9, 37), [1e-30, 0.0]) + 0.01
    for table, by_result in ((FROM_SOURCE, False), (FROM_RESULT, True)):
        if algorithm in table:
            numbers = {"swish": (1.5, 0.0), "elu": (0.7, 0.0), "relu": (0.25, 0.0), "soft_relu": (2.0, 0.0)}
            alpha, beta = numbers.get(algorithm, (0.25, 0.5) if algorithm.startswith("hard") else (0.0, 0.0))
            wanted = Function(algorithm, alpha, beta).derivative(by_result).define(x, alpha, beta)
            np.testing.assert_allclose(table[algorithm](x, alpha, beta), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.1, 0.9), Adam(0.1), AdamW(0.1)])
def test_an_optimizer_is_one_pass(optimizer: Any) -> None:
    x = Value("x", (4, 64), F32)
    nodes = Node("MatMul", ("x", "w"), ("y",)), Node("ReduceSumSquare", ("y",), ("loss",), {"keepdims": 0})
    graph = Graph((x,), ("loss",), nodes, {"w": np.ones((64, 48), F32)})
    trainer = Trainer(graph, "loss", optimizer)
    updates = [one for one in trainer.layers() if one.name.startswith("update/")]
    assert len(updates) == 1


@pytest.mark.parametrize("dims", [(50, 41), (3, 4, 5, 7), (1000,), (6, 1)])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.999])
def test_masks_are_computed_by_kernels(dims: tuple[int, ...], ratio: float) -> None:
    step = Value("step", (1,), S64)
    node = Node(
        "relayout.DropoutMask", ("step",), ("mask",), {"dims": dims, "ratio": ratio, "seed": 12345678901}
    )
    graph = inferred(Graph((step,), ("mask",), (node,)))
    plan = planned_step(Step(graph, {}))
    assert [one.way.name for one in plan.chosen] == [""]
    run = compiled_step(Step(graph, {}), plan)
    masks = []
    for count in (0, 1, 2**40):
        (wanted,) = graph.evaluate(np.array([count]))
        np.testing.assert_array_equal(run(np.array([count])).numpy(), wanted)
        masks.append(wanted != 0)
    if ratio == 0.5 and masks[0].size > 300:
        together = [(one == other).mean() for one in masks for other in masks if one is not other]
        assert 0.4 < min(together) <= max(together) < 0.6


def test_masks_drop_as_many_as_they_should() -> None:
    drop = OPERATORS["relayout.DropoutMask"]
    for ratio in (0.1, 0.5, 0.9):
        mask = drop(np.array([3]), dims=(400, 500), ratio=ratio, seed=7)
        mask = mask[0] if isinstance(mask, tuple) else mask
        assert abs((mask == 0).mean() - ratio) < 0.004
        rows, columns = (np.abs((mask == 0).mean(axis) - ratio).max() for axis in (0, 1))
        assert max(rows, columns) < 0.13
        assert abs(np.corrcoef((mask[:, 1:] == 0).ravel(), (mask[:, :-1] == 0).ravel())[0, 1]) < 0.01
