"""Recurrent layers in networks: kernels, definitions elsewhere, and what ONNX Runtime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper, numpy_helper

import relayout as rl
from elementwise import machine_code

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN = 10


def model(
    kind: str,
    *,
    steps: int = 5,
    direction: str = "forward",
    bias: bool = True,
    initial: bool = False,
    peephole: bool = False,
    lengths: list[int] | None = None,
    layout: int = 0,
    outputs: int = 3,
    dtype: Any = np.float32,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A network of one layer, and its inputs."""
    rng = np.random.default_rng(1)
    count, batch, channels = 1 + (direction == "bidirectional"), 3, 6
    rows = GATES[kind] * HIDDEN

    def normal(*dims: int) -> np.ndarray:
        return (rng.standard_normal(dims) / 2).astype(dtype)

    known = {"W": normal(count, rows, channels), "R": normal(count, rows, HIDDEN)}
    inputs = {"X": normal(*((batch, steps) if layout else (steps, batch)), channels)}
    names = ["X", "W", "R", "", "", "", "", ""]
    if bias:
        names[3], known["B"] = "B", normal(count, 2 * rows)
    if lengths is not None:
        names[4], known["L"] = "L", np.array(lengths, np.int32)
    for place, name in ((5, "H"), (6, "C"))[: (1 + (kind == "LSTM")) if initial else 0]:
        names[place] = name
        inputs[name] = normal(*((batch, count) if layout else (count, batch)), HIDDEN)
    if peephole:
        names[7], known["P"] = "P", normal(count, 3 * HIDDEN)
    while not names[-1]:
        names.pop()
    results = ["Y", "Y_h", "Y_c"][: min(outputs, 2 + (kind == "LSTM"))]
    node = helper.make_node(
        kind, names, results, hidden_size=HIDDEN, direction=direction, layout=layout, **attributes
    )
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(data, name) for name, data in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), inputs


def agrees(made: tuple[onnx.ModelProto, dict[str, np.ndarray]], kernel: bool, atol: float = 1e-5) -> None:
    """A compiled run gives what the definition gives, and does it by a kernel, or not."""
    graph = rl.load(made[0])
    run = graph.compile()
    expected = graph.evaluate(*made[1].values())
    for got, wanted in zip(run(**made[1]), expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), atol=atol)
    if machine_code():
        assert ("NumPy" not in [one.way.name for one in graph.plan().chosen]) == kernel


def same_as_runtime(made: tuple[onnx.ModelProto, dict[str, np.ndarray]]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(made[0].SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, made[1])
    for got, wanted in zip(rl.load(made[0]).compile()(**made[1]), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", sorted(GATES))
def test_layers_run_by_kernels(kind: str, direction: str, initial: bool) -> None:
    made = model(kind, direction=direction, initial=initial, bias=not initial)
    agrees(made, kernel=True)
    same_as_runtime(made)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", sorted(GATES))
def test_batches_first(kind: str, direction: str) -> None:
    agrees(model(kind, direction=direction, layout=1, initial=True), kernel=True)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_linear_before_reset(direction: str) -> None:
    made = model("GRU", direction=direction, linear_before_reset=1, initial=True)
    agrees(made, kernel=True)
    same_as_runtime(made)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_peepholes_and_a_clip(direction: str) -> None:
    made = model("LSTM", direction=direction, peephole=True, initial=True, clip=0.3)
    agrees(made, kernel=True)
    same_as_runtime(made)


@pytest.mark.parametrize(
    ("kind", "attributes", "kernel"),
    [
        ("LSTM", {"activations": ["HardSigmoid", "Relu", "Elu"], "activation_alpha": [0.25, 1.5]}, True),
        ("GRU", {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.1]}, True),
        ("RNN", {"activations": ["Affine"], "activation_alpha": [0.2], "activation_beta": [0.4]}, True),
        ("RNN", {"activations": ["Softsign"]}, False),
        ("RNN", {"direction": "bidirectional", "activations": ["Tanh", "Relu"]}, False),
        ("RNN", {"direction": "bidirectional", "activations": ["Relu", "Relu"]}, True),
        ("LSTM", {"input_forget": 1}, False),
        ("LSTM", {"lengths": [5, 5, 5]}, True),
        ("LSTM", {"lengths": [5, 3, 0]}, False),
        ("LSTM", {"outputs": 1}, True),
        ("GRU", {"steps": 1, "outputs": 2}, True),
    ],
)
def test_what_kernels_do_and_what_definitions(kind: str, attributes: dict[str, Any], kernel: bool) -> None:
    agrees(model(kind, **attributes), kernel)


def test_f16_is_computed_in_f32() -> None:
    agrees(model("LSTM", dtype=np.float16, initial=True), kernel=True, atol=2e-3)


@runs_code
@pytest.mark.filterwarnings("ignore:The tensor attribute")  # torch's own list of weights
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_torchs_layers_run_without_python(name: str, batch_first: bool) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(torch.nn, name)(
                8, 12, num_layers=2, bidirectional=True, batch_first=batch_first
            )
            self.last = torch.nn.Linear(24, 5)

        def forward(self, x: Any) -> Any:
            return self.last(self.inner(x)[0])

    net, x = Net().eval(), torch.randn(6, 3, 8)
    graph = rl.load(torch.export.export(net, (x,)))
    run = graph.compile()
    assert not [one for one in graph.plan().chosen if one.way.name == "NumPy"]
    with torch.no_grad():
        expected = net(x).numpy()
    np.testing.assert_allclose(run(x.numpy())[0], expected, atol=1e-5)
