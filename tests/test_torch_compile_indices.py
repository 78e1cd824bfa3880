"""Indices in compiled graphs: what eager PyTorch refuses is refused here, and nothing outside is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import relayout as rl  # noqa: E402
from relayout.torch.compiling import program  # noqa: E402
from relayout.torch.compiling.part import OutOfRange  # noqa: E402
from test_torch_compile import _fresh, agree  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore:::torch", "ignore::DeprecationWarning")

ROWS = 5

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding, padding": lambda x, i: F.embedding(i, x, 1),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select, last axis": lambda x, i: x.t().index_select(1, i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 8)),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 2 * x[: len(i), :1]),
    "scatter, a number": lambda x, i: x.scatter(0, i[:, None].expand(-1, 8), 7.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 8), 2 * x[: len(i)]),
    "index_add": lambda x, i: x.index_add(0, i, x[: len(i)], alpha=3),
    "index_add, last axis": lambda x, i: x.t().index_add(1, i, x.t()[:, : len(i)]),
    "index_copy": lambda x, i: x.index_copy(0, i, 2 * x[: len(i)]),
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x.t()[:, i],
    "x[i, j]": lambda x, i: x[i, i.flip(0)],
    "index_put": lambda x, i: x.index_put((i,), x[: len(i)], accumulate=True),
    "take_along_dim": lambda x, i: x.take_along_dim(i[:, None], 0),
    "index_fill": lambda x, i: x.index_fill(0, i, 3.0),
    "nll_loss": lambda x, i: F.nll_loss(x.t()[: len(i)], i, reduction="none"),
    "nll_loss, weights": lambda x, i: F.nll_loss(x.t()[: len(i)], i, x[:, 0].exp(), ignore_index=2),
    "cross_entropy": lambda x, i: F.cross_entropy(x.t()[: len(i)], i),
}

INDICES = {
    "all there": (0, 4, 2),
    "below 0": (0, -1, 2),
    "far below 0": (0, -6, 2),
    "just beyond": (0, 5, 2),
    "far beyond": (2**40, 0, 1),
    "as far below": (-(2**62), 0, 1),
}


def attempt(call: Callable[[], Any]) -> tuple[Any, type[Exception] | None]:
    try:
        return call(), None
    except (IndexError, RuntimeError) as error:
        return None, type(error)


@pytest.mark.parametrize("where", INDICES)
@pytest.mark.parametrize("name", OPERATORS)
def test_indices_are_refused_as_in_eager_pytorch(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What eager PyTorch raises, ``except`` catches here, too; and the same call works again afterwards."""
    monkeypatch.setattr(program, "WORTH", 0)
    function = OPERATORS[name]
    made = rl.torch.compile(lambda x, i: function(x, i))
    x = torch.randn(ROWS, 8)
    index, good = torch.tensor(INDICES[where]), torch.tensor(INDICES["all there"])
    for _ in range(2):
        (found, error), (wanted, expected) = (
            attempt(lambda run=run: run(x, index)) for run in (made, function)
        )
        assert (error is None) == (expected is None)
        if error is None:
            agree(found, wanted)
        else:
            assert expected is not None
            assert issubclass(error, expected)
        agree(made(x, good), function(x, good))


SCALARS: dict[str, Callable[[Any, Any], Any]] = {
    "gather": lambda x, i: x[0, 0].gather(0, i),
    "index_select": lambda x, i: x[0, 0].index_select(0, i),
    "index_select, one slice": lambda x, i: x.index_select(1, i),
}


@pytest.mark.parametrize("dims", [(), (1,)])
@pytest.mark.parametrize("name", SCALARS)
def test_tensors_without_axes(name: str, dims: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Index 0 is the only one that a single number has, and an index alone leaves an axis of one element."""
    monkeypatch.setattr(program, "WORTH", 0)
    function = SCALARS[name]
    made = rl.torch.compile(lambda x, i: function(x, i))
    x = torch.randn(ROWS, 8)
    for value in (0, -1, 8, 0):
        index = torch.full(dims, value)
        (found, error), (wanted, expected) = (
            attempt(lambda run=run, index=index: run(x, index)) for run in (made, function)
        )
        assert (error is None) == (expected is None)
        if error is None:
            agree(found, wanted)
    assert not any("gather" in one or "index_select" in one for one in made.explain().left)


@pytest.mark.parametrize("name", ["embedding", "gather", "index_select", "scatter_add", "index_add"])
def test_they_are_taken_all_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WORTH", 0)
    report = rl.torch.explain(OPERATORS[name], torch.randn(ROWS, 8), torch.tensor((0, 4, 2)))
    assert report.left == {}


def test_the_error_is_of_both_kinds_and_names_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WORTH", 0)
    made = rl.torch.compile(lambda x, i: F.embedding(i, x))
    with pytest.raises(OutOfRange, match=r"index -1 of axis 0, which has 5 elements") as error:
        made(torch.randn(ROWS, 8), torch.tensor([-1]))
    assert isinstance(error.value, IndexError)
    assert isinstance(error.value, RuntimeError)


@pytest.mark.parametrize("index", [(-1,), (5,)])
def test_constants_among_indices(index: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WORTH", 0)
    made = rl.torch.compile(lambda x: (x @ x.t()).index_select(0, torch.tensor(index)) @ x)
    with pytest.raises((IndexError, RuntimeError)):
        made(torch.randn(ROWS, 8))


@pytest.mark.parametrize("name", ["embedding", "gather", "index_select"])
def test_in_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "WORTH", 0)
    function = OPERATORS[name]
    made = rl.torch.compile(lambda x, i: function(x, i))
    x = torch.randn(ROWS, 8, requires_grad=True)
    with pytest.raises((IndexError, RuntimeError)):
        made(x, torch.tensor([0, -1]))
    found = []
    for run in (made, function):
        y = run(x, torch.tensor([0, 4, 0]))
        found.append(torch.autograd.grad((y * y.detach().cos()).sum(), x)[0])
    torch.testing.assert_close(*found)
