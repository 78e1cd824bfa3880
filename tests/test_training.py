"""Training: steps against PyTorch's, states in place, bits that don't depend on threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayout as rl
from relayout import networks
from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred
from relayout.graph.step import Step, compiled_step, planned_step
from relayout.networks.resnet import Architecture
from relayout.training import SGD, Adam, AdamW, Optimizer, Trainer

F32 = np.dtype("float32")
SMALL = Architecture((1, 2, 1), groups=2, width=8, channels=8)


def network(seed: int = 0) -> Graph:
    return networks.graph(SMALL, networks.random(seed), size=32, classes=5)


def batches(count: int, batch: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [
        (rng.standard_normal((batch, 3, 32, 32)).astype(np.float32), rng.integers(0, 5, batch))
        for _ in range(count)
    ]


@pytest.mark.parametrize("format", [None, "nhwc", "nchw"])
def test_five_steps_of_a_resnet_are_pytorchs(format: str | None) -> None:
    torch = pytest.importorskip("torch")
    from torch_resnet import Resnet

    graph = network()
    model = Resnet(SMALL, 5)
    model.load(dict(graph.constants))
    model.train()
    known = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    optimizer = SGD(0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    trainer = Trainer(graph, "cross_entropy", optimizer, batch=4, format=format)
    assert set(trainer.parameters) == {name for name, _ in model.named_parameters()}
    for x, labels in batches(5):
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(labels))
        known.zero_grad()
        loss.backward()
        known.step()
        np.testing.assert_allclose(trainer.step(x, labels), loss.item(), rtol=1e-3)
    for name, one in model.state_dict().items():
        if not name.endswith("tracked"):
            expected = one.numpy()
            off = np.abs(trainer[name] - expected).max()
            assert off <= 1e-3 * np.abs(expected).max(), f"{name} is off by {off}"


def test_threads_change_no_bit() -> None:
    found = []
    for threads in (1, 2):
        trainer = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), batch=4, threads=threads)
        losses = [trainer.step(*one) for one in batches(3)]
        found.append((losses, {name: trainer[name] for name in trainer}))
    (losses, states), (others, more) = found
    assert losses == others
    for name, one in states.items():
        assert np.array_equal(one, more[name]), name


OPTIMIZERS: list[tuple[Optimizer, str, dict[str, Any]]] = [
    (SGD(0.1), "SGD", {}),
    (SGD(0.1, weight_decay=0.1), "SGD", {"weight_decay": 0.1}),
    (SGD(0.1, momentum=0.9, dampening=0.3), "SGD", {"momentum": 0.9, "dampening": 0.3}),
    (
        SGD(0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        "SGD",
        {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ),
    (Adam(0.1), "Adam", {}),
    (Adam(0.1, (0.8, 0.99), 1e-6, 0.1), "Adam", {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    (AdamW(0.1), "AdamW", {}),
    (AdamW(0.1, weight_decay=0.2), "AdamW", {"weight_decay": 0.2}),
]


@pytest.mark.parametrize(("optimizer", "name", "given"), OPTIMIZERS)
@pytest.mark.parametrize("dims", [(5, 3), (1,), ()])
def test_optimizers_are_pytorchs(
    optimizer: Optimizer, name: str, given: dict[str, Any], dims: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    begin = rng.standard_normal(dims).astype(np.float32)
    x = Value("x", dims, F32)
    nodes = (
        Node("Mul", ("x", "w"), ("a",)),
        Node("Tanh", ("a",), ("b",)),
        Node("ReduceSum", ("b",), ("loss",), {"keepdims": 0}),
    )
    graph = Graph((x,), ("loss",), nodes, {"w": begin})
    trainer = Trainer(graph, "loss", optimizer, of=["w"])
    weight = torch.tensor(begin, requires_grad=True)
    known = getattr(torch.optim, name)([weight], 0.1, **given)
    for count in range(6):
        data = rng.standard_normal(dims).astype(np.float32)
        trainer.rate = 0.1 / (1 + count)
        known.param_groups[0]["lr"] = 0.1 / (1 + count)
        known.zero_grad()
        loss = (torch.tensor(data) * weight).tanh().sum()
        loss.backward()
        known.step()
        assert abs(trainer.step(data) - loss.item()) <= 1e-5 * (1 + abs(loss.item()))
        np.testing.assert_allclose(trainer["w"], weight.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_parameters_stay_in_the_format_that_convolutions_like() -> None:
    trainer = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), batch=4)
    plan = trainer.plan
    conversions = [one for one in plan.conversions if one.value in plan.states and "momentum" in one.value]
    assert conversions == []
    for name in trainer.parameters:
        assert plan.states[name] == plan.states[f"momentum/{name}"], name


def test_states_are_read_and_written() -> None:
    trainer = Trainer(network(), "cross_entropy", SGD(0.1), batch=4)
    before = trainer["fc.weight"]
    trainer.step(*batches(1)[0])
    assert not np.array_equal(trainer["fc.weight"], before)
    trainer["fc.weight"] = before
    assert np.array_equal(trainer["fc.weight"], before)
    assert len(trainer) == len(list(trainer)) == len(trainer.parameters) + len(trainer.statistics)
    with pytest.raises(LayoutError, match="no parameter or state 'fc'"):
        trainer["fc"]
    with pytest.raises(LayoutError, match=r"fc\.bias"):
        trainer["fc.bias"] = np.zeros(3, np.float32)


def test_a_saved_state_goes_on_where_it_was(tmp_path: Path) -> None:
    data = batches(4)
    first = Trainer(network(), "cross_entropy", Adam(0.01), batch=4)
    for one in data[:2]:
        first.step(*one)
    first.save(tmp_path / "state.safetensors")
    losses = [first.step(*one) for one in data[2:]]
    second = Trainer(network(9), "cross_entropy", Adam(0.01), batch=4)
    second.load(tmp_path / "state.safetensors")
    assert second.count == 2
    assert [second.step(*one) for one in data[2:]] == losses


def test_what_was_learned_goes_into_the_graph() -> None:
    graph = network()
    trainer = Trainer(graph, "cross_entropy", SGD(0.05), batch=4)
    x, labels = batches(1)[0]
    losses = [trainer.step(x, labels) for _ in range(12)]
    assert losses[-1] < losses[0] / 2
    made = trainer.trained(graph)
    (scores,) = made.compile(batch=4)(x)
    assert scores.shape == (4, 5)
    assert not np.allclose(scores, graph.compile(batch=4)(x)[0])


def test_results_of_the_network_come_with_the_loss() -> None:
    trainer = Trainer(network(), "cross_entropy", SGD(0.05), batch=4)
    x, labels = batches(1)[0]
    loss, scores = trainer.step_with_results(x, labels)
    shifted = scores - scores.max(1, keepdims=True)
    expected = (np.log(np.exp(shifted).sum(1)) - shifted[np.arange(4), labels]).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_dropout_depends_on_seed_and_step() -> None:
    nodes = (
        Node("Mul", ("x", "w"), ("a",)),
        Node("Dropout", ("a",), ("b",)),
        Node("ReduceMean", ("b",), ("loss",), {"keepdims": 0}),
    )
    graph = Graph((Value("x", (50, 40), F32),), ("loss",), nodes, {"w": np.ones(40, np.float32)})
    x = np.ones((50, 40), np.float32)
    runs = []
    for seed in (1, 1, 2):
        trainer = Trainer(graph, "loss", SGD(0.0), seed=seed)
        runs.append([trainer.step(x) for _ in range(3)])
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == 3
    assert abs(np.mean(runs[0]) - 1) < 0.1
    plain = Trainer(graph, "loss", SGD(0.0), dropout=0.0)
    assert plain.step(x) == 1


def test_an_onnx_model_trains(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from relayout.exporters.onnx import save

    path = tmp_path / "small.onnx"
    save(network(), path)
    graph = rl.load(path)
    trainer = Trainer(graph, "cross_entropy", SGD(0.05, momentum=0.9), batch=4)
    same = Trainer(network(), "cross_entropy", SGD(0.05, momentum=0.9), batch=4)
    for one in batches(2):
        np.testing.assert_allclose(trainer.step(*one), same.step(*one), rtol=1e-4)


def test_a_program_of_pytorch_trains() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(*layers)
    graph = rl.load(torch.export.export(model, (torch.zeros(4, 6),)))
    trainer = Trainer(graph, "mean_squared_error", AdamW(0.01))
    known = torch.optim.AdamW(model.parameters(), 0.01)
    rng = np.random.default_rng(0)
    for _ in range(4):
        x, y = (rng.standard_normal((4, n)).astype(np.float32) for n in (6, 3))
        loss = torch.nn.functional.mse_loss(model(torch.tensor(x)), torch.tensor(y))
        known.zero_grad()
        loss.backward()
        known.step()
        np.testing.assert_allclose(trainer.step(x, y), loss.item(), rtol=1e-4)
    for name, one in model.named_parameters():
        np.testing.assert_allclose(trainer[name], one.detach().numpy(), rtol=1e-3, atol=1e-5)


def test_rows_for_padding_and_means_of_all_batches_are_pytorchs() -> None:
    """The first do not learn; ``momentum=None`` counts all batches the same."""
    torch = pytest.importorskip("torch")

    class Words(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(9, 6, padding_idx=3)
            self.normal = torch.nn.BatchNorm1d(6, momentum=None)
            self.out = torch.nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.out(self.normal(self.words(x).transpose(1, 2)).mean(2))

    torch.manual_seed(0)
    model = Words()
    torch.nn.init.normal_(model.words.weight)  # the row for padding, too: it must stay what it is
    words = np.random.default_rng(1).integers(0, 9, (5, 8, 7))
    graph = rl.load(torch.export.export(model.eval(), (torch.tensor(words[0]),)))
    trainer = Trainer(graph, "cross_entropy", SGD(0.1), batch=8)
    assert all(one.kind != "custom" for one in trainer.layers())
    model.train()
    known = torch.optim.SGD(model.parameters(), 0.1)
    for labels, x in enumerate(words):
        wanted = np.arange(8) * (labels + 1) % 2
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(wanted))
        known.zero_grad()
        loss.backward()
        known.step()
        np.testing.assert_allclose(trainer.step(x, wanted), loss.item(), rtol=1e-4)
    for name, one in model.state_dict().items():
        if not name.endswith("tracked"):
            np.testing.assert_allclose(trainer[name], one.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_transformer_trains() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = torch.nn.Embedding(11, 16)
            self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
            self.norm, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 11)

        def forward(self, words: Any) -> Any:
            x = self.tokens(words)
            x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
            return self.out(x).transpose(1, 2)

    model = Layer()
    rng = np.random.default_rng(0)
    words, labels = rng.integers(0, 11, (2, 3, 5))
    graph = rl.load(torch.export.export(model, (torch.tensor(words),)))
    trainer = Trainer(graph, "cross_entropy", Adam(0.01))
    known = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(words)), torch.tensor(labels))
        known.zero_grad()
        loss.backward()
        known.step()
        np.testing.assert_allclose(trainer.step(words, labels), loss.item(), rtol=1e-3)


# -- steps with states --------------------------------------------------------------------------------------


def test_a_state_is_replaced_in_its_memory() -> None:
    x, total = (Value(name, (3, 4), F32) for name in ("x", "total"))
    nodes = (
        Node("Mul", ("total", "x"), ("weighed",)),
        Node("Add", ("x", "total"), ("total/next",)),
        Node("ReduceSum", ("weighed",), ("sum",), {"keepdims": 0}),
    )
    graph = inferred(Graph((x, total), ("sum", "total/next"), nodes))
    step = Step(graph, {"total": "total/next"})
    run = compiled_step(step, planned_step(step))
    data, state = np.full((3, 4), 2, np.float32), rl.tensor(np.ones((3, 4), np.float32))
    assert [float(run(rl.tensor(data), state).numpy()) for _ in range(3)] == [24, 72, 120]
    assert (state.numpy() == 7).all()


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"y": "next"}, "'y' is no input"),
        ({"x": "nothing"}, "'nothing', which replaces the state 'x', is no result"),
        ({"x": "sum"}, "can't be replaced by sum"),
        ({"x": "next", "z": "next"}, "two states are replaced by the same"),
    ],
)
def test_states_that_are_none(states: dict[str, str], message: str) -> None:
    x, z = Value("x", (2,), F32), Value("z", (2,), F32)
    nodes = (Node("Add", ("x", "z"), ("next",)), Node("ReduceSum", ("x",), ("sum",), {"keepdims": 0}))
    graph = inferred(Graph((x, z), ("next", "sum"), nodes))
    with pytest.raises(LayoutError, match=message):
        Step(graph, states)


def test_next_values_that_wait_for_each_other() -> None:
    """Each may be written only when the other one was read together with a state."""
    x, z, a = (Value(name, (2,), F32) for name in "xza")
    nodes = (
        Node("Neg", ("a",), ("x/next",)),
        Node("Abs", ("a",), ("z/next",)),
        Node("Add", ("x/next", "z"), ("one",)),
        Node("Add", ("z/next", "x"), ("two",)),
    )
    graph = inferred(Graph((x, z, a), ("one", "two", "x/next", "z/next"), nodes))
    step = Step(graph, {"x": "x/next", "z": "z/next"})
    with pytest.raises(LayoutError, match="needs the state 'z', and the next value of one"):
        planned_step(step)


def test_a_state_that_another_one_needs_is_copied() -> None:
    x, z = Value("x", (2,), F32), Value("z", (2,), F32)
    nodes = (Node("Neg", ("z",), ("x/next",)), Node("Mul", ("x/next", "x"), ("z/next",)))
    nodes = (*nodes, Node("Add", ("x", "z"), ("sum",)))
    graph = inferred(Graph((x, z), ("sum", "x/next", "z/next"), nodes))
    step = Step(graph, {"x": "x/next", "z": "z/next"})
    run = compiled_step(step, planned_step(step))
    first, second = rl.tensor(np.float32([2, 3])), rl.tensor(np.float32([5, 7]))
    assert run(first, second).numpy().tolist() == [7, 10]
    assert first.numpy().tolist() == [-5, -7]
    assert second.numpy().tolist() == [-10, -21]


def test_states_that_exchange_their_values_are_copied() -> None:
    x, z = Value("x", (2, 3), F32), Value("z", (3, 2), F32)
    nodes = (
        Node("Transpose", ("x",), ("z/next",), {"perm": (1, 0)}),
        Node("Transpose", ("z",), ("turned",), {"perm": (1, 0)}),
        Node("Neg", ("turned",), ("x/next",)),
        Node("Flatten", ("x",), ("flat",)),
    )
    step = Step(inferred(Graph((x, z), ("flat", "x/next", "z/next"), nodes)), {"x": "x/next", "z": "z/next"})
    plan = planned_step(step)
    run = compiled_step(step, plan)
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((3, 2), 9, np.float32)
    state = {"x": rl.tensor(first.copy()), "z": rl.tensor(second.copy())}
    given = [state[value.name].reorder(plan.states[value.name]) for value in plan.graph.inputs]
    flat = run(*given)
    assert np.array_equal(flat.numpy(), first)
    after = dict(zip((value.name for value in plan.graph.inputs), given, strict=True))
    assert np.array_equal(after["x"].numpy(), -second.T)
    assert np.array_equal(after["z"].numpy(), first.T)


@pytest.mark.parametrize("inputs", [("x", "w"), ("w", "x"), ("w", "w")])
def test_a_parameter_that_is_a_part_of_a_concatenation_is_learned(inputs: tuple[str, str]) -> None:
    """It is copied to its place, but its next value belongs into its own memory."""
    begin = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
    nodes = (
        Node("Concat", inputs, ("y",), {"axis": 1}),
        Node("ReduceSumSquare", ("y",), ("loss",), {"keepdims": 0}),
    )
    graph = Graph((Value("x", (2, 3), F32),), ("loss",), nodes, {"w": begin})
    trainer = Trainer(graph, "loss", SGD(0.25))
    for step in range(1, 3):
        trainer.step(np.ones((2, 3), np.float32))
        np.testing.assert_allclose(trainer["w"], begin * (1 - 0.5 * inputs.count("w")) ** step)


def test_a_loss_of_gradients_is_learned() -> None:
    """The name of a gradient is taken then: that of the loss has another one."""
    nodes = (
        Node("Mul", ("w", "w"), ("y",)),
        Node("Mul", ("x", "y"), ("z",)),
        Node("ReduceSum", ("z",), ("first",), {"keepdims": 0}),
    )
    begin = np.array([1, 2, 3], np.float32)
    joint = Graph((Value("x", (3,), F32),), ("first",), nodes, {"w": begin}).backward("first", ["w"])
    loss = Node("ReduceSumSquare", ("gradient/w",), ("loss",), {"keepdims": 0})
    graph = joint.replaced(nodes=(*joint.nodes, loss), results=("loss", "gradient/w"))
    trainer = Trainer(graph, "loss", SGD(0.125), of=["w"])
    trainer.step(np.full(3, 0.5, np.float32))  # loss: sum of w^2
    np.testing.assert_allclose(trainer["w"], begin * 0.75)


def test_gradients_that_are_other_parameters() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    begin = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in ("u", "w")}
    nodes = (
        Node("Transpose", ("w",), ("turned",), {"perm": (1, 0)}),
        Node("Mul", ("u", "turned"), ("a",)),
        Node("Mul", ("a", "x"), ("b",)),
        Node("ReduceSum", ("b",), ("loss",), {"keepdims": 0}),
    )
    graph = Graph((Value("x", (1,), F32),), ("loss", "turned"), nodes, begin)
    trainer = Trainer(graph, "loss", SGD(0.1, momentum=0.5))
    u, w = (torch.tensor(begin[name], requires_grad=True) for name in ("u", "w"))
    known = torch.optim.SGD([u, w], 0.1, momentum=0.5)
    for _ in range(3):
        known.zero_grad()
        loss = (u * w.T).sum()
        loss.backward()
        before = w.detach().numpy().T.copy()
        known.step()
        found, turned = trainer.step_with_results(np.ones(1, np.float32))
        np.testing.assert_allclose(found, loss.item(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(turned, before, rtol=1e-5)
    np.testing.assert_allclose(trainer["u"], u.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trainer["w"], w.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(-1), "rate -1 must be a number, 0 or more"),
        (lambda: Adam(0.1, betas=(0.9, 1.0)), "betas"),
        (lambda: Trainer(network(), "nothing", SGD(0.1), batch=2), "no value 'nothing'"),
        (lambda: Trainer(network(), "cross_entropy", "SGD", batch=2), "an optimiser is"),  # type: ignore[arg-type]
        (lambda: Trainer(network(), "cross_entropy", SGD(0.1)), "batch="),
        (lambda: Trainer(network(), "cross_entropy", SGD(0.1), of=["fc"], batch=2), "no constant 'fc'"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        make()


def test_inputs_of_a_step_are_checked() -> None:
    trainer = Trainer(network(), "cross_entropy", SGD(0.1), batch=4)
    x, labels = batches(1)[0]
    with pytest.raises(LayoutError, match="4x3x32x32"):
        trainer.step(x[:2], labels)
    with pytest.raises(LayoutError, match="classes"):
        trainer.step(x, labels + 5)
    assert repr(trainer).startswith("Trainer(data f32 4x3x32x32, targets s64 4 -> loss, ")
