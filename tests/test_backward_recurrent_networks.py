"""Recurrent layers in networks that are trained: gradients by definition, by kernels, and PyTorch's."""

from __future__ import annotations

import io
from itertools import cycle
from typing import Any

import numpy as np
import pytest

import relayout as rl
from elementwise import machine_code
from recurrent_networks import GATES, layer
from relayout.errors import LayoutError
from relayout.graph.backward import backward, trainable
from relayout.graph.graph import Graph, Node
from relayout.training import SGD, Trainer
from test_backward import checked, inputs_of

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias, states": {"bias": False, "initial": True},
    "both directions": {"direction": "bidirectional", "initial": True},
    "reverse": {"direction": "reverse", "initial": True},
    "batch first": {"layout": 1, "direction": "bidirectional", "initial": True},
    "last state only": {"outputs": (1,)},
    "results only": {"outputs": (0,), "initial": True},
    "one step": {"steps": 1, "batch": 1, "units": 1},
}
CASES = {f"{kind}: {name}": (kind, more) for kind in GATES for name, more in LAYERS.items()}
CASES |= {
    f"linear before reset: {name}": ("GRU", {**more, "linear_before_reset": 1})
    for name, more in LAYERS.items()
}
CASES |= {
    "peepholes": ("LSTM", {"peephole": True, "initial": True}),
    "peepholes, both": ("LSTM", {"peephole": True, "direction": "bidirectional", "bias": False}),
    "last memory only": ("LSTM", {"outputs": (2,), "initial": True}),
    "relu": ("RNN", {"activations": ["Relu"]}),
    "affine, leaky": (
        "LSTM",
        {"activations": ["Sigmoid", "Affine", "LeakyRelu"], "activation_alpha": [0.5, 0.1]},
    ),
}


def made(name: str, **more: Any) -> Graph:
    kind, given = CASES[name]
    return layer(kind, **{**given, **more})


@pytest.mark.parametrize("name", CASES)
def test_against_finite_differences(name: str) -> None:
    graph = made(name)
    names = [n for n in trainable(graph) if not n.startswith("weighing")]
    checked(graph, *inputs_of(graph), of=(*(v.name for v in graph.inputs), *names))


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            "LSTM",
            {"clip": 1.0},
            r"node 'layer' \(LSTM\): there is no gradient of a layer with a clip \(clip is 1",
        ),
        ("LSTM", {"input_forget": 1}, "coupled gates"),
        ("RNN", {"activations": ["Softsign"]}, "the activation softsign"),
        (
            "RNN",
            {"activations": ["Tanh", "Relu"], "direction": "bidirectional"},
            "directions have different activations",
        ),
    ],
)
def test_what_has_no_gradient_is_said(kind: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        joint(layer(kind, **given))


def with_lengths(lengths: list[int]) -> Graph:
    graph = layer("GRU", bias=False)
    first = graph.nodes[0]
    node = Node("GRU", (*first.inputs, "", "lengths"), first.outputs, first.attributes, first.name)
    constants = {**graph.constants, "lengths": np.array(lengths, np.int32)}
    return graph.replaced(nodes=(node, *graph.nodes[1:]), constants=constants)


def test_all_sequences_must_be_equally_long() -> None:
    graph = with_lengths([3, 3])
    checked(graph, *inputs_of(graph), of=("x", "w", "r"))
    with pytest.raises(LayoutError, match=r"node 'layer' .* sequences end early"):
        joint(with_lengths([3, 2]))


def test_a_layer_that_nobody_learns_stays_as_it_is() -> None:
    graph = layer("LSTM", clip=1.0)
    made = backward(graph, "loss", ["weighing0"])
    assert "LSTM" in [node.operator for node in made.nodes]


def test_zeros_that_a_layer_begins_with_are_not_learned() -> None:
    graph = layer("GRU", initial=True)
    zeros, ones = np.zeros((1, 2, 5)), np.ones((1, 2, 5))
    for data, learned in ((zeros, False), (ones, True)):
        fixed = graph.replaced(inputs=graph.inputs[:1], constants={**graph.constants, "initial_h": data})
        assert ("initial_h" in trainable(fixed)) == learned


def joint(graph: Graph) -> Graph:
    names = [n for n in trainable(graph) if not n.startswith("weighing")]
    return backward(graph, "loss", [*(v.name for v in graph.inputs), *names])


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize(("name", "units"), [*zip(CASES, cycle((5, 16, 33)), strict=False)])
def test_kernels_give_what_definitions_give(name: str, units: int) -> None:
    whole = joint(made(name, dtype="f4", units=units))
    arrays = [x.astype("f4") for x in inputs_of(whole, low=-1, high=1)]
    chosen = whole.plan().chosen
    assert not [one.case.operator for one in chosen if one.way.name == "NumPy"]
    for name, found, wanted in zip(
        whole.results, whole.compile()(*arrays), whole.evaluate(*arrays), strict=True
    ):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, atol=1e-4 * max(1, np.abs(wanted).max()), err_msg=name)


CLASSES, STEPS, BATCH, WORDS = 4, 6, 3, 11


def classifier(torch: Any, kind: str, **more: Any) -> Any:
    """Words to vectors, a recurrent layer, classes from its last state."""

    class Classifier(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(WORDS, 8)
            self.inner = getattr(torch.nn, kind)(8, 20, batch_first=True, **more)
            self.last = torch.nn.Linear(20 * (1 + self.inner.bidirectional), CLASSES)

        def forward(self, x: Any) -> Any:
            return self.last(self.inner(self.words(x))[0][:, -1])

    torch.manual_seed(3)
    return Classifier()


def loaded(torch: Any, net: Any, way: str) -> Graph:
    """The network as a graph, by a file of ONNX or a program of ``torch.export``."""
    words = torch.zeros((BATCH, STEPS), dtype=torch.int64)
    if way == "export":
        return rl.load(torch.export.export(net, (words,)))
    pytest.importorskip("onnx")
    file = io.BytesIO()
    torch.onnx.export(net, (words,), file, dynamo=False)
    import onnx

    return rl.load(onnx.load_from_string(file.getvalue()))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize(
    ("kind", "more", "way"),
    [
        ("LSTM", {}, "export"),
        ("LSTM", {}, "onnx"),
        ("LSTM", {"num_layers": 2, "bidirectional": True}, "export"),
        ("GRU", {"num_layers": 2, "bidirectional": True}, "onnx"),
        ("GRU", {}, "export"),
        ("RNN", {"nonlinearity": "relu", "bias": False}, "export"),
        ("RNN", {}, "onnx"),
    ],
)
def test_five_steps_are_pytorchs(kind: str, more: dict[str, Any], way: str) -> None:
    torch = pytest.importorskip("torch")
    net = classifier(torch, kind, **more)
    graph = loaded(torch, net.eval(), way)
    trainer = Trainer(graph, "cross_entropy", SGD(0.5, momentum=0.9))
    net = net.double().train()
    known = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
    rng = np.random.default_rng(2)
    for _ in range(5):
        x, labels = rng.integers(0, WORDS, (BATCH, STEPS)), rng.integers(0, CLASSES, BATCH)
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(labels))
        known.zero_grad()
        loss.backward()
        known.step()
        np.testing.assert_allclose(trainer.step(x, labels), loss.item(), rtol=1e-4)
    found, expected = trainer.trained(graph), loaded(torch, net.float().eval(), way)
    assert set(found.constants) == set(expected.constants)
    for name, data in expected.constants.items():
        if data.dtype.kind == "f":
            scale = max(np.abs(data).max(), 1e-3)
            np.testing.assert_allclose(found.constants[name], data, atol=1e-3 * scale, err_msg=name)
