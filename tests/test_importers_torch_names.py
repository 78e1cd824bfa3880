"""The names of a program's outputs and sizes: what the model says is what the graph says."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from relayout.errors import Unsupported  # noqa: E402
from relayout.importers.torch import load  # noqa: E402
from test_importers_torch import exported  # noqa: E402

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Found:
    boxes: Any
    scores: Any


torch.export.register_dataclass(Found, serialized_type_name="test_importers_torch_names.Found")


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def nested(x):
    y = x * 2
    return {"logits": y.relu(), "aux": [y.sigmoid(), {"deep": y.tanh()}], "none": None, "last": y.exp()}


NAMED = {
    "a dict": (lambda x: {"b": x.relu(), "a": x.tanh()}, ["b", "a"]),
    "nested": (nested, ["logits", "aux.0", "aux.1.deep", "last"]),
    "a data class": (lambda x: Found(x.relu(), x.tanh()), ["boxes", "scores"]),
    "within a tuple": (lambda x: ({"a": x.relu()}, x.tanh()), ["0.a", "tanh"]),
    "a value twice": (lambda x: (lambda y: {"a": y, "b": y})(x.relu()), ["a", "b"]),
    "names of inner values": (lambda x: {"tanh": x.relu().tanh().exp(), "relu": x.tanh()}, ["tanh", "relu"]),
    "an input": (lambda x: {"same": x, "more": x + 1}, ["same", "more"]),
    "a constant": (lambda x: {"one": torch.ones(2), "more": x + 1}, ["one", "more"]),
    "paths that look alike": (lambda x: {"a": [x.relu()], "a.0": x.tanh()}, ["a.0", "a.0.1"]),
    "a tuple": (lambda x: (x.relu(), x.tanh()), ["relu", "tanh"]),
    "one": (lambda x: x.relu(), ["relu"]),
}


@pytest.mark.parametrize("name", NAMED)
def test_outputs_have_the_names_under_which_they_are_returned(name: str, tmp_path: Any) -> None:
    function, names = NAMED[name]
    x = torch.randn(2, 5)
    program = exported(Function(function), x)
    torch.export.save(program, tmp_path / "model.pt2")
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(function(x)) if leaf is not None]
    for graph in (load(program), load(tmp_path / "model.pt2")):
        assert list(graph.results) == names
        graph.verify()
        for got, want in zip(graph.compile()(x), leaves, strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)


def test_the_fields_of_a_named_tuple() -> None:
    graph = load(exported(Function(lambda x: Pair(x.relu(), x.tanh())), torch.randn(2, 5)))
    assert len(graph.results) == 2
    graph.verify()


def sized() -> Any:
    batch, length = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "length"))
    model = Function(lambda x, y: {"sum": (x + y).flatten(1), "parts": torch.cat([x, x])})
    inputs = torch.randn(3, 7, 4), torch.randn(3, 1, 4)
    return exported(model, *inputs, dims=(({0: batch, 1: length}, {0: batch}),))


def test_sizes_have_the_names_of_their_dims(tmp_path: Any) -> None:
    program = sized()
    graph = load(program)
    assert [str(value) for value in graph.inputs] == ["given_0 f32 batchxlengthx4", "given_1 f32 batchx1x4"]
    assert [value.dims for value in graph.outputs] == [("batch", "4*length"), ("2*batch", "length", 4)]
    x, y = np.ones((5, 6, 4), np.float32), np.ones((5, 1, 4), np.float32)
    for batch in ({"batch": 5, "length": 6}, {"given_0": (5, 6, 4), "batch": 5}, None):
        run = graph.compile(batch=batch)
        assert [one.shape for one in run(x, y)] == [(5, 24), (10, 6, 4)]
    assert graph.compile(batch={"batch": 5, "length": 6}).outputs[1].dims == (10, 6, 4)
    torch.export.save(program, tmp_path / "model.pt2")
    (first, second) = load(tmp_path / "model.pt2").inputs  # which has PyTorch's symbols and no names
    assert first.dims[0] == second.dims[0] != first.dims[1]
    assert all(isinstance(n, str) for n in first.dims[:2])


def test_every_reason_is_told_at_once() -> None:
    """Three operators that nobody translates, one of them twice, and one that is used in another way."""
    function = Function(
        lambda x: {
            "a": torch.linalg.eigvalsh(x),
            "b": torch.linalg.inv(x) + torch.linalg.inv(x + 1),
            "c": torch.fft.fft(x).real,
            "d": torch.lgamma(x),
        }
    )
    with pytest.raises(Unsupported) as caught:
        load(exported(function, torch.eye(3)))
    text = str(caught.value)
    assert "\n" not in text
    for operator in ("_linalg_eigh", "linalg_inv_ex", "_fft_r2c", "lgamma"):
        assert operator in text
    assert " at " in text
