"""What a training run is asked for besides steps: clipping, parts, groups, schedules, evaluation, files."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayout as rl
from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.training import SGD, Adam, Cosine, Stepwise, Trainer

F32 = np.dtype("float32")
RNG = np.random.default_rng(0)
BEGIN = {
    "first.weight": RNG.standard_normal((6, 3, 3, 3), dtype=np.float32) / 5,
    "norm.scale": np.full(6, 1.1, F32),
    "norm.bias": np.full(6, 0.1, F32),
    "norm.mean": np.full(6, 0.05, F32),
    "norm.variance": np.full(6, 1.2, F32),
    "last.weight": RNG.standard_normal((5, 6), dtype=np.float32),
    "last.bias": np.zeros(5, F32),
}


def network() -> Graph:
    """A convolution, a normalisation and scores, for any batch."""
    norm = ("norm.scale", "norm.bias", "norm.mean", "norm.variance")
    nodes = (
        Node("Conv", ("x", "first.weight"), ("a",), {"pads": (1, 1, 1, 1)}),
        Node("BatchNormalization", ("a", *norm), ("b",)),
        Node("Relu", ("b",), ("c",)),
        Node("GlobalAveragePool", ("c",), ("d",)),
        Node("Flatten", ("d",), ("e",)),
        Node("Gemm", ("e", "last.weight", "last.bias"), ("y",), {"transB": 1}),
    )
    return Graph((Value("x", ("batch", 3, 6, 6), F32),), ("y",), nodes, BEGIN)


def data(batch: int = 4, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((batch, 3, 6, 6), dtype=np.float32), rng.integers(0, 5, batch)


def reference(torch: Any, training: bool = True) -> tuple[dict[str, Any], Any]:
    """The same in PyTorch: its parameters, and what computes the scores."""
    known = {name: torch.tensor(one) for name, one in BEGIN.items()}
    for name in ("first.weight", "norm.scale", "norm.bias", "last.weight", "last.bias"):
        known[name].requires_grad_()

    def scores(x: Any) -> Any:
        y = torch.nn.functional.conv2d(torch.tensor(x), known["first.weight"], padding=1)
        given = (known[f"norm.{part}"] for part in ("mean", "variance", "scale", "bias"))
        y = torch.nn.functional.batch_norm(y, *given, training=training).relu().mean((2, 3))
        return torch.nn.functional.linear(y, known["last.weight"], known["last.bias"])

    return known, scores


def loss_of(torch: Any, scores: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(scores, torch.tensor(labels))


def alike(trainer: Trainer, known: dict[str, Any]) -> None:
    for name, one in known.items():
        np.testing.assert_allclose(trainer[name], one.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_gradients_are_clipped_as_pytorch_does() -> None:
    torch = pytest.importorskip("torch")
    trainer = Trainer(network(), "cross_entropy", SGD(0.5, momentum=0.9), batch=4, clip=0.3)
    known, scores = reference(torch)
    learned = [one for one in known.values() if one.requires_grad]
    optimizer = torch.optim.SGD(learned, 0.5, momentum=0.9)
    norms = []
    for seed in range(3):
        x, labels = data(seed=seed)
        optimizer.zero_grad()
        loss = loss_of(torch, scores(x), labels)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(learned, 0.3)))
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x, labels), loss.item(), rtol=1e-5)
        np.testing.assert_allclose(trainer.norm, norms[-1], rtol=1e-4)
    assert max(norms) > 0.3
    alike(trainer, known)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_a_batch_in_parts_is_pytorchs_accumulation(clip: float | None) -> None:
    torch = pytest.importorskip("torch")
    trainer = Trainer(network(), "cross_entropy", SGD(0.3, momentum=0.9), batch=4, accumulate=3, clip=clip)
    known, scores = reference(torch)
    learned = [one for one in known.values() if one.requires_grad]
    optimizer = torch.optim.SGD(learned, 0.3, momentum=0.9)
    for seed in range(3):
        x, labels = data(12, seed)
        optimizer.zero_grad()
        losses = [loss_of(torch, scores(x[k : k + 4]), labels[k : k + 4]) / 3 for k in (0, 4, 8)]
        for one in losses:
            one.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(learned, clip)
        optimizer.step()
        loss, made = trainer.step_with_results(x, labels)
        assert made.shape == (12, 5)
        np.testing.assert_allclose(loss, sum(one.item() for one in losses), rtol=1e-5)
    alike(trainer, known)
    assert trainer.count == 3
    with pytest.raises(LayoutError, match="3 parts takes 3 times x f32 4x3x6x6"):
        trainer.step(*data(4))


def test_groups_have_optimisers_of_their_own() -> None:
    torch = pytest.importorskip("torch")
    groups = {"*.bias": SGD(0.02, momentum=0.9), "last.*": SGD(0.01, 0.5, weight_decay=0.3)}
    base = SGD(0.1, momentum=0.9, weight_decay=0.2)
    trainer = Trainer(network(), "cross_entropy", base, batch=4, groups=groups)
    known, scores = reference(torch)
    optimizer = torch.optim.SGD(
        [
            {"params": [known["norm.bias"], known["last.bias"]], "lr": 0.02, "weight_decay": 0},
            {"params": [known["last.weight"]], "lr": 0.01, "momentum": 0.5, "weight_decay": 0.3},
            {"params": [known["first.weight"], known["norm.scale"]]},
        ],
        0.1,
        momentum=0.9,
        weight_decay=0.2,
    )
    trainer.rate = Stepwise(0.1, 1, 0.5)
    for count in range(3):
        x, labels = data(seed=count)
        optimizer.zero_grad()
        loss_of(torch, scores(x), labels).backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] /= 2
        trainer.step(x, labels)
    alike(trainer, known)


def test_evaluation_is_inference_and_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    trainer = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), batch=4)
    trainer.step(*data())
    before = {name: trainer[name] for name in trainer}
    for batch in (4, 3, 1):
        x, labels = data(batch, 7)
        loss, made = trainer.evaluate(x, labels)
        (expected,) = trainer.trained(network()).compile(batch=batch)(x)
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
        wanted = loss_of(torch, torch.tensor(expected), labels)
        np.testing.assert_allclose(loss, wanted.item(), rtol=1e-5)
    assert all(np.array_equal(before[name], trainer[name]) for name in trainer)
    assert trainer.count == 1


def test_the_last_batch_may_be_smaller() -> None:
    torch = pytest.importorskip("torch")
    trainer = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), batch=4)
    known, scores = reference(torch)
    optimizer = torch.optim.SGD([one for one in known.values() if one.requires_grad], 0.1, momentum=0.9)
    for seed, batch in enumerate((4, 3, 4)):
        x, labels = data(batch, seed)
        optimizer.zero_grad()
        loss = loss_of(torch, scores(x), labels)
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x, labels), loss.item(), rtol=1e-5)
    alike(trainer, known)


def test_gradients_are_read_and_nothing_changes() -> None:
    torch = pytest.importorskip("torch")
    trainer = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), batch=4)
    known, scores = reference(torch)
    before = {name: trainer[name] for name in trainer}
    x, labels = data()
    loss_of(torch, scores(x), labels).backward()
    for _ in range(2):
        found = trainer.gradients(x, labels)
        assert set(found) == set(trainer.parameters)
        for name, one in found.items():
            np.testing.assert_allclose(one, known[name].grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert set(before) == set(trainer)
    assert all(np.array_equal(before[name], trainer[name]) for name in trainer)
    trainer.step(x, labels)
    assert all(np.array_equal(trainer[f"momentum/{name}"], one) for name, one in found.items())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_is_pickled_and_copied(accumulate: int) -> None:
    made = {"batch": 4, "accumulate": accumulate, "groups": {"*.bias": SGD(0.1)}, "clip": 1.0}
    trainer = Trainer(network(), "cross_entropy", Adam(0.01), **made)
    trainer.rate = Cosine(0.02, 10, warmup=2)
    trainer.step(*data(4 * accumulate))
    for other in (pickle.loads(pickle.dumps(trainer)), copy.deepcopy(trainer)):
        assert (other.count, other.rate, repr(other)) == (1, trainer.rate, repr(trainer))
        assert set(other) == set(trainer)
        assert all(np.array_equal(other[name], trainer[name]) for name in trainer)
    x, labels = data(4 * accumulate, 3)
    assert other.step(x, labels) == trainer.step(x, labels)
    assert all(np.array_equal(other[name], trainer[name]) for name in trainer)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    trainer = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), batch=4)
    trainer.step(*data())
    trainer.rate = 0.03
    trainer.save(path)
    assert np.array_equal(rl.files.read(path, name="last.weight").numpy(), trainer["last.weight"])
    fresh = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), batch=4)
    fresh.load(path)
    assert (fresh.count, fresh.rate) == (1, 0.03)
    assert all(np.array_equal(fresh[name], trainer[name]) for name in trainer)

    other = Trainer(network(), "cross_entropy", Adam(0.1), batch=4)
    with pytest.raises(LayoutError, match=r"has no 'mean/.*which this trainer needs \(mean/"):
        other.load(path)
    graph = network()
    wider = graph.replaced(
        constants={**BEGIN, "last.weight": np.ones((7, 6), F32), "last.bias": np.ones(7, F32)}
    )
    other = Trainer(wider, "cross_entropy", SGD(0.1, momentum=0.9), batch=4)
    before = other["first.weight"]
    with pytest.raises(
        LayoutError, match=r"its last\.weight f32 5x6 does not fit this trainer's last\.weight f32 7x6"
    ):
        other.load(path)
    assert np.array_equal(other["first.weight"], before)
    with pytest.raises(LayoutError, match=r"\.safetensors"):
        trainer.save(tmp_path / "state.npz")
    with pytest.raises(OSError, match="no such folder"):
        trainer.save(tmp_path / "none" / "state.safetensors")
    with pytest.raises(OSError, match="No such file"):
        trainer.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip": 0}, "clipped to a norm above 0"),
        ({"accumulate": 0}, "1 part or more"),
        ({"groups": {"conv*": SGD(0.1)}}, "no parameter fits 'conv"),
        ({"groups": {"*": 0.1}}, "not float"),
        ({"of": []}, "nothing to learn"),
    ],
)
def test_settings_that_are_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Trainer(network(), "cross_entropy", SGD(0.1), batch=4, **given)


@pytest.mark.parametrize("rate", ["a", None, -1, float("nan")])
def test_rates_are_numbers(rate: Any) -> None:
    with pytest.raises(LayoutError, match=rf"SGD: rate {rate!r} must be a number, 0 or more"):
        SGD(rate)


def test_a_loss_may_keep_an_axis() -> None:
    nodes = (*network().nodes, Node("ReduceSumSquare", ("y",), ("loss",), {"keepdims": 1}),
             Node("Reshape", ("loss", "one"), ("flat",)))  # fmt: skip
    graph = network().replaced(
        nodes=nodes, results=("flat",), constants={**BEGIN, "one": np.array([1], np.int64)}
    )
    assert isinstance(Trainer(graph, "flat", SGD(0.1), batch=4).step(data()[0]), float)


def test_threads_change_no_bit_of_clipped_parts() -> None:
    found = []
    for threads in (1, 2):
        made = {"batch": 4, "threads": threads, "clip": 0.2, "accumulate": 2}
        trainer = Trainer(network(), "cross_entropy", SGD(0.1, momentum=0.9), **made)
        losses = [trainer.step(*data(8, seed)) for seed in range(2)]
        found.append((losses, trainer.norm, {name: trainer[name].tobytes() for name in trainer}))
    assert found[0] == found[1]


# -- 16 bits ------------------------------------------------------------------------------------------------


def in_16_bits(torch: Any, kind: str) -> tuple[Any, Graph, Any]:
    """A network with all parameters in a data type, as PyTorch exports it, and its input."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 6, 3, padding=1, bias=False), torch.nn.BatchNorm2d(6), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.LayerNorm(96), torch.nn.Linear(96, 5))
    model = model.eval().to(getattr(torch, kind))
    x = torch.randn(4, 3, 4, 4).to(getattr(torch, kind))
    return model, rl.load(torch.export.export(model, (x,))), x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "step"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
@pytest.mark.parametrize("master", [False, True])
def test_steps_in_16_bits_are_near_those_in_double_precision(kind: str, step: float, master: bool) -> None:
    """As near as PyTorch's: losses within some roundings, what each step changes within some percent."""
    torch = pytest.importorskip("torch")
    model, graph, x = in_16_bits(torch, kind)
    trainer = Trainer(graph, "cross_entropy", SGD(0.1, momentum=0.9), master=master)
    exact = copy.deepcopy(model).double().train()
    begin = {name: one.detach().numpy().copy() for name, one in exact.named_parameters()}
    optimizer = torch.optim.SGD(exact.parameters(), 0.1, momentum=0.9)
    labels = np.array([0, 3, 1, 4])
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(exact(x.double()), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        found = trainer.step(x, labels)
        assert abs(found - loss.item()) <= 16 * step * (1 + abs(loss.item()))
    for name, one in exact.named_parameters():
        wanted, held = one.detach().numpy(), trainer[name]
        assert held.dtype == (np.float32 if master else graph.constants[name].dtype)
        moved = np.linalg.norm(wanted - begin[name])
        rounding = 0 if master else 3 * step * np.linalg.norm(wanted)
        off = np.linalg.norm(held.astype(np.float64) - wanted)
        assert off <= 32 * step * moved + rounding + 1e-6, (name, off, moved)
    learned = trainer.trained(graph)
    assert all(learned.constants[name].dtype == graph.constants[name].dtype for name in graph.constants)
    other = pickle.loads(pickle.dumps(trainer))
    assert other.step(x, labels) == trainer.step(x, labels)


@pytest.mark.filterwarnings("ignore")
def test_averages_that_vanish_in_f16_are_refused() -> None:
    torch = pytest.importorskip("torch")
    _, graph, x = in_16_bits(torch, "float16")
    with pytest.raises(LayoutError, match=r"f16, in which Adam's averages of squares vanish.*master=True"):
        Trainer(graph, "cross_entropy", Adam(0.01))
    trainer = Trainer(graph, "cross_entropy", Adam(0.01), master=True)
    losses = [trainer.step(x, np.array([0, 3, 1, 4])) for _ in range(4)]
    assert losses[-1] < losses[0]
